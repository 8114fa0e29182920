"""Appends that wait together are stored together: each as if it were alone."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.errors import (
    EverthreadError,
    InputError,
    LeaseLostError,
    UnknownIdError,
)
from everthread.store.records import Lease, LimitKey
from everthread.store.store import Store
from tests.store.conftest import open_database
from tests.store.messages import (
    append_texts,
    compact_session,
    new_thread,
    new_user_message,
    numbered_messages,
    numbered_texts,
    numbered_thread,
    read_context,
    read_history,
    texts_of,
    user_messages,
)
from tests.store.searching import search
from tests.store.watched_database import WatchedDatabase, call_together


@pytest.fixture
def database(url: str) -> Any:
    return WatchedDatabase(open_database(url))


async def test_simultaneous_appends_to_many_threads(store: Store) -> None:
    threads = [await new_thread(store) for _ in range(4)]
    calls = [(thread, f"{thread} {n}") for n in range(20) for thread in threads]
    results = await call_together(
        store, *(store.append(thread, user_messages(text)) for thread, text in calls)
    )
    for thread in threads:
        expected = [text for each, text in calls if each == thread]
        history = await store.load_history(thread)
        assert texts_of(history) == expected
        placed = [
            stored for (each, _), [stored] in zip(calls, results, strict=True) if each == thread
        ]
        assert [message.seq for message in placed] == list(range(20))
        assert placed == await store.list_messages(thread)
    assert len({stored.id for [stored] in results}) == len(calls)
    hits = await search(store, "19")
    assert len(hits) == 4


async def test_only_the_faulty_caller_gets_the_error(store: Store) -> None:
    one = await new_thread(store)
    two = await new_thread(store)
    lease = await store.leases.acquire_lease(one, "me", 60)
    assert lease is not None
    lost = Lease(two, "nobody", 7, 0.0)
    results = await call_together(
        store,
        append_texts(store, one, "a", lease=lease),
        store.append("nowhere", user_messages("b")),
        append_texts(store, two, "c", lease=lost),
        store.append(two, [new_user_message("d", tokens=-1)]),
        store.append(two, [new_user_message("e", event="\ud800")]),
        store.limits.learn_limit(LimitKey("url", "model"), 2**70, source="too large"),
        append_texts(store, two, "f"),
    )
    wrong = [type(result) if isinstance(result, EverthreadError) else None for result in results]
    assert wrong == [
        None,
        UnknownIdError,
        LeaseLostError,
        InputError,
        InputError,
        InputError,
        None,
    ]
    assert await read_history(store, one) == "a"
    assert await read_history(store, two) == "f"


async def test_one_event_from_several_callers_is_one_message(store: Store) -> None:
    thread = await numbered_thread(store, 5)
    other = await new_thread(store)
    again = new_user_message("once", event="e")
    results = await call_together(
        store, *(store.append(each, [again]) for each in [thread, other] * 3)
    )
    assert (
        len({result[0].id for result in results[::2]})
        == len({result[0].id for result in results[1::2]})
        == 1
    )
    tip = await compact_session(store, thread)
    late = (
        await call_together(
            store,
            store.append(thread, [new_user_message("new"), again]),
            store.append(other, [again]),
        )
    )[0]
    assert late[1].id == results[0][0].id
    assert [message.session for message in late] == [tip] * 2
    assert await read_history(store, thread) == "m1, m2, m3, m4, m5, once, new"


async def test_appends_around_a_compaction_keep_their_order(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    before = await store.list_messages(thread)
    kept = [message.id for message in before[-2:]]
    await call_together(
        store,
        append_texts(store, thread, "early"),
        append_texts(store, thread, "also early"),
        store.continue_session(thread, kept, seen_count=6),
        append_texts(store, thread, "late"),
        append_texts(store, thread, "later"),
    )
    assert await read_context(store, thread) == "m5, m6, early, also early, late, later"
    assert (await read_history(store, thread)).endswith("m6, early, also early, late, later")


@pytest.mark.parametrize("count", [0, 1, 1_200])
async def test_any_number_of_messages_in_one_append(store: Store, count: int) -> None:
    thread = await new_thread(store, "first")
    stored = await store.append(thread, numbered_messages(1, count))
    again = await store.append(
        thread,
        [
            *(new_user_message(str(n), event=m.event) for n, m in enumerate(stored)),
            new_user_message("x"),
        ],
    )
    assert [message.id for message in again[:-1]] == [message.id for message in stored]
    messages = await store.list_messages(thread)
    assert texts_of(messages) == [
        "first",
        *numbered_texts(1, count),
        "x",
    ]
