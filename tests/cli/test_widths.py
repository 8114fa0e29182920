"""Tables fit the terminal: at 60, 80 and 120 columns no line is wider, and no figure loses digits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tests.cli.test_usage import store_month
from tests.lab.recorded_histories import make_history

WIDTHS = (60, 80, 120)
TERMINAL = {"FORCE_COLOR": "1", "PAGER": "cat"}
"""Environment that makes the command write as to a terminal."""


def check_width(answer: Any, columns: int) -> str:
    assert answer.returncode == 0, answer.stderr
    shown = re.sub(r"\x1b\[[0-9;]*m", "", answer.stdout)
    wide = [line for line in shown.splitlines() if cell_len(line.rstrip()) > columns]
    assert not wide, wide
    return shown


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_of_the_store_fit_the_terminal(
    everthread: Any, fill: Any, columns: int
) -> None:
    fill(store_month)
    everthread(
        "keys",
        "create",
        "--name",
        "a key with a long name for the build server",
        "--tenant",
        "two",
    )
    for command in (
        ["sessions", "list"],
        ["sessions", "list", "--all"],
        ["usage"],
        ["usage", "thread", "--calls"],
        ["insights"],
        ["keys", "list"],
        ["plugins"],
    ):
        shown = everthread(*command, columns=columns, env=TERMINAL)
        if command != ["plugins"]:
            check_width(shown, columns)
    assert "$0.2500" in check_width(
        everthread("usage", "thread", "--calls", columns=columns, env=TERMINAL), columns
    )


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_of_a_file_fit_the_terminal(
    everthread: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "talk.json"
    file.write_text(
        json.dumps({"model": "claude-sonnet-4-5", "messages": make_history(6)}), "utf-8"
    )
    for command in (["tokens"], ["inspect"], ["compress", "--window", "4000"]):
        assert check_width(
            everthread(
                command[0], "talk.json", *command[1:], columns=columns, env=TERMINAL
            ),
            columns,
        )


def test_titles_come_first_and_uniform_columns_are_left_out(
    everthread: Any, fill: Any
) -> None:
    fill(store_month)
    head = next(
        line
        for line in everthread("sessions", "list").stdout.splitlines()
        if "last used" in line
    )
    assert head.split()[0] == "title"
    assert "kind" not in head or "subagent" in everthread("sessions", "list").stdout
