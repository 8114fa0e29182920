"""Keep a client's connection alive while it waits for a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.deadlines import run_with_watcher
from everthread.gateway.header_selection import Headers
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.response_writer import ResponseWriter

T = TypeVar("T")
KEEPALIVE_COMMENT = b": everthread is waiting\n\n"
_KEEPALIVE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The status and headers of an answer."""

    status: int = 200
    headers: Headers = field(default_factory=lambda: list(_KEEPALIVE_HEADERS))
    own_headers: Mapping[str, str] = field(default_factory=dict)


class StreamKeepAlive:
    """Keeps the connection of a waiting client alive by sending comments."""

    def __init__(
        self,
        writer: ResponseWriter,
        limits: GatewayLimits,
        metrics: Metrics,
        accepts_comments: Callable[[], bool],
    ) -> None:
        self._writer = writer
        self._limits = limits
        self._metrics = metrics
        self._accepts_comments = accepts_comments
        """Called only if the client has to wait."""
        self.has_started = False
        """Whether the answer's status and headers were sent."""

    async def wait_for_gateway(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work of the gateway before the upstream has answered; return its result."""
        first_delay = (
            self._limits.keepalive_seconds if self.has_started else self._limits.silence_seconds
        )
        return await self._run_with_comments(work, first_delay, ResponseHead)

    async def wait_for_content(self, work: Coroutine[Any, Any, T], head: ResponseHead | None) -> T:
        """Wait for the first content of a stream. `head`: None if the stream is compressed and cannot have comments."""
        return await self._run_with_comments(work, self._limits.keepalive_seconds, lambda: head)

    async def _run_with_comments(
        self,
        work: Coroutine[Any, Any, T],
        first_delay: float,
        make_head: Callable[[], ResponseHead | None],
    ) -> T:
        async def send_comments() -> None:
            while await self._send_comment(make_head()):  # noqa: ASYNC110  a comment at each interval
                await asyncio.sleep(self._limits.keepalive_seconds)

        return await run_with_watcher(work, send_comments, delay_seconds=first_delay)

    async def _send_comment(self, head: ResponseHead | None) -> bool:
        """Send one comment; return False if the response cannot carry one."""
        if not self.has_started:
            if head is None or not self._accepts_comments():
                return False
            self.has_started = True
            await self._writer.start(head.status, head.headers, head.own_headers)
        self._metrics.count("keepalives")
        await self._writer.body(KEEPALIVE_COMMENT)
        return True
