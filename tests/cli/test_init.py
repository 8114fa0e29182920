"""`everthread init`: the first configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.config import load_config
from tests.cli.conftest import Command, RunAtTerminal, configure


def test_options_answer_every_question(everthread: Command, home: Path) -> None:
    configure(home, "# mine\ncompression: {threshold: 0.4}  # early\n")
    everthread.succeeds(
        "init --provider custom --base-url http://127.0.0.1:9/v1 --model llama",
        "--api-key-env MY_KEY --gateway --no-check",
    )
    read = load_config(home / "config.yaml")
    assert (read.model.default, read.model.provider, read.model.api_key_env) == (
        "llama",
        "custom",
        "MY_KEY",
    )
    assert [(one.name, one.url) for one in read.gateway.upstreams] == [
        ("custom", "http://127.0.0.1:9/v1")
    ]
    assert read.compression.threshold == 0.4
    assert "# mine" in (home / "config.yaml").read_text("utf-8")


def test_another_provider_keeps_no_setting_of_the_previous_one(
    everthread: Command, home: Path
) -> None:
    configure(
        home,
        "model: {default: llama, provider: custom, base_url: 'http://127.0.0.1:9/v1', "
        "api_key_env: MY_KEY, context_length: 9000}\n",
    )
    everthread.succeeds("init --provider openai --no-check")
    read = load_config(home / "config.yaml").model
    assert (read.provider, read.default) == ("openai", "gpt-5")
    assert (read.base_url, read.api_key_env, read.context_length) == (None, None, None)


def test_a_key_in_the_environment_is_enough(everthread: Command, home: Path) -> None:
    everthread.succeeds("init --no-check", env={"ANTHROPIC_API_KEY": "sk-x"})
    read = load_config(home / "config.yaml").model
    assert (read.provider, read.default, read.api_key_env) == (
        "anthropic",
        "claude-sonnet-4-5",
        None,
    )
    assert "sk-x" not in (home / "config.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "--provider is needed"),
        ("--provider nobody", "use one of: openai, anthropic"),
        ("--provider custom --model x", "--base-url is needed"),
        ("--provider custom --base-url nonsense --model x", "http://"),
    ],
)
def test_missing_or_bad_options_are_one_line(
    everthread: Command, home: Path, arguments: str, words: str
) -> None:
    assert words in everthread.refuses(f"init --no-check {arguments}")
    assert not (home / "config.yaml").exists()


def test_a_custom_server_needs_no_key(at_terminal: RunAtTerminal, home: Path) -> None:
    code, screen = at_terminal(
        "init --no-check", typed=b"custom\nhttp://localhost:8000/v1\nqwen3\n\nn\n"
    )
    assert code == 0, screen
    assert "holds its key? [none]" in screen
    assert load_config(home / "config.yaml").model.api_key_env is None


def test_missing_options_are_asked_for_at_a_terminal(
    at_terminal: RunAtTerminal, home: Path
) -> None:
    code, screen = at_terminal("init --no-check", typed=b"openai\n\nMY_KEY\ny\n")
    assert code == 0, screen
    assert "Who serves the model" in screen
    read = load_config(home / "config.yaml")
    assert (read.model.default, read.model.api_key_env) == ("gpt-5", "MY_KEY")
    assert read.gateway.upstreams[0].name == "openai"
