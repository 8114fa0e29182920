"""Messages wait in order; one holder of the lease answers them; a turn that was lost is not begun again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everthread.errors import LeaseLostError, UnknownIdError
from everthread.store.records import new_id
from everthread.store.store import Store
from everthread.store.turn_records import NewQueuedTurn, QueuedTurn
from tests.store.messages import acquire_lease


def message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def queue_turn(
    store: Store, thread: str, text: str, *, key: str = "", max_waiting: int = 9
) -> QueuedTurn | None:
    fresh = new_id()
    return await store.turns.queue_turn(
        NewQueuedTurn(
            fresh,
            thread,
            "default",
            message(text),
            key or fresh,
        ),
        max_waiting=max_waiting,
    )


async def test_turns_are_answered_in_order_and_queued_once(store: Store, thread: str) -> None:
    first = await queue_turn(store, thread, "one \0 \ud800", key="k")
    again = await queue_turn(store, thread, "other words", key="k")
    second = await queue_turn(store, thread, "two")
    assert first is not None
    assert second is not None
    assert again == first
    assert await queue_turn(store, thread, "three", max_waiting=2) is None
    lease = await acquire_lease(store, thread)
    begun = await store.turns.begin_turn(lease)
    assert begun.turn is not None
    assert begun.turn.id == first.id
    assert begun.turn.message == message("one \0 \ud800")
    assert begun.lost_turns == ()
    ended = await store.turns.end_turn(first.id, "answered", {"text": "yes"}, lease=lease)
    assert ended.state == "answered"
    assert ended.result == {"text": "yes"}
    stored_turn = await store.turns.end_turn(first.id, "failed", {}, lease=lease)
    assert stored_turn.state == "answered"
    turns = await store.turns.list_turns(thread, only_open=True)
    assert [turn.id for turn in turns] == [second.id]
    turns = await store.turns.list_turns(thread)
    assert [turn.position for turn in turns] == [2, 1]
    assert (await store.turns.cancel_turn(second.id, tenant="default")).state == "cancelled"
    claim = await store.turns.begin_turn(lease)
    assert claim.turn is None


async def test_simultaneous_turns_get_different_positions(store: Store, thread: str) -> None:
    turns = await asyncio.gather(
        *(queue_turn(store, thread, str(number), max_waiting=7) for number in range(10))
    )
    assert sorted(turn.position for turn in turns if turn is not None) == list(range(1, 8))


async def test_a_lost_turn_is_ended_by_the_next_holder(store: Store, thread: str) -> None:
    turn = await queue_turn(store, thread, "one")
    other = await queue_turn(store, thread, "two")
    assert turn is not None
    assert other is not None
    old = await acquire_lease(store, thread)
    await store.turns.begin_turn(old)
    assert await store.turns.list_idle_queues() == []
    asked = await store.turns.cancel_turn(turn.id, tenant="default")
    assert asked.state == "running"
    assert asked.cancel_requested
    # The same holder again: its unfinished turns are lost.
    lease = await acquire_lease(store, thread)
    with pytest.raises(LeaseLostError):
        await store.turns.end_turn(turn.id, "answered", {}, lease=old)
    with pytest.raises(LeaseLostError):
        await store.turns.begin_turn(old)
    begun = await store.turns.begin_turn(lease)
    assert begun.turn is None
    assert [lost.id for lost in begun.lost_turns] == [turn.id]
    await store.turns.end_turn(turn.id, "interrupted", {}, lease=lease)
    begun = await store.turns.begin_turn(lease)
    assert begun.turn is not None
    assert begun.turn.id == other.id
    await store.leases.release_lease(lease)
    assert await store.turns.list_idle_queues() == [thread]


async def test_turns_belong_to_their_tenant_and_thread(store: Store, thread: str) -> None:
    turn = await queue_turn(store, thread, "one")
    assert turn is not None
    for call in (store.turns.load_turn, store.turns.cancel_turn):
        with pytest.raises(UnknownIdError):
            await call(turn.id, tenant="other")
    stored_turn = await store.turns.load_turn(turn.id, tenant="default")
    assert stored_turn.state == "queued"
    await store.delete_thread(thread)
    with pytest.raises(UnknownIdError):
        await store.turns.load_turn(turn.id, tenant="default")
    with pytest.raises(UnknownIdError):
        await queue_turn(store, thread, "two")
