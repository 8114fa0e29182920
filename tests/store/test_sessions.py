"""Sessions: creating, finding, ending and reopening them."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.errors import AmbiguousIdError, InputError, UnknownIdError
from everthread.store.records import NewSession, Session, SessionKind
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.store.messages import (
    append_texts,
    commit_compaction,
    compact_session,
    new_thread,
    numbered_thread,
    read_context,
    read_history,
    user_messages,
)
from tests.store.tables import count_rows


async def test_a_session_is_returned_unchanged(store: Store, clock: SteppedClock) -> None:
    system = [
        {
            "type": "text",
            "text": "You are\0 — 你 \ud800",
            "cache_control": {"type": "ephemeral"},
        }
    ]
    fields: dict[str, Any] = {
        "id": "s1",
        "kind": "main",
        "parent": None,
        "tenant": "acme",
        "platform": "cli",
        "user": "ann",
        "title": "First",
        "model": "m-1",
        "system": system,
        "client": "coder",
        "client_session": "c1",
    }
    made = await store.create_session(NewSession(**fields))
    assert made == Session(
        **fields,
        thread="s1",
        started=clock.now,
        ended=None,
        end_reason=None,
        message_count=0,
    )
    assert await store.load_session("s1") == made


async def test_making_a_session_again_changes_nothing(store: Store) -> None:
    first = await store.load_session(await new_thread(store, "hello", id="s1", title="One"))
    assert await store.create_session(NewSession(id="s1", title="Two")) == first


@pytest.mark.parametrize(
    "other",
    [
        NewSession(id="s1", tenant="b"),
        NewSession(
            id="s1",
            kind="subagent",
            parent="p",
            tenant="a",
        ),
    ],
)
async def test_a_taken_id_is_refused(store: Store, other: NewSession) -> None:
    await store.create_session(NewSession(id="p", tenant="a"))
    await store.create_session(NewSession(id="s1", tenant="a"))
    with pytest.raises(InputError, match="taken"):
        await store.create_session(other)


@pytest.mark.parametrize("kind", ["continuation", "branch", "reverted"])
async def test_kinds_with_a_call_of_their_own_are_not_created(
    store: Store, kind: SessionKind
) -> None:
    with pytest.raises(InputError, match=kind):
        await store.create_session(NewSession(kind=kind))


async def test_a_subagent_is_a_thread_of_its_own(store: Store) -> None:
    main = await new_thread(store, "go")
    agent = await store.load_session(await new_thread(store, "sub", kind="subagent", parent=main))
    assert agent.kind == "subagent"
    assert agent.parent == main
    assert agent.thread == agent.id
    assert await store.get_compression_tip(main) == main
    assert await store.list_child_threads(main) == [agent]
    listed = {row.first.id for row in await store.list_threads()}
    assert listed == {main, agent.id}
    assert await read_history(store, main) == "go"


async def test_a_missing_parent_is_refused(store: Store) -> None:
    with pytest.raises(UnknownIdError):
        await store.create_session(NewSession(kind="subagent", parent="nobody"))


async def test_a_child_is_of_its_parents_tenant(store: Store) -> None:
    main = await new_thread(store, "go", tenant="a")
    with pytest.raises(UnknownIdError):
        await store.create_session(NewSession(kind="subagent", parent=main, tenant="b"))
    [message] = await store.list_messages(main)
    for child in (
        await store.create_session(NewSession(kind="subagent", parent=main, tenant="a")),
        (await commit_compaction(store, main)).session,
        await store.branch(main, message.id, new=NewSession(tenant="b")),
    ):
        assert child.tenant == "a"


async def test_resolve_by_unique_prefix(store: Store) -> None:
    for name in ("abc-1", "abc-2", "abd", "ab", "ABC", "é1"):
        await store.create_session(NewSession(id=name))
    session = await store.resolve("abd")
    assert session.id == "abd"
    session = await store.resolve("abc-2")
    assert session.id == "abc-2"
    session = await store.resolve("ab")
    assert session.id == "ab", "an exact id wins over those it begins"
    session = await store.resolve("A")
    assert session.id == "ABC"
    session = await store.resolve("é")
    assert session.id == "é1"
    with pytest.raises(AmbiguousIdError, match="abc-1"):
        await store.resolve("abc")
    for nothing in ("abx", "", "b", "%", "_b"):
        with pytest.raises(UnknownIdError):
            await store.resolve(nothing)


async def test_a_prefix_is_unique_within_its_tenant(store: Store) -> None:
    await store.create_session(NewSession(id="aa1", tenant="a"))
    for number in range(30):
        await store.create_session(NewSession(id=f"a{number:02}", tenant="b"))
    session = await store.resolve("aa", tenant="a")
    assert session.id == "aa1"
    session = await store.resolve("a", tenant="a")
    assert session.id == "aa1"
    with pytest.raises(UnknownIdError):
        await store.resolve("a01", tenant="a")


async def test_lists_are_newest_first_paged_and_filtered(store: Store, clock: SteppedClock) -> None:
    for number in range(7):
        clock.now += 1
        await store.create_session(NewSession(id=f"s{number}", tenant="ab"[number % 2]))
    agent = await store.create_session(
        NewSession(
            id="agent",
            kind="subagent",
            parent="s6",
            tenant="a",
            started=5.0,
        )
    )
    sessions = await store.list_sessions(kind="main", limit=3)
    assert [s.id for s in sessions] == [
        "s6",
        "s5",
        "s4",
    ]
    sessions = await store.list_sessions(kind="main", limit=3, offset=6)
    assert [s.id for s in sessions] == ["s0"]
    sessions = await store.list_sessions(tenant="b")
    assert [s.id for s in sessions] == ["s5", "s3", "s1"]
    assert await store.list_sessions(kind="subagent") == [agent]


async def test_a_session_ends_and_an_append_reopens_it(store: Store, clock: SteppedClock) -> None:
    thread = await new_thread(store, "one")
    ended = await store.end_session(thread, "user")
    assert ended.ended == clock.now
    assert ended.end_reason == "user"
    assert not ended.is_live
    clock.now += 9
    assert await store.end_session(thread, "again") == ended, "the first end stands"
    await append_texts(store, thread, "two")
    session = await store.load_session(thread)
    assert session.is_live
    assert await read_context(store, thread) == "one, two"


async def test_only_something_new_reopens(store: Store) -> None:
    [message] = user_messages("one")
    thread = await new_thread(store, message)
    ended = await store.end_session(thread, "user")
    await store.append(thread, [message])
    await store.append(thread, [])
    assert await store.load_session(thread) == ended


async def test_a_continued_session_ends_at_its_tip(store: Store) -> None:
    thread = await numbered_thread(store, 5)
    continued = await compact_session(store, thread)
    ended = await store.end_session(thread, "user")
    assert ended.id == continued
    assert ended.end_reason == "user"
    session = await store.load_session(thread)
    assert session.end_reason == "compression"
    [row] = await store.list_threads()
    assert row.tip == ended


@pytest.mark.parametrize("reason", ["compression", "reverted"])
async def test_the_stores_own_end_reasons_are_not_given(
    store: Store, thread: str, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        await store.end_session(thread, reason)


async def test_unknown_ids_are_refused(store: Store) -> None:
    calls = (
        store.load_session("x"),
        store.list_messages("x"),
        store.load_history("x"),
        store.get_compression_tip("x"),
        store.end_session("x", "user"),
        store.append("x", user_messages("a")),
        store.undo("x"),
        store.branch("x", 1),
        store.delete_thread("x"),
        store.export("x"),
        store.leases.acquire_lease("x", "me", 1),
        store.usage.list_usage("x"),
        store.outputs.list_outputs("x"),
        store.outputs.put_output("x", "text"),
        store.continue_session("x", [], seen_count=0),
        store.state.list_nodes("x"),
        store.load_message(9),
        store.list_compactions("x"),
        store.list_thread_sessions("x"),
    )
    for call in calls:
        with pytest.raises(UnknownIdError):
            await call


async def test_equal_system_prompts_are_stored_once(store: Store) -> None:
    for _ in range(3):
        await store.create_session(NewSession(system="the same prompt"))
    assert count_rows(store, "texts") == 1
