"""Watchers beside some work: an error of theirs ends it, their end does not, and both end with their caller."""

from __future__ import annotations

import asyncio

import pytest

from everthread.gateway.deadlines import run_with_watcher


async def wait_and_give(released: asyncio.Event, value: str) -> str:
    await released.wait()
    async with asyncio.timeout(60):
        await asyncio.sleep(0)
    return value


async def give_nothing() -> None:
    """A watcher that has nothing to say."""


async def test_raises_a_timeout_error_of_the_work_unchanged() -> None:
    async def fail(released: asyncio.Event | None) -> None:
        if released is not None:
            await released.wait()
        raise TimeoutError("of the work itself")

    released = asyncio.Event()
    asyncio.get_running_loop().call_soon(released.set)
    for work in (fail(None), fail(released)):
        with pytest.raises(TimeoutError, match="of the work itself"):
            await run_with_watcher(work, give_nothing)


async def test_a_watcher_that_ends_quietly_changes_nothing() -> None:
    released = asyncio.Event()

    async def watch() -> None:
        released.set()

    assert (
        await run_with_watcher(wait_and_give(released, "done"), watch, delay_seconds=0.001)
        == "done"
    )
