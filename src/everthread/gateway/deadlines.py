"""Run a watcher beside some work, which ends the work if it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_with_watcher(
    work: Coroutine[Any, Any, T],
    watch: Callable[[], Coroutine[Any, Any, None]],
    *,
    delay_seconds: float = 0.0,
) -> T:
    """Run some work and return its result. After a delay, also run `watch`; an error of `watch` ends the work."""
    watcher = _Watcher(watch)
    timer = asyncio.get_running_loop().call_later(delay_seconds, watcher.start)
    try:
        async with asyncio.timeout(None) as watcher.limit:
            return await work
    except TimeoutError:
        if watcher.error is not None:
            raise watcher.error from None
        raise
    finally:
        timer.cancel()
        watcher.stop()


class _Watcher:
    """The task beside some work. If it fails, the work is cancelled."""

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
