"""State beside the messages: values of engines, summary nodes, pins, counts of failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everthread.errors import InputError, UnknownIdError
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.store.messages import (
    compact_session,
    make_node,
    new_thread,
    numbered_messages,
    numbered_thread,
    store_nodes,
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
    await store.state.put_state("calibration", "m", value)
    assert await store.state.get_state("calibration", "m") == value


async def test_state_has_scopes_and_is_replaced(store: Store) -> None:
    await store.state.put_state("a", "k", 1)
    await store.state.put_state("b", "k", 2)
    await store.state.put_state("a", "k", 3)
    assert [await store.state.get_state(scope, "k") for scope in "abc"] == [3, 2, None]
    assert await store.state.get_state("a", "other") is None


async def test_state_of_a_session_goes_with_it(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    tip = await compact_session(store, thread)
    for scope in (thread, tip, "everybody"):
        await store.state.put_state(scope, "k", 1)
    await store.delete_thread(thread)
    states = [await store.state.get_state(scope, "k") for scope in (thread, tip, "everybody")]
    assert states == [None, None, 1]


async def test_nodes_of_a_thread_in_order(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    later_leaf = make_node("b", thread, first_message=5)
    first_leaf = make_node("a", thread, first_message=1)
    root = make_node("c", thread, level=1, degraded=True)
    tip = await store_nodes(store, thread, later_leaf, first_leaf, root)
    assert await store.state.list_nodes(tip) == [first_leaf, later_leaf, root]
    better_root = replace(root, degraded=False, body="rebuilt")
    await store_nodes(store, thread, better_root)
    assert await store.state.list_nodes(thread) == [first_leaf, later_leaf, better_root]
    await store.delete_thread(thread)
    with pytest.raises(UnknownIdError):
        await store.state.list_nodes(thread)


async def test_a_nodes_id_is_its_threads_own(store: Store) -> None:
    first_thread = await new_thread(store, tenant="a")
    second_thread = await new_thread(store, tenant="b")
    first_node = make_node("same", first_thread)
    second_node = make_node(
        "same",
        second_thread,
        level=2,
        first_message=7,
    )
    await store_nodes(store, first_thread, first_node)
    await store_nodes(store, second_thread, second_node)
    assert await store.state.list_nodes(first_thread) == [first_node]
    assert await store.state.list_nodes(second_thread) == [second_node]


async def test_a_text_is_pinned_once_and_unpinned_by_its_id(store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(0, 1))
    first = await store.state.put_pin(thread, "Never push to main.")
    assert await store.state.put_pin(thread, "Never push to main.") == first
    pins = await store.state.list_pins(thread)
    assert [pin.text for pin in pins] == ["Never push to main."]
    await store.state.put_pin(thread, "note", max_pins=2)
    with pytest.raises(InputError, match="2 texts are pinned"):
        await store.state.put_pin(thread, "one more", max_pins=2)
    await store.state.delete_pin(thread, first.id)
    with pytest.raises(UnknownIdError, match="nothing is pinned"):
        await store.state.delete_pin(thread, first.id)


async def test_a_branch_begins_with_the_pins_of_its_parent_and_keeps_them(
    store: Store,
) -> None:
    thread = await new_thread(store, *numbered_messages(0, 3))
    kept = await store.state.put_pin(thread, "Never push to main.")
    history = await store.load_history(thread)
    branch = await store.branch(thread, history[-1].id)
    await store.state.delete_pin(thread, kept.id)
    assert await store.state.list_pins(thread) == []
    assert await store.state.list_pins(branch.id) == [kept]
    await store.delete_thread(thread)
    assert await store.state.list_pins(branch.id) == [kept]


async def test_failures_are_counted_by_tenant_and_kind(store: Store, clock: SteppedClock) -> None:
    thread = await new_thread(store, *numbered_messages(0, 1))
    await store.state.add_failures(
        {("acme", "", "it failed"): 2, ("", thread, "a compaction failed"): 1}
    )
    await store.state.add_failures({("acme", "", "it failed"): 1, ("", "nobody", "it failed"): 1})
    assert await store.state.sum_failures() == [("it failed", 4), ("a compaction failed", 1)]
    assert await store.state.sum_failures(tenant="acme") == [("it failed", 3)]
    assert await store.state.sum_failures(since=clock.now + 1) == []
