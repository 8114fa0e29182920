"""`everthread dashboard` prints a one-time link to the pages of a store."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2

from tests.cli.server_process import start_server


def test_a_link_opens_the_pages_of_a_store(tmp_path: Path) -> None:
    with start_server(tmp_path, "dashboard --port 0 --json") as (_, line):
        report = json.loads(line)
        with httpx2.Client(follow_redirects=True) as browser:
            assert "opens by a link" in browser.get(report["url"]).text
            assert "You are in." in browser.get(report["link"]).text
            assert "No conversation yet" in browser.get(report["url"]).text
            assert browser.get(f"{report['url']}/v1/models").status_code == 404, (
                "there is no gateway here"
            )
