"""A client that waits for a stream hears comments meanwhile, so that nobody between takes the connection for dead.

A comment cannot go before the first lines of an answer, and those say the status. They are sent early in two cases:

- The upstream answered and its first events are held: its own status and headers go to the client.
- A compaction keeps a client that asked for a stream waiting longer than `silence_seconds`: the answer begins with 200
  and headers of ours. An error the upstream then answers with comes as the protocol's error event.

In every other case status, headers and errors are the upstream's, byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from everthread.gateway.limits import Limits
from everthread.gateway.metrics import Metrics
from everthread.gateway.upstream import Headers
from everthread.gateway.writing import Writer

T = TypeVar("T")
COMMENT = b": everthread is waiting\n\n"
_OWN: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


@dataclass(frozen=True, slots=True)
class Head:
    """The first lines of an answer."""

    status: int = 200
    headers: Headers = field(default_factory=lambda: list(_OWN))
    told: Mapping[str, str] = field(default_factory=dict)


class Pulse:
    """One waiting client."""

    def __init__(self, writer: Writer, limits: Limits, metrics: Metrics, streams: Callable[[], bool]) -> None:
        self._writer = writer
        self._limits = limits
        self._metrics = metrics
        self._streams = streams
        """Whether the client asked for a stream; looked up only when somebody waits."""
        self.begun = False
        """The answer's first lines are sent, and nothing but comments behind them."""

    async def compacting(self, work: Awaitable[T]) -> T:
        """Wait for something of ours, of which the upstream knows nothing yet."""
        first = self._limits.keepalive_seconds if self.begun else self._limits.silence_seconds
        return await self._waiting(work, first, Head)

    async def holding(self, work: Awaitable[T], head: Head | None) -> T:
        """Wait for the first words of a stream; None: it is compressed, and a comment would break it."""
        return await self._waiting(work, self._limits.keepalive_seconds, lambda: head)

    async def _waiting(self, work: Awaitable[T], first: float, head: Callable[[], Head | None]) -> T:
        task = asyncio.ensure_future(work)
        patience: float | None = first
        try:
            while not (await asyncio.wait({task}, timeout=patience))[0]:
                patience = self._limits.keepalive_seconds if await self._beat(head()) else None
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _beat(self, head: Head | None) -> bool:
        """Say that somebody is there; False where that cannot be said."""
        if not self.begun:
            if head is None or not self._streams():
                return False
            self.begun = True
            await self._writer.start(head.status, head.headers, head.told)
        self._metrics.count("keepalives")
        await self._writer.body(COMMENT)
        return True
