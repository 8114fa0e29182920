"""Learnt limits, state and summary nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everthread.core.types import Node
from everthread.errors import UnknownIdError
from everthread.store.store import Store
from tests.store.conftest import Clock
from tests.store.messages import (
    compact_session,
    new_thread,
    numbered_thread,
)

DAY = 86_400.0


async def test_a_learnt_limit_lasts_seven_days(store: Store, clock: Clock) -> None:
    learnt = await store.learn_limit(
        "https://a", "m", 32_000, source="error", headers="beta=1m"
    )
    assert (learnt.limit, learnt.learnt, learnt.expires) == (
        32_000,
        clock.now,
        clock.now + 7 * DAY,
    )
    assert (
        await store.load_limits("https://a", "m", headers="beta=1m")
    ).window == learnt
    clock.now += 7 * DAY - 0.01
    assert await store.limits() == [learnt]
    clock.now += 0.01
    assert (await store.load_limits("https://a", "m", headers="beta=1m")).window is None
    assert await store.limits() == []


async def test_a_limit_is_for_its_url_model_and_headers(store: Store) -> None:
    await store.learn_limit("https://a", "m", 32_000, source="error")
    for other in (
        ("https://b", "m", ""),
        ("https://a", "n", ""),
        ("https://a", "m", "beta=1m"),
    ):
        assert (
            await store.load_limits(other[0], other[1], headers=other[2])
        ).window is None


async def test_learning_again_replaces_and_renews(store: Store, clock: Clock) -> None:
    await store.learn_limit("https://a", "m", 32_000, source="error")
    clock.now += 5 * DAY
    again = await store.learn_limit("https://a", "m", 16_000, source="probe")
    clock.now += 5 * DAY
    assert await store.limits() == [again]


async def test_limits_are_forgotten(store: Store) -> None:
    for base_url, model, limit in (
        ("u1", "m1", 10),
        ("u1", "m2", 20),
        ("u2", "m1", 30),
    ):
        await store.learn_limit(base_url, model, limit, source="error")
    assert await store.forget_limits(base_url="u1", model="m1") == 1
    assert [limit.limit for limit in await store.limits()] == [20, 30]
    assert await store.forget_limits(model="m1") == 1
    assert await store.forget_limits() == 1
    assert await store.limits() == []


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
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
    session = await numbered_thread(store, 6)
    made = await compact_session(store, session)
    for scope in (session, made, "everybody"):
        await store.put_state(scope, "k", 1)
    await store.delete_thread(session)
    states = [
        await store.get_state(scope, "k") for scope in (session, made, "everybody")
    ]
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
    session = await numbered_thread(store, 6)
    made = await compact_session(store, session)
    nodes = [
        node("b", session, 0, 5),
        node("a", session, 0, 1),
        node("c", session, 1, 1, degraded=True),
    ]
    await store.put_nodes(nodes)
    assert await store.nodes(made) == [nodes[1], nodes[0], nodes[2]]
    better = replace(nodes[2], degraded=False, body="rebuilt")
    await store.put_nodes([better])
    assert await store.nodes(session) == [nodes[1], nodes[0], better]
    await store.delete_thread(session)
    with pytest.raises(UnknownIdError):
        await store.nodes(session)
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
