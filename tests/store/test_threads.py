"""Lists of threads: the last used first, with counts of their messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everthread.errors import InputError
from everthread.factory import open_store
from everthread.store.records import NewMessage, NewSession, ThreadRow
from everthread.store.store import Store
from tests.store.conftest import Clock
from tests.store.messages import (
    compact_session,
    new_thread,
    summary_message,
    user_message,
    user_messages,
)
from tests.store.test_migrations import execute


async def ids(store: Store, **more: int | str) -> list[str]:
    return [row.first.id for row in await store.list_threads(**more)]  # type: ignore[arg-type]  # its own parameters


async def row_of(store: Store, thread: str) -> ThreadRow:
    [row] = [row for row in await store.list_threads() if row.first.id == thread]
    return row


def counts(row: ThreadRow) -> tuple[int, int, int]:
    return row.messages, row.tokens, row.compactions


def messages_of_tokens(*tokens: int | None) -> list[NewMessage]:
    return [user_message(f"of {count}", tokens=count) for count in tokens]


async def test_the_last_used_first_and_in_pages(store: Store, clock: Clock) -> None:
    for number in range(7):
        clock.now += 1
        await new_thread(store, id=f"t{number}", tenant="ab"[number % 2])
    clock.now += 1
    await store.append("t2", user_messages("again"))
    assert await ids(store) == ["t2", "t6", "t5", "t4", "t3", "t1", "t0"]
    assert await ids(store, limit=3, offset=2) == ["t5", "t4", "t3"]
    assert await ids(store, tenant="a") == ["t2", "t6", "t4", "t0"]
    assert await ids(store, tenant="b", limit=2, offset=1) == ["t3", "t1"]
    assert await ids(store, tenant="c") == []
    assert await ids(store, offset=7) == []


async def test_threads_used_at_the_same_moment_keep_their_order(store: Store) -> None:
    for name in ("b", "c", "a"):
        await new_thread(store, "x", id=name)
    pages = [(await ids(store, limit=1, offset=at))[0] for at in range(3)]
    assert pages == await ids(store) == ["c", "b", "a"]


async def test_messages_count_once_through_compactions_and_undos(
    store: Store, clock: Clock
) -> None:
    session = await new_thread(store, *messages_of_tokens(1, 2, 4, None, 8))
    assert counts(await row_of(store, session)) == (5, 15, 0)
    began = clock.now
    clock.now += 10
    made = await compact_session(store, session)
    row = await row_of(store, session)
    assert (counts(row), row.tip.id, row.first.id) == (
        (5, 15, 1),
        made,
        session,
    )
    assert row.last_active == began, "a compaction is no use of a thread"
    await store.append(session, messages_of_tokens(16))
    await compact_session(store, made, pending=messages_of_tokens(32))
    assert counts(await row_of(store, session)) == (7, 63, 2)
    await store.undo(session)
    row = await row_of(store, session)
    assert (counts(row), row.tip.id, row.last_active) == (
        (7, 63, 1),
        made,
        clock.now,
    )
    await store.undo(session)
    assert counts(await row_of(store, session)) == (7, 63, 0)
    assert len(await store.history(session)) == 7


async def test_only_history_messages_count(store: Store, clock: Clock) -> None:
    session = await new_thread(store, *messages_of_tokens(5))
    began = clock.now
    clock.now += 10
    await store.append(
        session,
        [
            summary_message("not said"),
            user_message("smaller", kind="derived", tokens=1),
        ],
    )
    row = await row_of(store, session)
    assert (counts(row), row.last_active) == ((1, 5, 0), began)


async def test_a_message_given_twice_counts_once(store: Store) -> None:
    session = await new_thread(store, "one")
    again = user_message("two", event="e", tokens=3)
    for _ in range(2):
        await store.append(session, [again, again])
    assert counts(await row_of(store, session)) == (2, 3, 0)


async def test_a_branch_counts_what_it_shares(store: Store, clock: Clock) -> None:
    session = await new_thread(store, *messages_of_tokens(1, 2, 4, 8, 16, 32))
    await compact_session(store, session)
    shared = await store.history(session)
    clock.now += 10
    early = await store.branch(session, shared[2].id)
    late = await store.branch(session, shared[5].id)
    await store.append(late.id, messages_of_tokens(64))
    assert counts(await row_of(store, early.id)) == (3, 7, 0)
    row = await row_of(store, late.id)
    assert (counts(row), row.first.kind, row.last_active) == (
        (7, 127, 0),
        "branch",
        clock.now,
    )
    await store.delete_thread(session)
    assert counts(await row_of(store, late.id)) == (7, 127, 0)


async def test_a_subagent_is_listed_as_a_thread(store: Store) -> None:
    main = await new_thread(store, "go")
    agent = await new_thread(store, "sub", kind="subagent", parent=main)
    assert {row.first.id: row.first.kind for row in await store.list_threads()} == {
        main: "main",
        agent: "subagent",
    }


async def test_where_a_thread_has_ended(store: Store) -> None:
    session = await new_thread(store, "a", "b", "c", "d")
    made = await compact_session(store, session)
    await store.end_session(session, "done")
    row = await row_of(store, session)
    assert (row.tip.id, row.tip.is_live, row.tip.end_reason) == (
        made,
        False,
        "done",
    )


async def test_an_imported_thread_has_the_same_row_in_the_list(
    store: Store, other_store: Store, clock: Clock
) -> None:
    session = await new_thread(store, *messages_of_tokens(1, 2, 4, 8))
    clock.now += 5
    await compact_session(store, session)
    await store.append(session, messages_of_tokens(16))
    clock.now += 100
    await other_store.import_lines(await store.export(session))
    here = await row_of(store, session)
    there = await row_of(other_store, session)
    assert (counts(there), there.last_active, there.tip) == (
        counts(here),
        here.last_active,
        here.tip,
    )


@pytest.mark.parametrize("tokens", [-1, 10**12, 1.5])
async def test_an_invalid_count_is_refused(store: Store, tokens: int) -> None:
    session = await new_thread(store)
    with pytest.raises(InputError, match=r"cannot have .* tokens"):
        await store.append(session, [user_message("x", tokens=tokens)])


async def test_counts_that_are_wrong_are_reported(
    kind: str, new_url: Callable[..., str]
) -> None:
    url = new_url(kind)
    store = open_store(url)
    await store.create_session(NewSession(id="s"))
    execute(url, "UPDATE sessions SET said = 3")
    assert (await store.check()).problems == (
        "1 thread(s) are listed with wrong counts",
    )
    await store.close()
