"""Time limits and watchers: what is there already sets no clock; what waits can be ended, and ends in its own task."""

from __future__ import annotations

import asyncio

import pytest

from everthread.gateway.deadlines import run_beside, run_together, run_within


async def give(value: str) -> str:
    return value


async def wait_and_give(released: asyncio.Event, value: str) -> str:
    await released.wait()
    async with asyncio.timeout(60):
        await asyncio.sleep(0)
    return value


async def test_what_is_there_sets_no_clock_and_starts_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()

    def refuse(*_given: object, **_named: object) -> None:
        raise AssertionError("nothing is scheduled for work that does not wait")

    for name in ("call_at", "call_later", "create_task"):
        monkeypatch.setattr(loop, name, refuse)
    try:
        assert await run_within(1.0, give("here")) == "here"
        assert await run_beside(give("here"), give_nothing, after=1.0) == "here"
    finally:
        monkeypatch.undo()


async def give_nothing() -> None:
    """A watcher that has nothing to say."""


async def test_work_that_waits_goes_on_in_the_same_task() -> None:
    released = asyncio.Event()
    asyncio.get_running_loop().call_soon(released.set)
    assert await run_within(60, wait_and_give(released, "later")) == "later"


async def test_work_that_takes_too_long_is_cancelled() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    with pytest.raises(TimeoutError):
        await run_within(0.01, work())
    assert ended == ["cleaned up"]


async def test_an_error_of_the_work_is_its_own() -> None:
    async def fail(released: asyncio.Event | None) -> None:
        if released is not None:
            await released.wait()
        raise TimeoutError("of the work itself")

    released = asyncio.Event()
    asyncio.get_running_loop().call_soon(released.set)
    for work in (fail(None), fail(released)):
        with pytest.raises(TimeoutError, match="of the work itself"):
            await run_beside(work, give_nothing)


async def test_what_a_watcher_raises_ends_the_work() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    async def watch() -> None:
        raise LookupError("the client left")

    with pytest.raises(LookupError, match="the client left"):
        await run_beside(work(), watch)
    assert ended == ["cleaned up"]


async def test_a_watcher_that_ends_quietly_changes_nothing() -> None:
    released = asyncio.Event()

    async def watch() -> None:
        released.set()

    assert await run_beside(wait_and_give(released, "done"), watch, after=0.001) == "done"


async def wait_for_end(name: str, ended: list[str]) -> None:
    """Wait until cancelled, and note it."""
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def test_a_cancelled_caller_ends_both() -> None:
    ended: list[str] = []
    task = asyncio.create_task(run_beside(wait_for_end("work", ended), lambda: wait_for_end("watcher", ended)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert ended == ["work", "watcher"]


async def test_works_that_run_together_wait_at_the_same_time_in_one_task() -> None:
    begun, released = [], asyncio.Event()

    async def work(name: str) -> str:
        begun.append((name, asyncio.current_task()))
        if len(begun) == 3:
            released.set()
        await released.wait()
        return name

    assert await run_together(work("first"), work("second"), work("third")) == ["first", "second", "third"]
    assert begun == [(name, asyncio.current_task()) for name in ("first", "second", "third")]


async def test_works_that_run_together_all_end_before_the_first_error_is_raised() -> None:
    ended = []

    async def work(name: str, error: Exception | None = None, *, waits: bool = True) -> None:
        if waits:
            await asyncio.sleep(0)
        if error is not None:
            raise error
        ended.append(name)

    works = [work("first"), work("second", LookupError("late")), work("third", ValueError("early"), waits=False)]
    with pytest.raises(ValueError, match="early"):
        await run_together(*works, work("fourth"))
    assert ended == ["first", "fourth"]


async def test_a_cancelled_caller_ends_all_works_that_run_together() -> None:
    ended: list[str] = []
    task = asyncio.create_task(run_together(wait_for_end("first", ended), wait_for_end("second", ended)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["first", "second"]
