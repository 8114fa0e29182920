"""`everthread sessions list`."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from everthread.store.records import NewSession
from everthread.store.store import Store
from tests.cli.conftest import Command, RunOnStore
from tests.cli.sessions.conftest import StoreSessions
from tests.cli.sessions.stored_thread import StoredThread, text_message


def test_each_thread_is_one_line(everthread: Command, thread: StoredThread) -> None:
    output = everthread("sessions list").stdout
    ids = (thread.id[:8], thread.branch[:8], thread.subagent[:8])
    lines = {key: line for key in ids for line in output.splitlines() if f" {key} " in line}
    assert set(lines) == set(ids)
    assert f" {thread.tip[:8]} " not in output
    assert "state" not in output, "every thread is live"
    for words in (
        "just now",
        "main",
        "6",
        "claude-sonnet-4-5",
        "Repair the parser in src/app/main.py",
    ):
        assert words in lines[thread.id[:8]]
    assert "branch" in lines[thread.branch[:8]]
    assert "Use another way." in lines[thread.branch[:8]]
    assert "Look for dead code." in lines[thread.subagent[:8]]


def test_all_shows_continuations_and_reverted_sessions(
    everthread: Command, thread: StoredThread
) -> None:
    report = everthread.json("sessions list --all")["sessions"]
    kinds = {session["id"]: (session["kind"], session["state"]) for session in report}
    assert kinds == {
        thread.id: ("main", "ended (compression)"),
        thread.tip: ("continuation", "live"),
        thread.reverted: ("reverted", "ended (reverted)"),
        thread.branch: ("branch", "live"),
        thread.subagent: ("subagent", "live"),
    }


def test_pages_begin_with_the_newest(everthread: Command, store_sessions: StoreSessions) -> None:
    store_sessions(
        *(
            NewSession(
                id=f"s{n:02}",
                title=f"number {n}",
                started=1_000.0 + n,
            )
            for n in range(25)
        )
    )
    page = everthread.json("sessions list --limit 3 --offset 2")
    assert [session["id"] for session in page["sessions"]] == ["s22", "s21", "s20"]
    assert page["more"] is True
    assert datetime.fromisoformat(page["sessions"][0]["started"]).timestamp() == 1_022.0
    output = everthread("sessions list").stdout
    assert "number 24" in output
    assert "number 4 " not in output
    assert "--offset 20" in output
    assert "--offset" not in everthread("sessions list --offset 20").stdout


def test_a_used_thread_moves_to_the_top(everthread: Command, run_on_store: RunOnStore) -> None:
    async def work(store: Store) -> None:
        await store.create_session(NewSession(id="old", started=1_000.0))
        await store.create_session(NewSession(id="young", started=2_000.0))
        await store.append("old", [text_message("user", "one"), text_message("assistant", "two")])
        await store.continue_session("old", [], seen_count=2)

    run_on_store(work)
    report = everthread.json("sessions list")["sessions"]
    assert [session["id"] for session in report] == ["old", "young"]
    assert [(row["messages"], row["tokens"], row["compactions"]) for row in report] == [
        (2, 14, 1),
        (0, 0, 0),
    ]
    output = everthread("sessions list").stdout
    assert re.search(r"one +old +just now +2 +14 +1\b", output)


def test_tenant_narrows_the_list(everthread: Command, store_sessions: StoreSessions) -> None:
    store_sessions(NewSession(id="a", tenant="one"), NewSession(id="b", tenant="two"))
    assert [s["id"] for s in everthread.json("sessions list --tenant two")["sessions"]] == ["b"]


def test_reports_an_empty_store(everthread: Command) -> None:
    result = everthread("sessions list")
    assert (result.returncode, result.stdout) == (0, "no sessions yet\n")
    assert everthread.json("sessions list") == {
        "sessions": [],
        "offset": 0,
        "more": False,
    }


def test_store_names_another_store(
    everthread: Command, store_sessions: StoreSessions, tmp_path: Path
) -> None:
    store_sessions(NewSession(id="elsewhere"), url=tmp_path / "other.db")
    for url in (str(tmp_path / "other.db"), f"sqlite:///{tmp_path / 'other.db'}"):
        assert "elsewhere" in everthread(f"sessions list --store {url}").stdout
    assert "elsewhere" not in everthread("sessions list").stdout
