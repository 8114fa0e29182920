"""Commands that need a package of an extra name the command that installs it; the others do without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import configure, environment

ABSENT = ("openai", "anthropic", "prompt_toolkit", "mcp", "xllamacpp", "psycopg")
BARE = (
    f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))\n"
    "sys.argv[0] = 'everthread'\n"
    "from everthread.cli.main import main; main()"
)
MODELS = "pip install 'everthread[models]'"
AUXILIARY = "auxiliary: {compression: {model: claude-haiku-4-5}}\n"


def run_bare(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that finds no package of an extra."""
    keys = {"OPENAI_API_KEY": "sk-x", "ANTHROPIC_API_KEY": "sk-y"}
    return subprocess.run(
        [sys.executable, "-c", BARE, *arguments],
        env={
            **environment(home),
            "HOME": str(home),
            **keys,
        },
        input="",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["chat"], MODELS),
        (["run", "hello"], MODELS),
        (["run", "--model", "claude-haiku-4-5", "hello"], MODELS),
        (["mcp"], "pip install 'everthread[mcp]'"),
    ],
)
def test_a_missing_package_is_one_line_with_the_command_that_installs_it(
    home: Path, arguments: list[str], command: str
) -> None:
    result = run_bare(home, *arguments)
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.endswith(command)


def test_serve_refuses_an_auxiliary_model_that_it_could_not_call(home: Path) -> None:
    configure(home, AUXILIARY)
    result = run_bare(home, "serve", "--port", "0")
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line == f"everthread: anthropic is not installed. Install it with: {MODELS}"


@pytest.mark.parametrize("name", ["init", "doctor"])
def test_set_up_names_the_command_beside_the_model(home: Path, name: str) -> None:
    options = ["--provider", "openai", "--model", "gpt-5"] if name == "init" else []
    result = run_bare(home, name, *options)
    assert result.returncode == 1
    assert "openai is not installed" in result.stdout
    assert f"→ {MODELS}" in result.stdout
    assert result.stderr == ""


def test_own_sessions_need_no_extra(home: Path) -> None:
    session = Path("examples/long_session.json").resolve()
    ran = run_bare(home, "replay", str(session), "--json")
    assert ran.returncode == 0, ran.stderr
