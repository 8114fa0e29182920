"""Export and import: everything of a thread, on either database, and sessions of other programs."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.errors import EverthreadError, InputError, StoreError, TranscriptError
from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage
from everthread.testing import SteppedClock
from tests.store.messages import (
    append_texts,
    commit_compaction,
    compact_session,
    make_node,
    new_thread,
    new_user_message,
    numbered_messages,
    numbered_thread,
    read_context,
    read_history,
    store_nodes,
    texts_of,
    tool_result,
    user_messages,
)
from tests.store.searching import search

HEAD: dict[str, Any] = {"type": "everthread", "format": 1, "thread": "a"}


async def rich_thread(store: Store, clock: SteppedClock) -> str:
    """Create a thread with a line of every kind."""
    system: Any = [{"type": "text", "text": "S\0\ud800"}]
    odd: Any = {
        "role": "user",
        "content": "\0 \ud800 ☃",
        "n": 10**30,
        "f": 1e-7,
        "z": [None, {"": []}],
    }
    thread = await new_thread(
        store,
        *numbered_messages(1, 6),
        NewMessage(odd),
        system=system,
        tenant="t",
        title="Räksmörgås",
    )
    first = await store.list_messages(thread)
    clock.now += 1
    await store.append(
        thread,
        [
            tool_result(
                "run",
                "short",
                kind="derived",
                origin=first[2].id,
                tokens=9,
            )
        ],
    )
    reverted = await compact_session(store, thread)
    await append_texts(store, thread, "carried over")
    clock.now += 1
    await store.undo(thread)
    clock.now += 1
    tip = await compact_session(store, thread, late=user_messages("late"))
    usage = normalize_usage(
        {
            "input_tokens": 5,
            "cache_creation": {"ephemeral_1h_input_tokens": 3},
            "odd": "\ud800",
        }
    )
    for number, cost in enumerate((None, Decimal("0.000000000125"), Decimal(3))):
        key = reverted if number == 1 else tip
        await store.usage.record_usage(
            NewUsage(
                key,
                "m",
                usage,
                "auxiliary",
                cost,
                estimated=True,
            )
        )
    for call in ("c1", "c2"):
        await store.outputs.put_output(
            thread,
            "out\0put \ud800",
            call_id=call,
            tool="run",
        )
    history = await store.load_history(thread)
    bounds = {"first_message": history[0].id, "last_message": history[2].id}
    sources = tuple(str(message.id) for message in history[:3])
    leaf = make_node("n1", thread, **bounds, sources=sources)
    root = make_node(
        "n2",
        thread,
        **bounds,
        level=1,
        sources=("n1",),
        degraded=True,
    )
    tip = await store_nodes(store, thread, leaf, root)
    await store.state.put_pin(thread, "Never push to main.")
    await store.state.put_state(thread, "engine", {"last": "\ud800"})
    await store.state.put_state(tip, "engine", [1])
    return thread


async def test_export_and_import_keep_everything(
    store: Store, other_store: Store, clock: SteppedClock
) -> None:
    await new_thread(other_store, "so that ids differ")
    thread = await rich_thread(store, clock)
    lines = await store.export(thread)
    assert {line["type"] for line in lines} == {
        "everthread",
        "session",
        "message",
        "places",
        "compaction",
        "usage",
        "output",
        "node",
        "pin",
        "state",
    }
    as_text = [json.loads(json.dumps(line)) for line in lines]
    assert as_text == lines, "lines are JSON and nothing else"
    assert await other_store.import_lines(as_text) == [thread]
    assert await other_store.export(thread) == lines
    assert await read_context(other_store, thread) == await read_context(store, thread)
    assert await read_history(other_store, thread) == await read_history(store, thread)
    assert [u.cost for u in await other_store.usage.list_usage(thread)] == [
        u.cost for u in await store.usage.list_usage(thread)
    ]
    assert await other_store.state.get_state(thread, "engine") == {"last": "\ud800"}
    for each in (store, other_store):
        [hit] = await search(each, "carried", tenant="t")
        assert hit.thread == thread
    [node, _] = await other_store.state.list_nodes(thread)
    first_three = (await other_store.load_history(thread))[:3]
    assert node.sources == tuple(str(message.id) for message in first_three)
    assert node.first_message == first_three[0].id
    assert node.last_message == first_three[2].id
    await other_store.undo(thread)
    await store.undo(thread)
    assert await read_context(other_store, thread) == await read_context(store, thread)


async def test_a_branch_is_exported_with_the_history_it_shares(
    store: Store, other_store: Store
) -> None:
    thread = await numbered_thread(store, 8)
    await compact_session(store, thread)
    last = (await store.load_history(thread))[-1]
    branch = await store.branch(thread, last.id)
    await append_texts(store, branch.id, "b1")
    lines = await store.export(branch.id)
    await other_store.import_lines(lines)
    assert await other_store.export(branch.id) == lines
    assert await read_history(other_store, branch.id) == "m1, m2, m3, m4, m5, m6, m7, m8, b1"
    assert await read_context(other_store, branch.id) == "m1, summary, m7, m8, b1"


async def test_imports_several_threads_of_one_file(store: Store, other_store: Store) -> None:
    one = await numbered_thread(store, 3)
    two = await new_thread(store, *numbered_messages(4, 6))
    lines = [*await store.export(one), *await store.export(two)]
    assert await other_store.import_lines(lines) == [one, two]
    assert await read_history(other_store, two) == "m4, m5, m6"


async def test_existing_threads_are_refused_and_nothing_changes(
    store: Store, clock: SteppedClock
) -> None:
    thread = await rich_thread(store, clock)
    other = await new_thread(store, "x")
    lines = await store.export(thread)
    with pytest.raises(StoreError, match="already"):
        await store.import_lines(lines)
    clash = [
        {**line, "id": thread} if line["type"] == "session" else line
        for line in await store.export(other)
    ]
    with pytest.raises(EverthreadError):
        await store.import_lines(clash)
    assert await store.export(thread) == lines
    await store.delete_thread(thread)
    await store.import_lines(lines)
    assert await store.export(thread) == lines
    insights = await store.usage.load_insights(since=0, until=1e12)
    assert insights.total.calls == 3, "accounts are not doubled"


async def test_malformed_lines_are_refused_and_nothing_is_stored(
    store: Store, other_store: Store, clock: SteppedClock
) -> None:
    """As bad input, never as an error of the database or of Python."""
    thread = await rich_thread(store, clock)
    lines = await store.export(thread)
    wrong: list[list[Any]] = [
        lines[1:],
        [{**lines[0], "format": 99}, *lines[1:]],
        [None],
        ["text"],
        [*lines, {"type": "surprise"}],
        [*lines, {"no": "type"}],
        [*lines, {"type": []}],
        [*lines, {"type": {}}],
        [lines[0]],
    ]
    last_of_kind = {line["type"]: at for at, line in enumerate(lines)}
    odd: tuple[Any, ...] = (
        None,
        "words",
        10**400,
        -1,
        1.5,
        True,
        [],
        {},
        ["x"],
        "\0",
        "\ud800",
        float("nan"),
    )
    for at in list(last_of_kind.values())[1:]:
        line = lines[at]
        for place, name in enumerate(sorted(line.keys() - {"type"})):
            wrong.append(
                [
                    *lines[:at],
                    {key: value for key, value in line.items() if key != name},
                    *lines[at + 1 :],
                ]
            )
            # Each field gets a few of the odd values, each value many fields.
            wrong += [
                [*lines[:at], {**line, name: value}, *lines[at + 1 :]]
                for value in odd[(at + place) % 6 :: 6]
            ]
        wrong.append([*lines[:at], *lines[at + 1 :]])
        wrong.append([*lines[:at], line, *lines[at:]])
    refused = 0
    for garbled in wrong:
        try:
            await other_store.import_lines(garbled)
        except InputError:
            refused += 1
            assert await other_store.list_sessions() == []
        else:  # harmless changes may be accepted, but the result is always sound and readable
            health = await other_store.check()
            assert health.problems == ()
            await other_store.export(thread)
            await other_store.delete_thread(thread)
    assert refused > len(wrong) / 3


def session(name: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "session",
        "id": name,
        "parent": parent,
        "started": 0.0,
        **more,
    }


async def test_import_guesses_missing_session_kinds(store: Store) -> None:
    """The child that began at or after its parent's end by compression continues it; other children do not."""
    lines = [
        HEAD,
        session(
            "a",
            started=1.0,
            ended=10.0,
            end_reason="compression",
        ),
        session("early", "a", started=9.0),
        session(
            "next",
            "a",
            started=10.0,
            ended=20.0,
            end_reason="compression",
        ),
        session("second", "a", started=11.0),
        session("last", "next", started=20.5),
        session("of user", "last", started=30.0),
        {
            "type": "message",
            "number": 1,
            "body": {"role": "user", "content": "one"},
        },
        {
            "type": "message",
            "number": 2,
            "body": {"role": "user", "content": "two"},
        },
        {
            "type": "message",
            "number": 3,
            "body": {"role": "user", "content": "three"},
        },
        {"type": "places", "session": "a", "messages": [1]},
        {"type": "places", "session": "last", "messages": [2]},
        {"type": "places", "session": "early", "messages": [3]},
    ]
    assert await store.import_lines(lines) == ["a", "early", "second", "of user"]
    for name in ("a", "next", "last"):
        assert await store.get_compression_tip(name) == "last"
        stored_session = await store.load_session(name)
        assert stored_session.thread == "a"
    for name in ("early", "second", "of user"):
        assert await store.get_compression_tip(name) == name
        stored_session = await store.load_session(name)
        assert stored_session.kind == "subagent"
    assert await read_history(store, "a") == "one, two"
    assert await read_history(store, "early") == "three"
    [stored] = await store.append("a", user_messages("four"))
    assert stored.session == "last"
    assert await store.append("early", [new_user_message("e")])
    messages = await store.list_messages("early")
    assert texts_of(messages) == ["three", "e"]


async def test_a_parent_may_follow_its_child_or_be_in_another_file(
    store: Store,
) -> None:
    await store.import_lines(
        [
            HEAD,
            session("b", "a", started=2.0),
            session(
                "a",
                started=1.0,
                ended=2.0,
                end_reason="compression",
            ),
        ]
    )
    assert await store.get_compression_tip("a") == "b"
    await store.import_lines([{**HEAD, "thread": "c"}, session("c", "b", started=3.0)])
    stored_session = await store.load_session("c")
    assert stored_session.kind == "subagent"
    later = NewSession(id="d")
    await store.create_session(later)
    assert await store.get_compression_tip("a") == "b"


async def test_import_without_the_continuation_can_be_continued(
    store: Store,
) -> None:
    await store.import_lines(
        [
            HEAD,
            session(
                "a",
                started=1.0,
                ended=2.0,
                end_reason="compression",
            ),
        ]
    )
    await store.append("a", numbered_messages(1, 6))
    continuation = await commit_compaction(store, "a")
    assert continuation.is_committed
    assert await read_history(store, "a") == "m1, m2, m3, m4, m5, m6"


@pytest.mark.parametrize(
    "lines",
    [
        [session("a"), session("b", "a", kind="continuation")],
        [
            session("a", ended=1.0, end_reason="compression"),
            *(session(n, "a", kind="continuation") for n in "bc"),
        ],
        [session("a", "b"), session("b", "a")],
        [session("a", "a", kind="continuation")],
        [session("a"), session("a")],
        [session("a", kind="friend")],
        [session("b")],
        [],
    ],
)
async def test_sessions_that_form_no_thread_are_refused(
    store: Store, lines: list[dict[str, Any]]
) -> None:
    with pytest.raises(EverthreadError) as refusal:
        await store.import_lines([HEAD, *lines])
    assert isinstance(refusal.value, EverthreadError)
    assert await store.list_sessions() == []


async def test_refused_import_names_the_line(store: Store) -> None:
    with pytest.raises(TranscriptError, match=r"line 3 .* required field `messages`"):
        await store.import_lines([HEAD, session("a"), {"type": "places", "session": "a"}])
    with pytest.raises(TranscriptError, match=r"line 2 .* got `str` - at `\$.started`"):
        await store.import_lines([HEAD, session("a", started="x" * 1_000)])
