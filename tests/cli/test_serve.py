"""`everthread serve` with a client in which only the base URL is changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from everthread.cli.summary_writer import JOURNAL_TEXT, describe_client_writer, describe_own_writer
from everthread.config import parse_config
from tests.cli.conftest import Command
from tests.cli.provider_thread import provider_in_thread
from tests.cli.server_process import start_server


def say_hello(url: str) -> Any:
    with openai.OpenAI(
        base_url=f"{url}/v1",
        api_key="any",
        max_retries=0,
    ) as client:
        return client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "Hello"}]
        )


def test_a_client_talks_through_the_gateway(tmp_path: Path) -> None:
    with provider_in_thread() as provider:
        command = f"serve --port 0 --upstream lab={provider.url} --json"
        with start_server(tmp_path, command) as (_, line):
            report = json.loads(line)
            url = report["url"]
            assert report["upstreams"] == [
                {
                    "name": "lab",
                    "url": provider.url,
                    "mode": "managed",
                }
            ]
            assert say_hello(url).choices[0].message.content
            assert httpx2.get(f"{url}/readyz", timeout=60).status_code == 200
            assert 'status="200"} 1' in httpx2.get(f"{url}/metrics", timeout=60).text


def test_the_start_text_names_the_variables_for_clients(tmp_path: Path) -> None:
    command = "serve --port 0 --mode observe"
    with start_server(tmp_path, command) as (process, first):
        assert first.startswith("Everthread listens on http://127.0.0.1:")
        url = first.split()[3]
        lines = [process.stdout.readline().strip() for _ in range(11)]
        assert lines[0] == "openai     https://api.openai.com (observe); with the client's own key"
        assert lines[1].startswith("anthropic  https://api.anthropic.com (observe)")
        assert (
            lines[2]
            == "chatgpt    https://chatgpt.com/backend-api/codex (observe); with the client's ChatGPT login"
        )
        assert lines[5:8] == [
            f"OPENAI_BASE_URL={url}/v1",
            f"ANTHROPIC_BASE_URL={url}",
            f"GOOGLE_GEMINI_BASE_URL={url}",
        ]
        assert lines[8] == f"Summaries: written by {JOURNAL_TEXT}."
        link = lines[9].removeprefix("See your context (the link works once): ")
        assert link.startswith(f"{url}/dashboard/login?code=")
        with httpx2.Client(follow_redirects=True, timeout=60) as browser:
            assert "You are in." in browser.get(link).text
            assert "No conversation yet" in browser.get(url).text
            assert "was used already" in httpx2.get(link, timeout=60).text


def test_an_address_that_means_every_address_is_not_shown_as_one(
    everthread: Command, home: Path
) -> None:
    everthread.succeeds("keys create")
    command = "serve --port 0 --host 0.0.0.0 --auth keys --upstream lab=http://127.0.0.1:9"
    with start_server(home, command) as (process, first):
        assert re.fullmatch(
            r"Everthread listens on port \d+ of every address of this machine in front of\n",
            first,
        )
        lines = [process.stdout.readline().strip() for _ in range(7)]
    assert any(line.startswith("OPENAI_BASE_URL=http://127.0.0.1:") for line in lines)
    assert "On another machine, use this one's name or address instead of 127.0.0.1." in lines
    assert not any("0.0.0.0" in line for line in lines)  # noqa: S104


@pytest.mark.parametrize("quiet", [False, True])
def test_each_request_is_a_log_line_unless_quiet(tmp_path: Path, quiet: bool) -> None:
    log = tmp_path / "log"
    with provider_in_thread() as provider:
        options = f"--upstream lab={provider.url} {'--quiet' if quiet else ''}"
        with (
            log.open("w") as stderr,
            start_server(tmp_path, f"serve --port 0 {options}", stderr) as (_, line),
        ):
            say_hello(url=line.split()[3])
    line = log.read_text("utf-8")
    if quiet:
        assert line == ""
    else:
        assert re.fullmatch(
            r"\d\d:\d\d:\d\d  200  gpt-4o {12}  [0-9a-f]{8}  +\d+ tokens    0% cached  \d+\.\d s\n",
            line,
        )
        assert len(line) <= 81, "it fits a terminal of 80 columns"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--host 192.0.2.1", "without API keys"),
        ("--upstream nothing", "NAME=URL"),
        ("--upstream a=http://me:secret@x", "NAME=URL"),
        ("--mode some", "managed"),
    ],
)
def test_bad_serve_options_are_refused(everthread: Command, options: str, reason: str) -> None:
    error = everthread.refuses(f"serve --port 0 {options}")
    assert reason in error
    assert "secret" not in error


@pytest.mark.parametrize(
    ("settings", "model", "words"),
    [
        ("{}", "gpt-5", "gpt-5, paid like its answers; if it fails, the journal"),
        ("{model: {provider: local}}", "tiny.gguf", "the built-in journal"),
        ("{model: {provider: local}}", "gpt-5", "gpt-5, paid like its answers"),
        ("{compression: {enabled: false}}", "gpt-5", "nothing is compacted"),
        (
            "{auxiliary: {compression: {model: w, base_url: 'http://127.0.0.1:1/v1'}}}",
            "gpt-5",
            "w, paid with its own key",
        ),
    ],
)
def test_the_writer_of_summaries_in_a_chat_is_described(
    settings: str, model: str, words: str
) -> None:
    assert words in describe_own_writer(parse_config(settings), model)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            "{model: gpt-4o-mini, provider: openai}",
            "the journal, since gpt-4o-mini cannot be used: OPENAI_API_KEY is not set",
        ),
        (
            "{model: writer, provider: openai, api_key_env: NO_SUCH_KEY}",
            "NO_SUCH_KEY is not set",
        ),
        (
            "{model: writer, provider: custom, base_url: 'http://127.0.0.1:1/v1'}",
            "writer, paid with the gateway's key; else the journal",
        ),
    ],
)
def test_the_start_says_when_the_auxiliary_model_cannot_be_used(
    settings: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert words in describe_client_writer(parse_config(f"auxiliary: {{compression: {settings}}}"))
