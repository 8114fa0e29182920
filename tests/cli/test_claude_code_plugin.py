"""The script with which the plug-in for Claude Code runs Everthread."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "plugins/claude-code/bin/run-everthread"
SYSTEM_PATH = "/usr/bin:/bin"


def run_script(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, "hook", "claude-code"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that print their name and arguments: `everthread`, `another` and `uvx`."""
    for name in ("everthread", "another", "uvx"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n', "utf-8")
        program.chmod(0o755)
    return tmp_path


def test_the_command_on_the_path_is_used(programs: Path) -> None:
    result = run_script(PATH=f"{programs}:{SYSTEM_PATH}")
    assert result.stdout == "everthread hook claude-code\n"


def test_a_command_that_is_named_wins(programs: Path) -> None:
    command = f"{programs}/another --quiet"
    result = run_script(PATH=f"{programs}:{SYSTEM_PATH}", EVERTHREAD_COMMAND=command)
    assert result.stdout == "another --quiet hook claude-code\n"


def test_a_missing_command_is_reported_with_how_to_install_it(programs: Path) -> None:
    (programs / "everthread").unlink()
    result = run_script(PATH=f"{programs}:{SYSTEM_PATH}")
    assert (result.returncode, result.stdout) == (1, "")
    assert "there is no command `everthread` on the PATH" in result.stderr
    assert "git clone https://github.com/everthread/everthread" in result.stderr
    assert "uv tool install './everthread[mcp]'" in result.stderr
