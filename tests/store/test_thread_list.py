"""Lists of threads: the last used first, with counts of their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everthread.factory import open_store
from everthread.store.records import NewMessage, NewSession, ThreadRow
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.store.messages import (
    compact_session,
    new_thread,
    new_user_message,
    summary_message,
    user_messages,
)
from tests.store.tables import execute


async def list_ids(store: Store, **bounds: Any) -> list[str]:
    rows = await store.list_threads(**bounds)
    return [row.first.id for row in rows]


async def row_of(store: Store, thread: str) -> ThreadRow:
    rows = await store.list_threads()
    [row] = [row for row in rows if row.first.id == thread]
    return row


def counts(row: ThreadRow) -> tuple[int, int, int]:
    """Return the number of messages, tokens and compactions."""
    return row.message_count, row.token_count, row.compaction_count


def messages_of_tokens(*tokens: int | None) -> list[NewMessage]:
    return [new_user_message(f"of {count}", tokens=count) for count in tokens]


async def test_lists_the_last_used_threads_first_in_pages(
    store: Store, clock: SteppedClock
) -> None:
    for number in range(7):
        clock.now += 1
        await new_thread(store, id=f"t{number}", tenant="ab"[number % 2])
    clock.now += 1
    await store.append("t2", user_messages("again"))
    assert await list_ids(store) == ["t2", "t6", "t5", "t4", "t3", "t1", "t0"]
    assert await list_ids(store, limit=3, offset=2) == ["t5", "t4", "t3"]
    assert await list_ids(store, tenant="a") == ["t2", "t6", "t4", "t0"]
    assert await list_ids(store, tenant="b", limit=2, offset=1) == ["t3", "t1"]
    assert await list_ids(store, tenant="c") == []
    assert await list_ids(store, offset=7) == []


async def test_threads_used_at_the_same_moment_keep_their_order(store: Store) -> None:
    for name in ("b", "c", "a"):
        await new_thread(store, "x", id=name)
    assert await list_ids(store) == ["c", "b", "a"]
    for offset, name in enumerate(("c", "b", "a")):
        assert await list_ids(store, limit=1, offset=offset) == [name]


async def test_messages_count_once_through_compactions_and_undos(
    store: Store, clock: SteppedClock
) -> None:
    thread = await new_thread(store, *messages_of_tokens(1, 2, 4, None, 8))
    assert counts(await row_of(store, thread)) == (5, 15, 0)
    start = clock.now
    clock.now += 10
    tip = await compact_session(store, thread)
    row = await row_of(store, thread)
    assert counts(row) == (5, 15, 1)
    assert row.tip.id == tip
    assert row.first.id == thread
    assert row.last_active == start, "a compaction does not count as activity"
    await store.append(thread, messages_of_tokens(16))
    await compact_session(store, tip, late=messages_of_tokens(32))
    assert counts(await row_of(store, thread)) == (7, 63, 2)
    await store.undo(thread)
    row = await row_of(store, thread)
    assert counts(row) == (7, 63, 1)
    assert row.tip.id == tip
    assert row.last_active == clock.now
    await store.undo(thread)
    assert counts(await row_of(store, thread)) == (7, 63, 0)
    history = await store.load_history(thread)
    assert len(history) == 7


async def test_only_history_messages_count(store: Store, clock: SteppedClock) -> None:
    thread = await new_thread(store, *messages_of_tokens(5))
    start = clock.now
    clock.now += 10
    await store.append(
        thread,
        [
            summary_message("not said"),
            new_user_message("smaller", kind="derived", tokens=1),
        ],
    )
    row = await row_of(store, thread)
    assert counts(row) == (1, 5, 0)
    assert row.last_active == start


async def test_a_branch_counts_what_it_shares(store: Store, clock: SteppedClock) -> None:
    thread = await new_thread(store, *messages_of_tokens(1, 2, 4, 8, 16, 32))
    await compact_session(store, thread)
    shared = await store.load_history(thread)
    clock.now += 10
    early = await store.branch(thread, shared[2].id)
    late = await store.branch(thread, shared[5].id)
    await store.append(late.id, messages_of_tokens(64))
    assert counts(await row_of(store, early.id)) == (3, 7, 0)
    row = await row_of(store, late.id)
    assert counts(row) == (7, 127, 0)
    assert row.first.kind == "branch"
    assert row.last_active == clock.now
    await store.delete_thread(thread)
    assert counts(await row_of(store, late.id)) == (7, 127, 0)


async def test_an_imported_thread_has_the_same_row_in_the_list(
    store: Store, other_store: Store, clock: SteppedClock
) -> None:
    thread = await new_thread(store, *messages_of_tokens(1, 2, 4, 8))
    clock.now += 5
    await compact_session(store, thread)
    await store.append(thread, messages_of_tokens(16))
    clock.now += 100
    await other_store.import_lines(await store.export(thread))
    exported_row = await row_of(store, thread)
    imported_row = await row_of(other_store, thread)
    assert imported_row == exported_row


async def test_check_reports_wrong_counts(kind: str, new_url: Callable[..., str]) -> None:
    url = new_url(kind)
    store = open_store(url)
    await store.create_session(NewSession(id="s"))
    execute(url, "UPDATE sessions SET message_count = 3")
    health = await store.check()
    assert health.problems == ("1 thread(s) are listed with wrong counts",)
    await store.close()
