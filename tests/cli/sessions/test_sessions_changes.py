"""`everthread sessions undo` and `delete`; ids and stores that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everthread.store.records import NewSession
from tests.cli.conftest import Command, RunAtTerminal
from tests.cli.sessions.conftest import StoreSessions
from tests.cli.sessions.stored_thread import StoredThread


class TestUndo:
    def test_undo_restores_every_message(self, everthread: Command, thread: StoredThread) -> None:
        result = everthread(f"sessions undo {thread.tip[:12]}")
        assert (
            f"thread {thread.id[:8]} continues in session {thread.id[:8]}, with 6 messages"
            in result.stdout
        )
        report = everthread.json(f"sessions show {thread.id} --context")
        assert [message["id"] for message in report["messages"]] == thread.ids

    def test_refuses_to_undo_without_a_compaction(
        self, everthread: Command, thread: StoredThread
    ) -> None:
        assert everthread.json(f"sessions undo {thread.id}")["messages"] == 6
        result = everthread(f"sessions undo {thread.id}")
        assert result.returncode == 1
        assert "no compaction" in result.stderr


def is_deleted(everthread: Command, session: str) -> bool:
    return bool(everthread(f"sessions show {session}").returncode == 2)


class TestDelete:
    def test_without_a_terminal_delete_needs_yes(
        self, everthread: Command, thread: StoredThread
    ) -> None:
        assert "--yes" in everthread.refuses(f"sessions delete {thread.id}", stdin=b"y\n")
        assert not is_deleted(everthread, thread.id)
        assert "1 subagent thread (" in everthread(f"sessions delete {thread.tip} --yes").stdout
        assert is_deleted(everthread, thread.id)
        assert is_deleted(everthread, thread.subagent)
        assert "Repair the parser" in everthread(f"sessions show {thread.branch}").stdout

    def test_delete_asks_at_a_terminal(
        self, everthread: Command, at_terminal: RunAtTerminal, thread: StoredThread
    ) -> None:
        code, screen = at_terminal(f"sessions delete {thread.id[:12]}", typed=b"n\n")
        assert code == 1
        assert f"Delete thread {thread.id[:8]}" in screen
        assert "nothing was deleted" in screen
        assert not is_deleted(everthread, thread.id)
        assert at_terminal(f"sessions delete {thread.id}", typed=b"y\n")[0] == 0
        assert is_deleted(everthread, thread.id)

    def test_prints_a_deletion_as_json(self, everthread: Command, thread: StoredThread) -> None:
        result = everthread(f"sessions delete {thread.id} --yes --json")
        assert json.loads(result.stdout) == {"thread": thread.id, "sessions": 4}


@pytest.mark.parametrize("command", ["show", "tree", "export", "undo", "delete"])
def test_an_id_that_names_none_or_several_is_refused(
    everthread: Command, store_sessions: StoreSessions, command: str
) -> None:
    store_sessions(
        NewSession(id="abc1"),
        NewSession(id="abc2"),
        NewSession(id="other", tenant="two"),
    )
    for prefix, words in (
        ("zzz", "begins with 'zzz'"),
        ("abc", "give more of the id"),
        ("", "begins with ''"),
    ):
        error = everthread.refuses(f"sessions {command} -- '{prefix}'")
        assert words in error
        assert error.count("\n") == 1
    assert everthread(f"sessions {command} --tenant one other").returncode == 2


def test_an_id_that_is_not_valid_text_is_refused(everthread: Command) -> None:
    assert "Traceback" not in everthread.refuses("sessions show \udcff\udcfe")


@pytest.mark.parametrize("url", ["ftp://x", "mysql://user@host/db"])
def test_an_unknown_store_url_is_refused(everthread: Command, url: str) -> None:
    assert everthread.refuses(f"sessions list --store {url}").count("\n") == 1


def test_a_file_that_is_not_a_store_is_refused(everthread: Command, tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    file.write_bytes(b"this is not a database at all" * 100)
    result = everthread(f"sessions list --store {file}")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert file.read_bytes() == b"this is not a database at all" * 100
