"""Messages: kept exactly, once, in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everthread.errors import EverthreadError, InputError, UnknownIdError
from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call
from tests.store.conftest import Clock
from tests.store.messages import (
    append_texts,
    compact_session,
    new_thread,
    numbered_messages,
    numbered_thread,
    read_context,
    read_history,
    texts_of,
    tool_result,
    user_message,
    user_messages,
)

CHARACTERS = st.characters(exclude_categories=()) | st.sampled_from(
    "\0\ud800\udfff\u2028'\"?%{}\\"
)
TEXT = st.text(CHARACTERS, max_size=30)
NUMBERS = (
    st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)
BODIES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]) | TEXT}
) | st.builds(
    lambda body, more: {**more, **body},
    st.fixed_dictionaries({"role": TEXT, "content": VALUES}),
    st.dictionaries(TEXT, VALUES),
)
EACH = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40
)


@EACH
@given(bodies=st.lists(BODIES, min_size=1, max_size=5))
async def test_any_json_is_returned_unchanged(store: Store, bodies: list[Any]) -> None:
    session = await store.create_session(NewSession())
    before = [json.dumps(body) for body in bodies]
    await store.append(session.id, [NewMessage(body) for body in bodies])
    for found in (await store.messages(session.id), await store.history(session.id)):
        assert [json.dumps(message.body) for message in found] == before, (
            "key order and every character count"
        )
    assert [json.dumps(body) for body in bodies] == before, (
        "what is given is not changed"
    )


@EACH
@given(names=st.lists(TEXT, min_size=2, max_size=4))
async def test_names_the_model_makes_up_never_stop_a_message(
    store: Store, names: list[str]
) -> None:
    calls = [function_call(name, name, name) for name in names]
    body: Any = calls_message(*calls)
    answer: Any = {
        "role": "tool",
        "name": names[0],
        "tool_call_id": names[1],
        "content": "x",
    }
    session = await new_thread(store, NewMessage(body), NewMessage(answer))
    assert [message.body for message in await store.messages(session)] == [
        body,
        answer,
    ]


@EACH
@given(event=TEXT, title=TEXT)
async def test_odd_names_are_kept_or_refused_as_input(
    store: Store, event: str, title: str
) -> None:
    session = await store.create_session(NewSession(title=title))
    try:
        [stored] = await store.append(session.id, [user_message("x", event=event)])
    except InputError:
        assert "\0" in event or any("\ud800" <= letter <= "\udfff" for letter in event)
        assert await store.messages(session.id) == []
    else:
        assert stored.event == event


async def test_ten_megabytes(store: Store) -> None:
    text = "x" * 5_000_000 + "漢😀\0" * 1_000_000
    # Derived: searching is not the point.
    session = await new_thread(
        store, user_message(text, kind="derived"), *user_messages("after")
    )
    assert await read_context(store, session) == f"{text}, after"


@pytest.mark.parametrize(
    "body",
    [{"role": "user", "content": {1, 2}}, "words", None, ["user"], {"role": object()}],
)
async def test_invalid_messages_are_refused_and_nothing_is_stored(
    store: Store, body: Any
) -> None:
    session = await new_thread(store)
    with pytest.raises(InputError):
        await store.append(session, [user_message("fine"), NewMessage(body)])
    assert await store.messages(session) == []


async def test_a_too_deeply_nested_message_is_refused(store: Store) -> None:
    body: Any = {"role": "user", "content": []}
    inner = body["content"]
    for _ in range(100_000):
        inner.append([])
        inner = inner[0]
    session = await new_thread(store)
    with pytest.raises(EverthreadError):
        await store.append(session, [NewMessage(body)])
    await append_texts(store, session, "still works")


@pytest.mark.parametrize("more", [{"tokens": 2**70}, {"tokens": "many"}])
async def test_values_no_database_takes_are_refused_as_input(
    store: Store, more: Any
) -> None:
    session = await new_thread(store)
    with pytest.raises(InputError):
        await store.append(session, [user_message("x", **more)])
    assert await store.messages(session) == []


async def test_a_message_is_returned_with_its_metadata(
    store: Store, clock: Clock
) -> None:
    new = user_message("hello", tokens=7, event="e-1")
    session = await new_thread(store)
    [stored] = await store.append(session, [new])
    assert (stored.session, stored.seq, stored.kind, stored.tokens, stored.event) == (
        session,
        0,
        "message",
        7,
        "e-1",
    )
    assert (stored.created, stored.origin, stored.body) == (clock.now, None, new.body)
    assert await store.messages(session) == [stored]
    assert await store.message(stored.id) == stored


async def test_a_derived_message_names_its_origin_and_is_not_in_the_history(
    store: Store,
) -> None:
    session = await new_thread(store)
    long = "long " * 100
    [whole] = await store.append(session, [tool_result("read", long)])
    [small] = await store.append(
        session, [tool_result("read", "short", kind="derived", origin=whole.id)]
    )
    assert (await store.message(small.id)).origin == whole.id
    assert await read_context(store, session) == f"{long}, short"
    assert await read_history(store, session) == long


async def test_a_repeated_event_is_stored_once(store: Store) -> None:
    session = await new_thread(store)
    first = await store.append(
        session,
        [
            user_message("a", event="1"),
            user_message("b", event="2"),
            user_message("a", event="1"),
        ],
    )
    assert [message.seq for message in first] == [0, 1, 0]
    again = await store.append(
        session,
        [user_message("other words", event="2"), user_message("c", event="3")],
    )
    assert [message.id for message in again] == [first[1].id, again[1].id]
    assert await read_context(store, session) == "a, b, c"


async def test_events_are_a_threads_own(store: Store) -> None:
    one = await new_thread(store)
    two = await new_thread(store)
    for session in (one, two):
        await store.append(session, [user_message(session, event="1")])
    assert await read_context(store, two) == two


async def test_a_repeated_event_is_found_where_the_thread_shows_it_now(
    store: Store,
) -> None:
    events = [user_message(f"m{number}", event=str(number)) for number in range(6)]
    session = await new_thread(store, *events)
    continued = await compact_session(store, session, head=1, tail=2)
    covered, carried = await store.append(session, [events[2], events[5]])
    assert (covered.session, covered.seq) == (session, 2)
    assert (carried.session, carried.seq) == (continued, 3)
    await store.undo(session)
    assert [m.session for m in await store.append(session, events)] == [session] * 6


async def test_order_is_the_order_of_asking(store: Store) -> None:
    session = await new_thread(store)
    await asyncio.gather(
        *(append_texts(store, session, f"{n}a", f"{n}b") for n in range(40))
    )
    expected = ", ".join(f"{n}a, {n}b" for n in range(40))
    assert await read_context(store, session) == expected
    assert [message.seq for message in await store.messages(session)] == list(range(80))


async def test_an_append_to_any_id_of_a_thread_lands_at_its_tip(store: Store) -> None:
    session = await numbered_thread(store, 6)
    ids = [session]
    for _ in range(4):
        ids.append(await compact_session(store, ids[-1]))
    for number, key in enumerate(ids):
        [stored] = await store.append(key, user_messages(f"late {number}"))
        assert stored.session == ids[-1]
    context = await read_context(store, session)
    assert context.endswith(", late 0, late 1, late 2, late 3, late 4")


async def test_pages_of_a_session_and_of_a_history(store: Store) -> None:
    session = await numbered_thread(store, 6)
    continued = await compact_session(store, session)
    await store.append(session, numbered_messages(7, 9))
    whole = await store.history(session)
    for start in range(11):
        for limit in (0, 1, 3, 20):
            assert (
                await store.history(session, start=start, limit=limit)
                == whole[start : start + limit]
            )
        assert await store.history(session, start=start) == whole[start:]
    assert texts_of(await store.messages(continued, start=1, limit=2)) == [
        "summary",
        "m5",
    ]
    assert texts_of(await store.messages(continued, start=-5, limit=1)) == ["m1"]


async def test_a_message_is_read_by_its_tenant_only(store: Store) -> None:
    session = await new_thread(store, "private", tenant="a")
    [message] = await store.messages(session)
    assert (await store.message(message.id, tenant="a")).id == message.id
    with pytest.raises(UnknownIdError):
        await store.message(message.id, tenant="b")
