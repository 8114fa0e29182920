"""Tables fit the terminal: at 60, 80 and 120 columns no line is wider, and no figure loses digits."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from tests.cli.conftest import Command, CommandResult, RunOnStore
from tests.cli.test_usage import store_month
from tests.lab.recorded_histories import make_history

WIDTHS = (60, 80, 120)
TERMINAL = {"FORCE_COLOR": "1", "PAGER": "cat"}
"""Environment that makes the command write as to a terminal."""


def assert_width(result: CommandResult, columns: int) -> str:
    """Return the output without colours; fail if a line is wider than the terminal."""
    assert result.returncode == 0, result.stderr
    output = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)
    wide_lines = [line for line in output.splitlines() if cell_len(line.rstrip()) > columns]
    assert not wide_lines, wide_lines
    return output


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_of_the_store_fit_the_terminal(
    everthread: Command, run_on_store: RunOnStore, columns: int
) -> None:
    run_on_store(store_month)
    everthread("keys create --name 'a key with a long name for the build server' --tenant two")
    for command in ("sessions list", "sessions list --all", "usage", "insights", "keys list"):
        result = everthread(command, columns=columns, env=TERMINAL)
        assert_width(result, columns)
    result = everthread("usage thread --calls", columns=columns, env=TERMINAL)
    assert "$0.2500" in assert_width(result, columns)


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_of_a_file_fit_the_terminal(
    everthread: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "talk.json"
    file.write_text(
        json.dumps({"model": "claude-sonnet-4-5", "messages": make_history(6)}), "utf-8"
    )
    for command in ("tokens", "inspect", "compress --window 4000"):
        result = everthread(f"{command} talk.json", columns=columns, env=TERMINAL)
        assert assert_width(result, columns)


def test_plugins_list_is_the_same_as_plugins(everthread: Command) -> None:
    assert everthread("plugins list").stdout == everthread("plugins").stdout
    assert everthread.json("plugins list")["active"] == "compressor"


TITLE = "A long title of a thread that does not fit into a narrow terminal beside its figures"


def create_threads(*sessions: NewSession) -> Callable[[Store], Awaitable[None]]:
    async def work(store: Store) -> None:
        for session in sessions:
            await store.create_session(session)
            await store.append(session.id, [NewMessage({"role": "user", "content": "Hi"})])

    return work


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_thread_is_one_line_at_any_width(
    everthread: Command, run_on_store: RunOnStore, columns: int
) -> None:
    run_on_store(create_threads(*(NewSession(title=f"{number} {TITLE}") for number in range(3))))
    result = everthread("sessions list", columns=columns, env=TERMINAL)
    lines = assert_width(result, columns).splitlines()
    assert [line.split()[0] for line in lines if TITLE[:8] in line] == ["2", "1", "0"]


def test_the_columns_do_not_depend_on_the_threads(
    everthread: Command, run_on_store: RunOnStore
) -> None:
    run_on_store(create_threads(NewSession(title="one")))
    before = everthread("sessions list", columns=120).stdout.splitlines()[2].split()
    run_on_store(create_threads(NewSession(title="two", kind="subagent")))
    after = everthread("sessions list", columns=120).stdout.splitlines()[2].split()
    columns = "title id last used messages tokens compactions kind model"
    assert before == columns.split()
    assert after == before


def test_a_tree_on_a_pipe_is_not_cut(everthread: Command, run_on_store: RunOnStore) -> None:
    run_on_store(create_threads(NewSession(id="long", title=TITLE)))
    assert f"thread long  {TITLE}" in everthread("sessions tree long", columns=40).stdout


def test_paths_are_shortened_from_the_left(everthread: Command, home: Path) -> None:
    engine = home / "plugins" / "context_engine" / "mine"
    engine.mkdir(parents=True)
    (engine / "__init__.py").write_text("def create(services, options): ...\n", "utf-8")
    lines = everthread("plugins", columns=60).stdout.splitlines()
    line = next(line for line in lines if line.startswith("  mine"))
    assert len(line) <= 60
    assert line.endswith("context_engine/mine")
    assert "…" in line
