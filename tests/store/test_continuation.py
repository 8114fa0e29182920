"""A compaction continues a thread, in one step, once; it can be undone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal

import pytest

from everthread.errors import InputError, NothingToUndoError, UnknownIdError
from everthread.store.records import NewCompaction, NewMessage
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.store.messages import (
    append_texts,
    commit_compaction,
    compact_session,
    new_thread,
    new_user_message,
    numbered_thread,
    read_context,
    read_history,
    summary_message,
    texts_of,
    user_messages,
)
from tests.store.searching import search
from tests.store.tables import count_rows, transaction


async def test_compaction_continues_the_thread_in_a_new_session(
    store: Store, clock: SteppedClock
) -> None:
    old = await numbered_thread(
        store,
        8,
        title="T",
        platform="cli",
        user="ann",
        model="m",
        system="S",
    )
    before = await store.load_session(old)
    clock.now += 5
    continuation = await commit_compaction(store, old, late=user_messages("late"))
    new = continuation.session
    assert continuation.is_committed
    assert new == replace(
        before,
        id=new.id,
        kind="continuation",
        parent=old,
        started=clock.now,
        message_count=5,
    )
    assert await read_context(store, new.id) == "m1, summary, m7, m8, late"
    session = await store.load_session(old)
    assert session == replace(
        before,
        ended=clock.now,
        end_reason="compression",
        message_count=9,
    )
    assert await read_history(store, old) == "m1, m2, m3, m4, m5, m6, m7, m8, late"


async def test_the_tip_is_found_from_every_id(store: Store) -> None:
    thread = await numbered_thread(store, 4)
    ids = [thread]
    for _ in range(5):
        ids.append(await compact_session(store, ids[-1]))
        assert {await store.get_compression_tip(key) for key in ids} == {ids[-1]}
    [message, *_] = await store.list_messages(thread)
    branch = await store.branch(thread, message.id)
    agent = await new_thread(store, kind="subagent", parent=ids[-1])
    assert {await store.get_compression_tip(key) for key in ids} == {ids[-1]}, (
        "branches and subagents are other kinds"
    )
    assert await store.get_compression_tip(branch.id) == branch.id
    assert await store.get_compression_tip(agent) == agent
    sessions = await store.list_thread_sessions(ids[3])
    assert [s.id for s in sessions if s.is_live] == [ids[-1]]


async def test_the_system_prompt_may_be_rebuilt(store: Store) -> None:
    thread = await numbered_thread(store, 4, system="old")
    kept = [message.id for message in await store.list_messages(thread)]
    continuation = await store.continue_session(
        thread,
        kept,
        seen_count=4,
        system=[{"type": "text", "text": "new"}],
    )
    assert continuation.session.system == [{"type": "text", "text": "new"}]
    session = await store.load_session(thread)
    assert session.system == "old"


async def test_messages_that_arrive_meanwhile_are_in_the_continuation_once(
    store: Store,
) -> None:
    thread = await numbered_thread(store, 6)
    seen = await store.list_messages(thread)
    late = user_messages("late 1", "late 2")
    await store.append(thread, late)
    continuation = await store.continue_session(
        thread,
        [seen[0].id, summary_message(), seen[5].id],
        seen_count=6,
    )
    messages = await store.list_messages(continuation.session.id)
    assert texts_of(messages) == [
        "m1",
        "summary",
        "m6",
        "late 1",
        "late 2",
    ]
    await store.append(thread, [*late, new_user_message("after")])
    expected = "m1, m2, m3, m4, m5, m6, late 1, late 2, after"
    assert await read_history(store, thread) == expected
    assert await read_history(store, continuation.session.id) == expected


async def test_later_of_two_compactions_gets_the_tip_of_the_first(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    first = await compact_session(store, thread)
    third = await commit_compaction(store, first)
    second = await commit_compaction(store, thread)
    assert not second.is_committed
    assert second.session == third.session
    assert await read_history(store, thread) == "m1, m2, m3, m4, m5, m6"
    compactions = await store.list_compactions(thread)
    assert len(compactions) == 2


async def test_one_of_many_simultaneous_compactions_wins(store: Store, stores: list[Store]) -> None:
    thread = await numbered_thread(store, 6)
    made = await asyncio.gather(*(commit_compaction(one, thread) for one in stores * 3))
    assert sum(continuation.is_committed for continuation in made) == 1
    assert len({continuation.session.id for continuation in made}) == 1
    sessions = await store.list_thread_sessions(thread)
    assert len(sessions) == 2


async def test_a_continuation_that_fails_changes_nothing(store: Store) -> None:
    thread = await numbered_thread(store, 4)
    stranger = await new_thread(store, "stranger")
    before = await store.export(thread)
    [foreign] = await store.list_messages(stranger)
    [first, *_] = await store.list_messages(thread)
    attempts: tuple[tuple[list[int | NewMessage], int, type[Exception]], ...] = (
        ([foreign.id], 4, UnknownIdError),
        ([first.id, 10**9], 4, UnknownIdError),
        ([first.id, new_user_message("said, but never appended")], 4, InputError),
        ([first.id], 5, InputError),
        ([first.id], -1, InputError),
    )
    for compacted, seen, error in attempts:
        with pytest.raises(error):
            await store.continue_session(thread, compacted, seen_count=seen)
    assert await store.export(thread) == before


async def test_compaction_record_is_stored_unchanged(store: Store, clock: SteppedClock) -> None:
    thread = await numbered_thread(store, 4)
    ids = [message.id for message in await store.list_messages(thread)]
    record = NewCompaction(
        covered=ids[1:3],
        tokens_before=1000,
        tokens_after=300,
        summary="S\0",
        author="journal",
        figures={"facts": {"kept": 7}},
        warnings=["slow"],
        reason="threshold",
        focus="tests",
        duration=1.5,
        cost=Decimal("0.000000000125"),
    )
    continuation = await store.continue_session(
        thread,
        [ids[0], summary_message(), ids[3]],
        seen_count=4,
        compaction=record,
    )
    [stored] = await store.list_compactions(continuation.session.id)
    assert stored.thread == thread
    assert stored.parent == thread
    assert stored.session == continuation.session.id
    assert stored.created == clock.now
    assert stored.reverted_at is None
    assert stored.record == record
    clock.now += 3
    await store.undo(thread)
    [undone] = await store.list_compactions(thread)
    assert undone.reverted_at == clock.now


async def test_ended_thread_stays_ended_through_a_compaction(
    store: Store,
) -> None:
    thread = await numbered_thread(store, 6)
    await store.end_session(thread, "user")
    continuation = await commit_compaction(store, thread)
    assert continuation.session.end_reason == "user"
    undone = await store.undo(thread)
    assert undone.end_reason == "user"
    continuation = await commit_compaction(store, thread, late=user_messages("more"))
    assert continuation.session.is_live


async def test_undo_restores_the_parent_with_messages_added_since(
    store: Store, clock: SteppedClock
) -> None:
    thread = await numbered_thread(store, 6)
    tip = await compact_session(store, thread)
    await append_texts(store, thread, "after 1", "after 2")
    clock.now += 1
    undone = await store.undo(tip)
    assert undone.id == thread
    assert undone.is_live
    assert undone.end_reason is None
    reverted = await store.load_session(tip)
    assert reverted.kind == "reverted"
    assert reverted.ended == clock.now
    assert reverted.end_reason == "reverted"
    assert await store.get_compression_tip(tip) == thread
    everything = "m1, m2, m3, m4, m5, m6, after 1, after 2"
    assert await read_context(store, thread) == everything
    assert await read_history(store, tip) == everything
    again = await commit_compaction(store, thread)
    assert again.is_committed
    assert again.session.id != tip
    assert await store.get_compression_tip(tip) == again.session.id


async def test_undo_goes_back_step_by_step(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    first = await compact_session(store, thread)
    await append_texts(store, thread, "a")
    second = await compact_session(store, first)
    await append_texts(store, thread, "b")
    reopened = await store.undo(thread)
    assert reopened.id == first
    assert await read_context(store, thread) == "m1, summary, m5, m6, a, b"
    reopened = await store.undo(second)
    assert reopened.id == thread
    assert await read_context(store, thread) == "m1, m2, m3, m4, m5, m6, a, b"
    with pytest.raises(NothingToUndoError):
        await store.undo(thread)


async def test_two_undos_at_once_take_back_two_compactions_at_most(
    store: Store, stores: list[Store]
) -> None:
    thread = await numbered_thread(store, 6)
    first = await compact_session(store, thread)
    await compact_session(store, first)
    await asyncio.gather(*(one.undo(thread) for one in stores[:2]))
    assert await store.get_compression_tip(thread) == thread
    assert await read_history(store, thread) == "m1, m2, m3, m4, m5, m6"


SIZE_SQL = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    "postgresql": "SELECT SUM(pg_total_relation_size(relid)) FROM pg_stat_user_tables",
}


def stored_bytes(store: Store) -> int:
    """Return the size of everything stored, including indexes."""
    with transaction(store) as tx:
        return int(tx.value(SIZE_SQL[tx.dialect.name]))


async def test_continuation_needs_little_space(store: Store) -> None:
    """Messages are stored once: carrying a tail of 100 of 1,000 along costs less than a tenth of the thread's size."""
    empty = stored_bytes(store)
    thread = await new_thread(
        store, *(new_user_message(f"{number} " + "words " * 60) for number in range(1000))
    )
    await search(store, "words")  # indexed from here on
    before = stored_bytes(store)
    tip = await compact_session(
        store,
        thread,
        head=2,
        tail=100,
        words="summary " * 500,
    )
    added = stored_bytes(store) - before
    messages = await store.list_messages(tip)
    assert len(messages) == 103
    assert added < 0.1 * (before - empty)
    assert count_rows(store, "messages") == 1001
