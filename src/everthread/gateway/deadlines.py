"""Time limits and watchers that cost nothing where nobody waits: most of what a request awaits is there already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class StartedCoroutine(Generic[T]):
    """A coroutine that was run up to its first wait. Whoever awaits it goes on with it, in the same task."""

    __slots__ = ("_waits_for", "_work", "is_done", "result")
    result: T
    """Once it is done."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self.is_done = False
        try:
            self._waits_for = work.send(None)
        except StopIteration as end:
            self.result, self.is_done = end.value, True

    def close(self) -> None:
        """End it where it waits; nothing where it has ended."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        while not self.is_done:
            try:
                try:
                    value = yield self._waits_for
                except BaseException as error:  # noqa: BLE001  a cancellation too is the coroutine's to handle
                    self._waits_for = self._work.throw(error)
                else:
                    self._waits_for = self._work.send(value)
            except StopIteration as end:
                self.result, self.is_done = end.value, True
        return self.result


async def run_within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work. `TimeoutError` where it takes longer; the clock is set only where it has to wait."""
    started = StartedCoroutine(work)
    if started.is_done:
        return started.result
    async with asyncio.timeout(seconds):
        return await started


async def run_together(*works: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results of several works, which run side by side in this task: each up to its first wait, then to its end.

    The first error is raised when all have ended.
    """
    errors: list[Exception] = []
    results: list[Any] = []
    begun: list[StartedCoroutine[Any]] = []
    for work in works:
        try:
            begun.append(StartedCoroutine(work))
        except Exception as error:  # noqa: BLE001  the others go on
            errors.append(error)
    try:
        for started in begun:
            try:
                results.append(await started)
            except Exception as error:  # noqa: BLE001  the others go on
                errors.append(error)
    finally:  # who is cancelled cancels all
        for started in begun:
            started.close()
    if errors:
        raise errors[0]
    return results


async def run_beside(
    work: Coroutine[Any, Any, T], watch: Callable[[], Coroutine[Any, Any, None]], *, after: float = 0.0
) -> T:
    """The result of the work. `watch` runs beside it from `after` seconds on; what it raises ends the work."""
    started = StartedCoroutine(work)
    if started.is_done:
        return started.result
    watcher = _Watcher(watch)
    timer = asyncio.get_running_loop().call_later(after, watcher.start)
    try:
        async with asyncio.timeout(None) as watcher.limit:
            return await started
    except TimeoutError:
        if watcher.error is not None:
            raise watcher.error from None
        raise
    finally:
        timer.cancel()
        watcher.stop()


class _Watcher:
    """The task beside some work; its failure ends that."""

    def __init__(self, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        self.limit: asyncio.Timeout | None = None
        self.error: BaseException | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())
        self._task.add_done_callback(self._end)

    def stop(self) -> None:
        self.limit = None
        if self._task is not None:
            self._task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        self.error = None if task.cancelled() else task.exception()
        if self.error is not None and self.limit is not None:
            self.limit.reschedule(asyncio.get_running_loop().time())
