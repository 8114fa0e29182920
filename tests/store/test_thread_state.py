"""State beside the messages: values of engines, summary nodes, pins, counts of failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everthread.core.types import Node
from everthread.errors import InputError, UnknownIdError
from everthread.store.store import Store
from tests.store.conftest import Clock
from tests.store.messages import (
    compact_session,
    new_thread,
    numbered_messages,
    numbered_thread,
)

DAY = 86_400.0


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(value=VALUES)
async def test_state_is_any_json(store: Store, value: Any) -> None:
    await store.put_state("calibration", "m", value)
    assert await store.get_state("calibration", "m") == value


async def test_state_has_scopes_and_is_replaced(store: Store) -> None:
    await store.put_state("a", "k", 1)
    await store.put_state("b", "k", 2)
    await store.put_state("a", "k", 3)
    assert [await store.get_state(scope, "k") for scope in "abc"] == [3, 2, None]
    assert await store.get_state("a", "other") is None


async def test_state_of_a_session_goes_with_it(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    tip = await compact_session(store, thread)
    for scope in (thread, tip, "everybody"):
        await store.put_state(scope, "k", 1)
    await store.delete_thread(thread)
    states = [await store.get_state(scope, "k") for scope in (thread, tip, "everybody")]
    assert states == [None, None, 1]


def node(name: str, thread: str, level: int = 0, first: int = 1, **more: Any) -> Node:
    return Node(
        name,
        thread,
        level,
        "body \0\ud800",
        5,
        50,
        "llm",
        first,
        first + 1,
        0,
        3,
        1.5,
        2.5,
        ("1", "2"),
        **more,
    )


async def test_nodes_of_a_thread_in_order(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    tip = await compact_session(store, thread)
    nodes = [
        node("b", thread, 0, 5),
        node("a", thread, 0, 1),
        node("c", thread, 1, 1, degraded=True),
    ]
    await store.put_nodes(nodes)
    assert await store.nodes(tip) == [nodes[1], nodes[0], nodes[2]]
    better = replace(nodes[2], degraded=False, body="rebuilt")
    await store.put_nodes([better])
    assert await store.nodes(thread) == [nodes[1], nodes[0], better]
    await store.delete_thread(thread)
    with pytest.raises(UnknownIdError):
        await store.nodes(thread)
    with pytest.raises(UnknownIdError):
        await store.put_nodes(nodes)


async def test_a_nodes_id_is_its_threads_own(store: Store) -> None:
    one = await new_thread(store, tenant="a")
    two = await new_thread(store, tenant="b")
    mine = node("same", one)
    yours = node("same", two, 2, 7)
    await store.put_nodes([mine])
    await store.put_nodes([yours])
    assert (await store.nodes(one), await store.nodes(two)) == ([mine], [yours])


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


async def test_failures_are_counted_by_tenant_and_kind(store: Store, clock: Clock) -> None:
    thread = await new_thread(store, *numbered_messages(0, 1))
    await store.add_failures({("acme", "", "it failed"): 2, ("", thread, "a compaction failed"): 1})
    await store.add_failures({("acme", "", "it failed"): 1, ("", "nobody", "it failed"): 1})
    assert await store.failures() == [("it failed", 4), ("a compaction failed", 1)]
    assert await store.failures(tenant="acme") == [("it failed", 3)]
    assert await store.failures(since=clock.now + 1) == []
