"""A deleted thread is gone, with everything that belongs to it alone."""

from __future__ import annotations

import asyncio

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.tool_outputs import output_id
from everthread.errors import UnknownIdError
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage
from tests.store.messages import (
    append_texts,
    commit_compaction,
    compact_session,
    new_thread,
    new_user_message,
    numbered_messages,
    numbered_thread,
    read_context,
    read_history,
    user_messages,
)
from tests.store.searching import search
from tests.store.tables import count_rows

TABLES = (
    "sessions",
    "messages",
    "places",
    "compactions",
    "texts",
    "outputs",
    "citations",
    "nodes",
    "leases",
    "state",
    "chunks",
    "unindexed",
    "search",
)


def count_all_rows(store: Store) -> dict[str, int]:
    """Count the rows of everything a thread can own."""
    return {table: count_rows(store, table) for table in TABLES}


async def full_thread(store: Store, word: str) -> str:
    """Create a thread with something of every kind, all of it containing a unique word."""
    thread = await new_thread(store, *numbered_messages(1, 6, word), system=f"prompt {word}")
    await compact_session(store, thread, words=f"summary of {word}")
    await store.undo(thread)
    await compact_session(store, thread)
    await append_texts(store, thread, f"{word} after")
    await store.outputs.put_output(
        thread,
        f"output of {word}",
        call_id="c",
        tool="t",
    )
    await store.usage.record_usage(NewUsage(thread, "model", CanonicalUsage(input_tokens=5)))
    await store.state.put_state(thread, "engine", {"word": word})
    agent = await new_thread(
        store,
        f"{word} agent",
        kind="subagent",
        parent=thread,
    )
    inner = await new_thread(
        store,
        f"{word} inner",
        kind="subagent",
        parent=agent,
    )
    await store.outputs.put_output(inner, f"inner output of {word}")
    assert await store.leases.acquire_lease(thread, "me", 10)
    return thread


async def found_threads(store: Store, text: str) -> set[str]:
    return {hit.thread for hit in await search(store, text, limit=100)}


async def test_deletion_removes_everything_except_usage(store: Store) -> None:
    before = count_all_rows(store)
    keep = await full_thread(store, "banana")
    with_keep = count_all_rows(store)
    gone = await full_thread(store, "apple")
    assert await found_threads(store, "apple*")
    assert await store.delete_thread(gone) == 5, (
        "three sessions, a subagent, and the subagent's own"
    )
    assert await found_threads(store, "apple*") == set()
    assert await found_threads(store, "banana*")
    assert {
        **count_all_rows(store),
        "search": 0,
        "chunks": 0,
        "unindexed": 0,
    } == {
        **with_keep,
        "search": 0,
        "chunks": 0,
        "unindexed": 0,
    }
    for call in (
        store.load_session(gone),
        store.load_history(gone),
        store.delete_thread(gone),
        store.outputs.list_outputs(gone),
    ):
        with pytest.raises(UnknownIdError):
            await call
    with pytest.raises(UnknownIdError):
        await store.outputs.load_output(output_id("output of apple"))
    account = await store.usage.load_insights(since=0, until=1e12)
    assert account.total.calls == 2, "what it cost stays in the accounts"
    await store.delete_thread(keep)
    assert count_all_rows(store) == before


async def test_a_branch_keeps_shared_history_in_reading_and_search(
    store: Store,
) -> None:
    thread = await new_thread(
        store, *(new_user_message(f"word{n} shared") for n in range(1, 9)), system="S"
    )
    await compact_session(store, thread)
    await append_texts(store, thread, "word9 shared", "word10 later")
    messages = await store.load_history(thread)
    one = await store.branch(thread, messages[8].id)
    two = await store.branch(one.id, messages[3].id)
    sibling = await store.branch(thread, messages[1].id)
    histories = {}
    contexts = {}
    for thread_id in (one.id, two.id, sibling.id):
        histories[thread_id] = await read_history(store, thread_id)
        contexts[thread_id] = await read_context(store, thread_id)
    await store.delete_thread(thread)
    for key in (one.id, two.id, sibling.id):
        assert await read_history(store, key) == histories[key]
        assert await read_context(store, key) == contexts[key]
        assert {h.message for h in await search(store, "shared", thread=key, limit=50)} == {
            message.id for message in await store.load_history(key)
        }
    session = await store.load_session(one.id)
    assert session.system == "S"
    assert await found_threads(store, "later") == set()
    assert await found_threads(store, "shared") <= {one.id, two.id, sibling.id}
    await append_texts(store, two.id, "goes on")
    await store.delete_thread(one.id)
    assert await read_history(store, two.id) == f"{histories[two.id]}, goes on"
    assert await found_threads(store, "word3") == {two.id}
    assert await found_threads(store, "word8") == set()
    await store.delete_thread(sibling.id)
    await store.delete_thread(two.id)
    assert count_rows(store, "messages") == 0


async def test_a_branch_that_used_the_same_event_loses_nothing(store: Store) -> None:
    thread = await new_thread(store, new_user_message("first", event="e"), *user_messages("second"))
    branch = await store.branch(thread, (await store.list_messages(thread))[1].id)
    await store.append(branch.id, [new_user_message("mine", event="e")])
    await store.delete_thread(thread)
    assert await read_history(store, branch.id) == "first, second, mine"
    await store.append(branch.id, [new_user_message("mine", event="e")])
    assert await read_history(store, branch.id) == "first, second, mine"


async def test_output_is_deleted_with_the_last_thread_that_cites_it(
    store: Store,
) -> None:
    one = await new_thread(store)
    two = await new_thread(store)
    key = (await store.outputs.put_output(one, "the same unusual output")).id
    await store.outputs.put_output(two, "the same unusual output")
    await search(store, "unusual")
    await store.delete_thread(one)
    assert await store.outputs.load_output(key) == "the same unusual output"
    assert await found_threads(store, "unusual") == {two}
    await store.delete_thread(two)
    with pytest.raises(UnknownIdError):
        await store.outputs.load_output(key)
    assert await found_threads(store, "unusual") == set()


async def test_a_branch_cites_the_outputs_its_shared_messages_cite(
    store: Store,
    thread: str,
) -> None:
    early = "early log " * 9
    late = "late log " * 9
    for text in (early, late):
        stored = await store.outputs.put_output(thread, text, call_id="c", tool="run")
        await append_texts(store, thread, f"see {stored.id} for it")
    branch = await store.branch(thread, (await store.list_messages(thread))[0].id)
    outputs = await store.outputs.list_outputs(branch.id)
    assert [stored.id for stored in outputs] == [output_id(early)]
    await store.delete_thread(thread)
    assert await store.outputs.load_output(output_id(early)) == early
    with pytest.raises(UnknownIdError):
        await store.outputs.load_output(output_id(late))
    assert await found_threads(store, "early") == {branch.id}


async def test_a_thread_is_deleted_while_others_write_to_it(
    store: Store, stores: list[Store]
) -> None:
    """Late writers get an error; nothing is left half-deleted."""
    others = stores[1:3]
    for _ in range(12):
        thread = await numbered_thread(store, 6, system="the only prompt")
        messages = await store.list_messages(thread)
        fresh = NewSession(system="the only prompt")
        results = await asyncio.gather(
            store.delete_thread(thread),
            *(append_texts(other, thread, "more") for other in others),
            others[0].branch(thread, messages[3].id),
            others[1].outputs.put_output(thread, "an output"),
            others[0].create_session(fresh),
            commit_compaction(others[1], thread),
            others[1].create_session(NewSession(kind="subagent", parent=thread)),
            return_exceptions=True,
        )
        assert all(
            isinstance(each, UnknownIdError) for each in results if isinstance(each, BaseException)
        ), results
        session = await store.load_session(fresh.id)
        assert session.system == "the only prompt"
        health = await store.check()
        assert health.problems == ()
        for left in await store.list_sessions():
            if left.thread == left.id:
                await store.delete_thread(left.id)
