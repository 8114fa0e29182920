"""A branch begins with a part of another thread, and then lives on its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everthread.errors import InputError, NothingToUndoError, UnknownIdError
from everthread.store.records import NewCompaction, NewSession
from everthread.store.store import Store
from tests.store.messages import (
    append_texts,
    compact_session,
    new_thread,
    numbered_messages,
    numbered_texts,
    numbered_thread,
    read_context,
    read_history,
    summary_message,
    user_messages,
)
from tests.store.tables import count_rows


async def ids_of(store: Store, session_id: str) -> dict[str, int]:
    history = await store.load_history(session_id)
    return {str(message.body["content"]): message.id for message in history}


async def test_a_branch_shares_everything_through_a_message(store: Store) -> None:
    thread = await numbered_thread(
        store,
        5,
        title="T",
        system="S",
        model="m",
        tenant="a",
        user="ann",
    )
    ids = await ids_of(store, thread)
    branch = await store.branch(thread, ids["m3"])
    session = await store.load_session(thread)
    assert branch == replace(
        session,
        id=branch.id,
        kind="branch",
        parent=thread,
        thread=branch.id,
        branched_at=ids["m3"],
        message_count=3,
    )
    await append_texts(store, branch.id, "b1")
    await append_texts(store, thread, "m6")
    assert await read_context(store, branch.id) == "m1, m2, m3, b1"
    assert await read_history(store, branch.id) == "m1, m2, m3, b1"
    assert await read_history(store, thread) == "m1, m2, m3, m4, m5, m6"
    assert count_rows(store, "messages") == 7, "shared messages are stored once"


async def test_branch_with_a_given_id_is_created_once(store: Store) -> None:
    thread = await numbered_thread(store, 5)
    ids = await ids_of(store, thread)
    new = NewSession(id="mine", title="Mine", tenant="ignored")
    first = await store.branch(thread, ids["m2"], new=new)
    await store.append("mine", user_messages("b1"))
    again = await store.branch(thread, ids["m2"], new=new)
    assert first.title == "Mine"
    assert first.tenant == "default"
    assert again.id == "mine"
    assert again.message_count == 3
    with pytest.raises(InputError, match="taken"):
        await store.branch(thread, ids["m3"], new=new)
    with pytest.raises(InputError, match="taken"):
        await store.branch(thread, ids["m2"], new=NewSession(id=thread))


async def test_branch_of_a_continuation_has_its_context_and_the_whole_history(
    store: Store,
) -> None:
    thread = await numbered_thread(store, 8)
    tip = await compact_session(store, thread)
    await store.append(thread, numbered_messages(9, 10))
    ids = await ids_of(store, thread)
    for name, context in (
        ("m9", "m1, summary, m7, m8, m9"),
        ("m7", "m1, summary, m7"),
        ("m4", "m1, m2, m3, m4"),
    ):
        branch = await store.branch(thread, ids[name])
        await append_texts(store, branch.id, "b")
        assert await read_context(store, branch.id) == f"{context}, b"
        shared = ", ".join(numbered_texts(1, int(name[1:])))
        assert await read_history(store, branch.id) == f"{shared}, b"
    stored_branch = await store.branch(thread, ids["m9"])
    assert stored_branch.parent == tip
    stored_branch = await store.branch(thread, ids["m4"])
    assert stored_branch.parent == thread


async def test_a_branch_has_no_summary_of_later_messages(store: Store) -> None:
    """If a message is kept although the summary covers later ones, the context of its own time is used."""
    thread = await numbered_thread(store, 8)
    ids = await ids_of(store, thread)
    continuation = await store.continue_session(
        thread,
        [ids["m1"], summary_message(), ids["m3"], ids["m8"]],
        seen_count=8,
        compaction=NewCompaction(covered=[ids[f"m{n}"] for n in (2, 4, 5, 6, 7)]),
    )
    assert await read_context(store, continuation.session.id) == "m1, summary, m3, m8"
    assert await read_context(store, (await store.branch(thread, ids["m3"])).id) == "m1, m2, m3"
    assert (
        await read_context(store, (await store.branch(thread, ids["m8"])).id)
        == "m1, summary, m3, m8"
    )


async def test_a_branch_continues_and_is_undone_on_its_own(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    ids = await ids_of(store, thread)
    branch = await store.branch(thread, ids["m4"])
    await store.append(branch.id, numbered_messages(1, 3, "b"))
    tip = await compact_session(store, branch.id)
    await append_texts(store, branch.id, "b4")
    assert await read_context(store, branch.id) == "m1, summary, b2, b3, b4"
    assert await read_history(store, tip) == "m1, m2, m3, m4, b1, b2, b3, b4"
    assert await store.get_compression_tip(thread) == thread
    await store.undo(branch.id)
    assert await read_context(store, branch.id) == "m1, m2, m3, m4, b1, b2, b3, b4"
    with pytest.raises(NothingToUndoError):
        await store.undo(branch.id)


async def test_a_branch_can_be_branched_after_a_compaction(store: Store) -> None:
    thread = await numbered_thread(store, 8)
    await compact_session(store, thread)
    await append_texts(store, thread, "m9")
    ids = await ids_of(store, thread)
    one = await store.branch(thread, ids["m9"])
    await store.append(one.id, numbered_messages(1, 4, "b"))
    await compact_session(store, one.id)
    ids = await ids_of(store, one.id)
    two = await store.branch(one.id, ids["b4"])
    await append_texts(store, two.id, "c1")
    history = ", ".join([*numbered_texts(1, 9), *numbered_texts(1, 4, "b")])
    assert await read_history(store, two.id) == f"{history}, c1"
    assert await read_context(store, two.id) == "m1, summary, b3, b4, c1"
    old = await store.branch(two.id, ids["m5"])
    assert (
        await read_history(store, old.id)
        == await read_context(store, old.id)
        == "m1, m2, m3, m4, m5"
    )
    shared = await store.branch(two.id, ids["b1"])
    assert await read_history(store, shared.id) == history.removesuffix(", b2, b3, b4")


async def test_a_branch_is_not_touched_by_an_undo_in_its_parent(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    await compact_session(store, thread)
    await append_texts(store, thread, "m7", "m8")
    branch = await store.branch(thread, (await ids_of(store, thread))["m7"])
    await store.undo(thread)
    assert await read_history(store, branch.id) == "m1, m2, m3, m4, m5, m6, m7"
    assert await read_context(store, branch.id) == "m1, summary, m5, m6, m7"


async def test_a_branch_point_must_be_a_message_of_the_thread(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    other = await new_thread(store, "elsewhere")
    tip = await compact_session(store, thread)
    messages = await store.list_messages(tip)
    [summary] = [message for message in messages if message.kind == "summary"]
    for wrong in (
        (await ids_of(store, other))["elsewhere"],
        summary.id,
        0,
        -1,
        10**9,
    ):
        with pytest.raises(UnknownIdError):
            await store.branch(thread, wrong)
