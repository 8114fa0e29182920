"""Help and JSON of all commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from everthread.cli.main import COMMANDS, load_command
from tests.cli.conftest import Command
from tests.cli.conversation_files import OPENAI, write


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_values_and_not_their_types(command: str, everthread: Command) -> None:
    subcommands = getattr(load_command(command), "commands", {})
    for words in (command, *(f"{command} {name}" for name in subcommands)):
        output = everthread(f"{words} --help").stdout
        assert not re.search(r"<[a-z\[\]| ]+>", output), words


def test_json_is_an_object_for_every_command(everthread: Command, tmp_path: Path) -> None:
    talk = write(tmp_path / "talk.json", OPENAI)
    for command in (
        "keys list",
        "sessions list",
        "sessions search x",
        "models list",
        "plugins",
        "usage",
        "insights",
        f"tokens {talk}",
        f"inspect {talk}",
        f"compress {talk}",
        "config show",
    ):
        result = everthread(f"{command} --json")
        assert isinstance(json.loads(result.stdout), dict), command


def test_help_names_an_option_and_its_value(everthread: Command) -> None:
    assert "--focus               FOCUS" in everthread("compress --help").stdout


def test_prints_help_and_version(everthread: Command) -> None:
    assert everthread("--version").stdout.startswith("everthread 0.")
    assert "tokens" in everthread("--help").stdout
    assert everthread("tokens --help").returncode == 0
    assert everthread("nonsense").returncode == 2


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("serve", ["managed", "observe", "off", "keys", "passthrough", "none"]),
        ("keys create", ["managed", "observe", "off"]),
    ],
)
def test_help_names_the_allowed_values(
    everthread: Command, command: str, values: list[str]
) -> None:
    output = everthread(f"{command} --help").stdout
    for value in values:
        assert f"`{value}`" in output
