"""Check whether a possibly unreachable store answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from everthread.errors import EverthreadError, StoreUnreachableError
from everthread.gateway.deadlines import run_with_watcher

_LOG = logging.getLogger("everthread.gateway")
MAX_STORE_WAIT_SECONDS = 1.0
"""Maximum wait of a request for a store that does not answer."""
T = TypeVar("T")
Clock = Callable[[], float]


class StoreWatch:
    """Checks whether a database server answers. No check takes more than a second.

    A result is valid for a second, so that in an outage only one request has to wait. If the server answers other calls
    during a check, it is busy, not unreachable, and the result of the check is not kept.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[object]],
        *,
        seconds: float = MAX_STORE_WAIT_SECONDS / 2,
        clock: Clock = time.monotonic,
        get_last_answer_time: Clock = lambda: -1.0,
    ) -> None:
        """`get_last_answer_time`: returns when the store last answered, on the same clock."""
        self._probe = probe
        self._get_last_answer_time = get_last_answer_time
        self._seconds = seconds
        self._clock = clock
        self._valid_until = 0.0
        self._was_unresponsive = False
        self._check_task: asyncio.Task[bool] | None = None

    @property
    def is_known_unresponsive(self) -> bool:
        return self._was_unresponsive and self._clock() < self._valid_until

    async def is_unresponsive(self) -> bool:
        """Return whether the store does not answer. Check it if the last result is too old; callers share one check."""
        if self._clock() < self._valid_until:
            return self._was_unresponsive
        if self._check_task is None or self._check_task.done():
            self._check_task = asyncio.get_running_loop().create_task(self._check())
        return await asyncio.shield(self._check_task)

    async def run_with_store(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work that needs the store, and return its result.

        If the work takes longer than usual, check the store, and raise `StoreUnreachableError` if it does not answer.
        """
        if self.is_known_unresponsive:
            work.close()
            raise StoreUnreachableError("the store does not answer")

        async def watch() -> None:
            while not await self.is_unresponsive():  # noqa: ASYNC110  the store tells nothing by itself
                await asyncio.sleep(self._seconds)
            raise StoreUnreachableError("the store does not answer")

        return await run_with_watcher(work, watch, delay_seconds=self._seconds)

    async def _check(self) -> bool:
        started_at = self._clock()
        try:
            async with asyncio.timeout(self._seconds):
                await self._probe()
            is_unresponsive = False
        except (EverthreadError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and self._get_last_answer_time() >= started_at:
                return False
            is_unresponsive = True
            _LOG.warning(
                "the store does not answer (%s); requests go through unmanaged",
                type(error).__name__,
            )
        self._was_unresponsive = is_unresponsive
        self._valid_until = self._clock() + 1.0
        return is_unresponsive
