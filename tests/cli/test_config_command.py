"""`everthread config`: checks, also of settings that would fail at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command, configure


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
    everthread: Command, home: Path, text: str, words: str
) -> None:
    configure(home, text)
    error = everthread.refuses("config check")
    assert "would fail at start" in error
    assert words in error


def test_shows_checks_and_locates_the_configuration(everthread: Command, home: Path) -> None:
    config_file = home / "config.yaml"
    assert everthread("config path").stdout.strip() == str(config_file)
    assert "not there, using defaults" in everthread("config check").stdout
    configure(home, "compression: {threshold: 0.6}")
    assert "fine" in everthread("config check").stdout
    changed_settings = everthread("config show --changed").stdout
    assert changed_settings == "compression:\n  threshold: 0.6\n"
    assert everthread.json("config show")["compression"]["threshold"] == 0.6


def test_a_key_is_set_if_it_is_valid(everthread: Command) -> None:
    assert everthread("config set compression.threshold 0.4").returncode == 0
    assert everthread("config check").stderr == ""
    result = everthread("config set compression.threshold 7")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)


def test_one_value_of_the_configuration(everthread: Command) -> None:
    assert everthread("config get compression.threshold").stdout == "0.5\n"
    assert "threshold: 0.5" in everthread("config get compression").stdout
    assert everthread.json("config get gateway.upstreams") == []
    assert "known here: enabled, threshold" in everthread.refuses("config get compression.nope")


def test_a_setting_that_cannot_work_is_refused_or_named(everthread: Command, home: Path) -> None:
    assert "there is no context engine 'nope'" in everthread.refuses(
        "config set context.engine nope"
    )
    assert not (home / "config.yaml").exists()
    everthread("config set gateway.auth none")
    result = everthread("config set gateway.host 0.0.0.0")
    assert result.returncode == 0
    assert "Needs attention: gateway.host" in result.stderr
