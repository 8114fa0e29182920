"""`everthread config`: checks, also of settings that would fail at start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "context: {engine: nobodys}",
            "context.engine: there is no context engine 'nobodys'",
        ),
        (
            "gateway: {host: 0.0.0.0}",
            "gateway.host: 0.0.0.0 can be reached from outside",
        ),
        (
            "auxiliary: {compression: {model: gpt-5-mini}}",
            "gpt-5-mini needs a key, and OPENAI_API_KEY is not set",
        ),
        (
            "auxiliary: {compression: {model: nobodys-model}}",
            "auxiliary.compression: nobodys-model: it is not clear",
        ),
        (
            "gateway: {upstreams: [{name: a, url: 'http://a.b', api_key_env: A_KEY}]}",
            "gateway.upstreams: a needs a key, and A_KEY is not set",
        ),
        (
            "gateway: {auth: keys, upstreams: [{name: a, url: 'https://api.openai.com/v1'}]}",
            "the upstream a needs a key of the gateway's own: set OPENAI_API_KEY",
        ),
    ],
)
def test_check_lists_settings_that_would_fail_at_start(
    everthread: Any, home: Path, text: str, words: str
) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(text, "utf-8")
    error = everthread.refuses("config", "check")
    assert "would fail at start" in error
    assert words in error


def test_set(everthread: Any) -> None:
    assert everthread("config", "set", "compression.threshold", "0.4").returncode == 0
    assert everthread("config", "check").stderr == ""
    wrong = everthread("config", "set", "compression.threshold", "7")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_a_search_on_a_new_home_finds_nothing(everthread: Any) -> None:
    for command in (["sessions", "search", "anything"], ["sessions", "list"]):
        assert everthread(*command).returncode == 0
