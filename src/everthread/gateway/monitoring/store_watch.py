"""Watch whether a store that may be unreachable answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from everthread.errors import EverthreadError, StoreUnreachableError
from everthread.gateway.deadlines import run_beside

_LOG = logging.getLogger("everthread.gateway")
STORE_SECONDS = 1.0
"""The longest that a request waits for a store that is away."""
T = TypeVar("T")
Clock = Callable[[], float]


class StoreWatch:
    """Check whether a store that may be unreachable (a database server) answers; no check takes more than a second.

    A result is valid for a second, so that in an outage one request waits and the others do not. A store that answers
    other calls during a check is busy, not unreachable; that result is not kept.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[object]],
        *,
        seconds: float = STORE_SECONDS / 2,
        clock: Clock = time.monotonic,
        answered_at: Clock = lambda: -1.0,
    ) -> None:
        """`answered_at`: when the store last answered, on the same clock."""
        self._probe = probe
        self._answered_at = answered_at
        self._seconds = seconds
        self._clock = clock
        self._until = 0.0
        self._away = False
        self._asking: asyncio.Task[bool] | None = None

    @property
    def is_known_away(self) -> bool:
        return self._away and self._clock() < self._until

    async def is_away(self) -> bool:
        """Check now if the state is unknown; concurrent callers share one check."""
        if self._clock() < self._until:
            return self._away
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask())
        return await asyncio.shield(self._asking)

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work that needs the store.

        Raise `StoreUnreachableError` if the store is unreachable before the work is done; this is checked only if the
        work takes longer than usual.
        """
        if self.is_known_away:
            work.close()
            raise StoreUnreachableError("the store does not answer")

        async def watch() -> None:
            while not await self.is_away():  # noqa: ASYNC110  the store tells nothing by itself
                await asyncio.sleep(self._seconds)
            raise StoreUnreachableError("the store does not answer")

        return await run_beside(work, watch, after=self._seconds)

    async def _ask(self) -> bool:
        started_at = self._clock()
        try:
            async with asyncio.timeout(self._seconds):
                await self._probe()
            away = False
        except (EverthreadError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and self._answered_at() >= started_at:
                return False
            away = True
            _LOG.warning(
                "the store does not answer (%s); requests go through unmanaged",
                type(error).__name__,
            )
        self._away = away
        self._until = self._clock() + 1.0
        return away
