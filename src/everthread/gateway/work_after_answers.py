"""Run work after the client has its answer, such as storing records and charging accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from everthread.gateway.request.body_reading import (
    MAX_LOOP_BYTES,
    run_in_thread_if_large,
)

T = TypeVar("T")


class PendingWork:
    """Work that runs after answers. The gateway waits for it before it ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start some work in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def charge_when_measured(
        self, size: int, measure: Callable[[], T], charge: Callable[[T], None]
    ) -> None:
        """Measure and charge a call, in the background if measuring has to read a large request of `size` bytes."""
        if size <= MAX_LOOP_BYTES:
            charge(measure())
        else:
            self.start(self._charge_later(size, measure, charge))

    async def wait(self) -> None:
        """Wait until all work is done."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _charge_later(
        self, size: int, measure: Callable[[], T], charge: Callable[[T], None]
    ) -> None:
        charge(await run_in_thread_if_large(size, measure))
