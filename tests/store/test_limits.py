"""Learnt windows and output caps, accepted credentials, pins, and links to a client's conversation."""

from __future__ import annotations

import pytest

from everthread.core.messages import Message
from everthread.errors import InputError, UnknownIdError
from everthread.store.records import NewMessage, NewSession, SessionKind
from everthread.store.rewrite_records import NewThreadLink, ThreadLink
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call
from tests.store.conftest import Clock
from tests.store.messages import new_thread, numbered_messages
from tests.store.test_client_histories import extend

DAY = 86_400.0
URL = "https://api.example.test/v1"
CALL = function_call("c1", "task")


async def test_a_limit_holds_at_once_for_the_tenant_that_met_it_and_for_no_other(
    store: Store,
) -> None:
    learnt = await store.learn_limit(
        URL, "m", 32_000, source="error", tenant="a", credential="c1"
    )
    assert (await store.load_limits(URL, "m", tenant="a")).window == learnt
    assert (await store.load_limits(URL, "m", tenant="b")).window is None
    assert (await store.load_limits(URL, "m")).window is None


async def test_a_limit_holds_for_all_once_a_second_credential_met_it(
    store: Store,
) -> None:
    await store.learn_limit(
        URL, "m", 32_000, source="error", tenant="a", credential="c1"
    )
    await store.learn_limit(
        URL, "m", 32_000, source="error", tenant="a", credential="c1"
    )
    assert (await store.load_limits(URL, "m", tenant="c")).window is None, (
        "the same credential twice is one witness"
    )
    await store.learn_limit(
        URL, "m", 16_000, source="error", tenant="b", credential="c2"
    )
    assert (await store.load_limits(URL, "m", tenant="c")).window is None, (
        "they met different limits"
    )
    await store.learn_limit(
        URL, "m", 32_000, source="error", tenant="b", credential="c3"
    )
    found = await store.load_limits(URL, "m", tenant="c")
    assert found.window is not None
    assert found.window.limit == 32_000


async def test_the_newest_of_a_tenants_own_limits_counts(
    store: Store, clock: Clock
) -> None:
    await store.learn_limit(
        URL, "m", 16_000, source="error", tenant="a", credential="c1"
    )
    clock.now += 60
    newer = await store.learn_limit(
        URL, "m", 32_000, source="error", tenant="a", credential="c2"
    )
    assert (await store.load_limits(URL, "m", tenant="a")).window == newer


async def test_an_output_cap_is_kept_beside_the_window(store: Store) -> None:
    await store.learn_limit(URL, "m", 4_096, source="error", kind="output")
    found = await store.load_limits(URL, "m")
    assert found.window is None
    assert found.output is not None
    assert found.output.limit == 4_096
    await store.record_success(URL, "m", 10_000)
    assert (await store.load_limits(URL, "m")).output == found.output, (
        "a large prompt says nothing of the output"
    )
    assert await store.forget_limits(model="m") == 1


async def test_a_success_disproves_a_smaller_window_of_its_tenant(
    store: Store, clock: Clock
) -> None:
    for tenant, credential in (("a", "c1"), ("b", "c2")):
        await store.learn_limit(
            URL, "m", 32_000, source="error", tenant=tenant, credential=credential
        )
    await store.record_success(URL, "m", 32_000, tenant="a")
    assert (await store.load_limits(URL, "m", tenant="a")).window is not None, (
        "it fits exactly"
    )
    await store.record_success(URL, "m", 40_000, tenant="a")
    await store.record_success(URL, "m", 10_000, tenant="a")
    found = await store.load_limits(URL, "m", tenant="a")
    assert (found.window, found.succeeded) == (None, 40_000)
    assert (await store.load_limits(URL, "m", tenant="b")).window is not None
    clock.now += 8 * DAY
    assert (await store.load_limits(URL, "m", tenant="a")).succeeded == 0, (
        "a success counts for seven days"
    )


async def test_a_text_is_pinned_once_and_unpinned_by_its_id(store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(0, 1))
    first = await store.put_pin(thread, "Never push to main.")
    assert await store.put_pin(thread, "Never push to main.") == first
    assert [pin.text for pin in await store.pins(thread)] == ["Never push to main."]
    await store.put_pin(thread, "note", max_pins=2)
    with pytest.raises(InputError, match="2 texts are pinned"):
        await store.put_pin(thread, "one more", max_pins=2)
    await store.delete_pin(thread, first.id)
    with pytest.raises(UnknownIdError, match="nothing is pinned"):
        await store.delete_pin(thread, first.id)


async def test_a_branch_begins_with_the_pins_of_its_parent_and_keeps_them(
    store: Store,
) -> None:
    thread = await new_thread(store, *numbered_messages(0, 3))
    kept = await store.put_pin(thread, "Never push to main.")
    history = await store.history(thread)
    branch = await store.branch(thread, history[-1].id)
    await store.delete_pin(thread, kept.id)
    assert await store.pins(thread) == []
    assert await store.pins(branch.id) == [kept]
    await store.delete_thread(thread)
    assert await store.pins(branch.id) == [kept]


async def test_pins_go_with_an_export(store: Store, other_store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(0, 1))
    kept = await store.put_pin(thread, "Never push to main.")
    await other_store.import_lines(await store.export(thread))
    assert await other_store.pins(thread) == [kept]


async def test_failures_are_counted_by_tenant_and_kind(
    store: Store, clock: Clock
) -> None:
    thread = await new_thread(store, *numbered_messages(0, 1))
    await store.add_failures(
        {("acme", "", "it failed"): 2, ("", thread, "a compaction failed"): 1}
    )
    await store.add_failures(
        {("acme", "", "it failed"): 1, ("", "nobody", "it failed"): 1}
    )
    assert await store.failures() == [("it failed", 4), ("a compaction failed", 1)]
    assert await store.failures(tenant="acme") == [("it failed", 3)]
    assert await store.failures(since=clock.now + 1) == []


def ask(text: str) -> Message:
    return {"role": "user", "content": text}


def client_link(
    thread: str,
    kind: SessionKind,
    *bodies: Message,
    previous: str = "",
    client_parent: str = "s1",
) -> NewThreadLink:
    """A request of a client's session, as the gateway stores one."""
    digest = f"{thread}-{len(bodies)}-{previous}"
    session = NewSession(id=thread, kind=kind, client="coder", client_session="s1")
    link = ThreadLink(
        "default", "", digest, previous, "", thread, len(bodies), None, ""
    )
    new = [
        NewMessage(body, event=f"{digest}:{index}") for index, body in enumerate(bodies)
    ]
    return NewThreadLink(link, previous, session, None, new, client_parent)


async def test_side_calls_belong_to_the_conversation_of_their_client(
    store: Store,
) -> None:
    await extend(store, client_link("title", "side", ask("Find a title")))
    assert [row.first.id for row in await store.list_threads()] == ["title"], (
        "nobody knows of a conversation yet"
    )
    asked: tuple[Message, Message] = (
        ask("Mend the parser"),
        calls_message(CALL, text=""),
    )
    await extend(store, client_link("talk", "main", *asked))
    await extend(store, client_link("agent", "main", ask("Look for tests")))
    await extend(store, client_link("count", "side", ask("How many?")))
    [row] = await store.list_threads()
    assert (row.first.id, row.side_calls) == ("talk", 3)
    assert set(await store.subagents("talk")) == {"title", "agent", "count"}
    assert (await store.thread_row("talk")).side_calls == 3
    assert await store.delete_thread("talk") == 4


async def test_a_second_conversation_of_one_client_session_is_separate(
    store: Store,
) -> None:
    """A client may use one name for all requests; another belongs to the first only while that waits for results."""
    answered: tuple[Message, Message] = (
        ask("Mend the parser"),
        {"role": "assistant", "content": "It is mended."},
    )
    await extend(store, client_link("first", "main", *answered))
    await extend(store, client_link("second", "main", ask("Now the printer")))
    await extend(store, client_link("words", "side", ask("Just a word")))
    assert {row.first.id for row in await store.list_threads()} == {"first", "second"}
    await extend(
        store, client_link("words", "side", ask("And another"), previous="words-1-")
    )
    assert {row.first.id for row in await store.list_threads()} == {
        "first",
        "second",
        "words",
    }, "it goes on"
    await extend(store, client_link("helper", "subagent", ask("Help")))
    await extend(
        store, client_link("stray", "subagent", ask("Help"), client_parent="s9")
    )
    listed = {row.first.id: row.first.shown_kind for row in await store.list_threads()}
    assert listed == {
        "first": "main",
        "second": "main",
        "words": "main",
        "stray": "main",
    }
