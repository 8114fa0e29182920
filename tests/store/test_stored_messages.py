"""Messages: kept exactly, once, in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everthread.errors import EverthreadError, InputError, UnknownIdError
from everthread.store.records import NewMessage, NewSession, StoredMessage
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.chat_messages import calls_message, function_call
from tests.store.messages import (
    append_texts,
    compact_session,
    new_thread,
    new_user_message,
    numbered_messages,
    numbered_thread,
    read_context,
    read_history,
    texts_of,
    tool_result,
    user_messages,
)

CHARACTERS = st.characters(exclude_categories=()) | st.sampled_from("\0\ud800\udfff\u2028'\"?%{}\\")
TEXT = st.text(CHARACTERS, max_size=30)
NUMBERS = (
    st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]) | TEXT}
) | st.builds(
    lambda body, more: {**more, **body},
    st.fixed_dictionaries({"role": TEXT, "content": VALUES}),
    st.dictionaries(TEXT, VALUES),
)
EACH = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)


@EACH
@given(bodies=st.lists(BODIES, min_size=1, max_size=5))
async def test_any_json_is_returned_unchanged(store: Store, bodies: list[Any]) -> None:
    session = await store.create_session(NewSession())
    before = [json.dumps(body) for body in bodies]
    await store.append(session.id, [NewMessage(body) for body in bodies])
    for found in (await store.list_messages(session.id), await store.load_history(session.id)):
        assert [json.dumps(message.body) for message in found] == before, (
            "key order and every character count"
        )
    assert [json.dumps(body) for body in bodies] == before, "what is given is not changed"


@EACH
@given(names=st.lists(TEXT, min_size=2, max_size=4))
async def test_invented_tool_names_are_accepted(store: Store, names: list[str]) -> None:
    calls = [function_call(name, name, name) for name in names]
    body: Any = calls_message(*calls)
    answer: Any = {
        "role": "tool",
        "name": names[0],
        "tool_call_id": names[1],
        "content": "x",
    }
    thread = await new_thread(store, NewMessage(body), NewMessage(answer))
    messages = await store.list_messages(thread)
    assert [message.body for message in messages] == [
        body,
        answer,
    ]


@EACH
@given(event=TEXT, title=TEXT)
async def test_unusual_event_ids_are_stored_or_refused(
    store: Store, event: str, title: str
) -> None:
    session = await store.create_session(NewSession(title=title))
    try:
        [stored] = await store.append(session.id, [new_user_message("x", event=event)])
    except InputError:
        assert "\0" in event or any("\ud800" <= letter <= "\udfff" for letter in event)
        assert await store.list_messages(session.id) == []
    else:
        assert stored.event == event


async def test_message_of_ten_megabytes(store: Store) -> None:
    text = "x" * 5_000_000 + "漢😀\0" * 1_000_000
    # Derived: searching is not the point.
    thread = await new_thread(
        store, new_user_message(text, kind="derived"), *user_messages("after")
    )
    assert await read_context(store, thread) == f"{text}, after"


@pytest.mark.parametrize(
    "body",
    [{"role": "user", "content": {1, 2}}, "words", None, ["user"], {"role": object()}],
)
async def test_invalid_messages_are_refused_and_nothing_is_stored(
    store: Store, thread: str, body: Any
) -> None:
    with pytest.raises(InputError):
        await store.append(thread, [new_user_message("fine"), NewMessage(body)])
    assert await store.list_messages(thread) == []


async def test_a_too_deeply_nested_message_is_refused(store: Store, thread: str) -> None:
    body: Any = {"role": "user", "content": []}
    inner = body["content"]
    for _ in range(100_000):
        inner.append([])
        inner = inner[0]
    with pytest.raises(EverthreadError):
        await store.append(thread, [NewMessage(body)])
    await append_texts(store, thread, "still works")


@pytest.mark.parametrize("tokens", [-1, 1.5, 10**12, 2**70, "many"])
async def test_invalid_token_count_is_refused(store: Store, thread: str, tokens: Any) -> None:
    with pytest.raises(InputError, match=r"cannot have .* tokens"):
        await store.append(thread, [new_user_message("x", tokens=tokens)])
    assert await store.list_messages(thread) == []


async def test_a_message_is_returned_with_its_metadata(
    store: Store, thread: str, clock: SteppedClock
) -> None:
    new = new_user_message("hello", tokens=7, event="e-1")
    [stored] = await store.append(thread, [new])
    assert stored == StoredMessage(
        stored.id,
        thread,
        seq=0,
        kind="message",
        body=new.body,
        event="e-1",
        tokens=7,
        created=clock.now,
    )
    assert await store.list_messages(thread) == [stored]
    assert await store.load_message(stored.id) == stored


async def test_a_derived_message_names_its_origin_and_is_not_in_the_history(
    store: Store,
    thread: str,
) -> None:
    long = "long " * 100
    [whole] = await store.append(thread, [tool_result("read", long)])
    [small] = await store.append(
        thread,
        [
            tool_result(
                "read",
                "short",
                kind="derived",
                origin=whole.id,
            )
        ],
    )
    message = await store.load_message(small.id)
    assert message.origin == whole.id
    assert await read_context(store, thread) == f"{long}, short"
    assert await read_history(store, thread) == long


async def test_a_repeated_event_is_stored_once(store: Store, thread: str) -> None:
    first = await store.append(
        thread,
        [
            new_user_message("a", event="1"),
            new_user_message("b", event="2"),
            new_user_message("a", event="1"),
        ],
    )
    assert [message.seq for message in first] == [0, 1, 0]
    again = await store.append(
        thread,
        [new_user_message("other words", event="2"), new_user_message("c", event="3")],
    )
    assert [message.id for message in again] == [first[1].id, again[1].id]
    assert await read_context(store, thread) == "a, b, c"


async def test_threads_may_use_the_same_event_ids(store: Store) -> None:
    one = await new_thread(store)
    two = await new_thread(store)
    for session in (one, two):
        await store.append(session, [new_user_message(session, event="1")])
    assert await read_context(store, two) == two


async def test_repeated_event_returns_its_current_position(
    store: Store,
) -> None:
    events = [new_user_message(f"m{number}", event=str(number)) for number in range(6)]
    thread = await new_thread(store, *events)
    continued = await compact_session(store, thread, head=1, tail=2)
    covered, carried = await store.append(thread, [events[2], events[5]])
    assert covered.session == thread
    assert covered.seq == 2
    assert carried.session == continued
    assert carried.seq == 3
    await store.undo(thread)
    appended = await store.append(thread, events)
    assert [m.session for m in appended] == [thread] * 6


async def test_simultaneous_appends_keep_the_order_of_their_calls(
    store: Store, thread: str
) -> None:
    await asyncio.gather(*(append_texts(store, thread, f"{n}a", f"{n}b") for n in range(40)))
    expected = ", ".join(f"{n}a, {n}b" for n in range(40))
    assert await read_context(store, thread) == expected
    messages = await store.list_messages(thread)
    assert [message.seq for message in messages] == list(range(80))


async def test_pages_of_a_session_and_of_a_history(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    continued = await compact_session(store, thread)
    await store.append(thread, numbered_messages(7, 9))
    whole = await store.load_history(thread)
    for start in range(11):
        for limit in (0, 1, 3, 20):
            history = await store.load_history(thread, start=start, limit=limit)
            assert history == whole[start : start + limit]
        assert await store.load_history(thread, start=start) == whole[start:]
    messages = await store.list_messages(continued, start=1, limit=2)
    assert texts_of(messages) == [
        "summary",
        "m5",
    ]
    messages = await store.list_messages(continued, start=-5, limit=1)
    assert texts_of(messages) == ["m1"]


async def test_a_message_is_read_by_its_tenant_only(store: Store) -> None:
    thread = await new_thread(store, "private", tenant="a")
    [message] = await store.list_messages(thread)
    stored_message = await store.load_message(message.id, tenant="a")
    assert stored_message.id == message.id
    with pytest.raises(UnknownIdError):
        await store.load_message(message.id, tenant="b")
