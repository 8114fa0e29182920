"""Leases: one writer at a time by the database's clock; a replaced holder cannot write."""

from __future__ import annotations

import asyncio
import time

import pytest

from everthread.errors import LeaseLostError
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.store.messages import (
    acquire_lease,
    append_texts,
    commit_compaction,
    compact_session,
    new_thread,
    numbered_thread,
    read_history,
)


async def test_one_holder_at_a_time(store: Store, thread: str) -> None:
    other = await new_thread(store)
    mine = await acquire_lease(store, thread, "me")
    assert mine.thread == thread
    assert mine.holder == "me"
    assert await store.leases.acquire_lease(thread, "you", 60) is None
    assert await store.leases.acquire_lease(other, "you", 60) is not None, (
        "another thread is another lease"
    )
    await store.leases.release_lease(mine)
    yours = await acquire_lease(store, thread, "you")
    assert yours.fence > mine.fence


async def test_any_id_of_a_thread_names_the_same_lease(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    tip = await compact_session(store, thread)
    mine = await acquire_lease(store, tip, "me")
    assert mine.thread == thread
    assert await store.leases.acquire_lease(thread, "you", 60) is None
    await append_texts(store, tip, "fine", lease=mine)


async def test_leases_expire_by_the_databases_clock(
    store: Store, thread: str, clock: SteppedClock
) -> None:
    """The process's own clock may be wrong by years."""
    clock.now = 0.0
    mine = await acquire_lease(store, thread, "me", 60)
    assert abs(mine.expires_at - (time.time() + 60)) < 30
    clock.now = 1e12
    assert await store.leases.acquire_lease(thread, "you", 60) is None


async def test_an_expired_lease_is_taken_and_its_late_write_refused(
    store: Store,
) -> None:
    thread = await numbered_thread(store, 6)
    mine = await acquire_lease(store, thread, "me", 0.05)
    await asyncio.sleep(0.1)
    yours = await acquire_lease(store, thread, "you")
    assert yours.fence > mine.fence
    before = await store.export(thread)
    for late in (
        append_texts(store, thread, "late", lease=mine),
        commit_compaction(store, thread, lease=mine),
        store.end_session(thread, "late", lease=mine),
        store.leases.renew_lease(mine, 60),
    ):
        with pytest.raises(LeaseLostError):
            await late
    await store.leases.release_lease(mine)
    assert await store.export(thread) == before
    await append_texts(store, thread, "in time", lease=yours)
    assert (await read_history(store, thread)).endswith(", in time")


async def test_a_late_undo_is_refused(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    mine = await acquire_lease(store, thread, "me", 0.0)
    tip = await compact_session(store, thread, lease=mine)
    await acquire_lease(store, thread, "you")
    with pytest.raises(LeaseLostError):
        await store.undo(thread, lease=mine)
    assert await store.get_compression_tip(thread) == tip


async def test_an_expired_lease_that_was_not_taken_still_counts(store: Store, thread: str) -> None:
    mine = await acquire_lease(store, thread, "me", 0.0)
    await append_texts(store, thread, "fine", lease=mine)
    longer = await store.leases.renew_lease(mine, 60)
    assert longer.fence == mine.fence
    assert longer.expires_at > mine.expires_at
    assert await store.leases.acquire_lease(thread, "you", 60) is None


async def test_a_released_lease_allows_no_write(store: Store, thread: str) -> None:
    mine = await acquire_lease(store, thread, "me")
    await store.leases.release_lease(mine)
    await store.leases.release_lease(mine)
    with pytest.raises(LeaseLostError):
        await append_texts(store, thread, "late", lease=mine)
    with pytest.raises(LeaseLostError):
        await store.leases.renew_lease(mine, 60)


async def test_holder_may_acquire_its_lease_again(store: Store, thread: str) -> None:
    """A process restarted under the same name may write; late writes of the old one are refused."""
    old = await acquire_lease(store, thread, "me")
    new = await acquire_lease(store, thread, "me")
    with pytest.raises(LeaseLostError):
        await append_texts(store, thread, "old", lease=old)
    await append_texts(store, thread, "new", lease=new)
    assert await read_history(store, thread) == "new"


async def test_a_lease_is_for_its_thread_only(store: Store) -> None:
    one = await new_thread(store)
    two = await new_thread(store)
    mine = await acquire_lease(store, one, "me")
    await acquire_lease(store, two, "me")
    with pytest.raises(LeaseLostError):
        await append_texts(store, two, "wrong thread", lease=mine)


async def test_one_of_many_concurrent_callers_gets_the_lease(
    store: Store, stores: list[Store]
) -> None:
    for _ in range(5):
        thread = await new_thread(store)
        leases = await asyncio.gather(
            *(one.leases.acquire_lease(thread, f"p{n}", 60) for n, one in enumerate(stores))
        )
        assert sum(lease is not None for lease in leases) == 1
