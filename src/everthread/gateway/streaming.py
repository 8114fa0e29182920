"""Write an answer to the client as it arrives, keep the connection alive, and hold back the beginning of a stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Send

from everthread.core.types import StreamDelta
from everthread.gateway.answer_reader import AnswerReader
from everthread.gateway.contracts import Limits
from everthread.gateway.deadlines import run_with_watcher
from everthread.gateway.error_answers import (
    Refused,
    make_error_body,
    make_error_headers,
)
from everthread.gateway.monitoring.log_lines import log_fields
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.request.request_head import ClientGone, RequestHead
from everthread.gateway.upstream import Headers

_LOG = logging.getLogger("everthread.gateway")


BROWSER_GUARD = (
    (b"content-security-policy", b"sandbox"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers that prevent a browser from running a proxied answer in the origin of the gateway's own pages."""


class ResponseWriter:
    """Write one response. Raise `ClientGone` if the client takes too long to read a piece."""

    def __init__(
        self, send: Send, head: RequestHead, metrics: Metrics, seconds: float
    ) -> None:
        self._send = send
        self._head = head
        self._metrics = metrics
        self._seconds = seconds
        self._started_at = time.monotonic()
        self.status: int | None = None
        self._remaining_bytes = -1
        """Bytes missing from the stated length; negative if no length is stated."""
        self._is_complete = False
        self._own_headers: Mapping[str, str] = {}
        self._facts: dict[str, Any] = {}

    async def start(
        self,
        status: int,
        headers: Headers,
        own_headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self._own_headers = dict(own_headers or {})
        self._metrics.count(
            "requests", api=self._head.conversation_api or "other", status=str(status)
        )
        self._metrics.observe_first_byte(time.monotonic() - self._started_at)
        encoded_headers = [
            (name.encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in self._own_headers.items()
        ]
        lengths = [
            int(value)
            for name, value in headers
            if name == b"content-length" and value.isdigit()
        ]
        self._remaining_bytes = lengths[0] if len(lengths) == 1 else -1
        await self._send_message(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *BROWSER_GUARD, *encoded_headers],
            }
        )

    async def send_late_headers(self, headers: Mapping[str, str]) -> None:
        """Send headers that were not known when the stream began, as comments, which clients ignore."""
        late_headers = {
            name: value
            for name, value in headers.items()
            if self._own_headers.get(name) != value
        }
        self._own_headers = {**self._own_headers, **late_headers}
        if late_headers:
            lines = "".join(
                f": {name}: {' '.join(value.split())}\n"
                for name, value in late_headers.items()
            )
            await self.body(f"{lines}\n".encode())

    async def body(self, data: bytes) -> None:
        """Send a piece. The response is complete when the stated length is reached."""
        self._remaining_bytes -= len(data)
        self._is_complete = self._remaining_bytes == 0
        await self._send_message(
            {
                "type": "http.response.body",
                "body": data,
                "more_body": not self._is_complete,
            }
        )

    async def end(self, data: bytes = b"") -> None:
        if not self._is_complete:
            await self._send_message(
                {"type": "http.response.body", "body": data, "more_body": False}
            )

    async def refuse(self, refused: Refused) -> None:
        """Send an error of the gateway in the client's protocol; do nothing if the answer has begun."""
        if self.status is not None:
            return
        self.note(reason=refused.message)
        body = make_error_body(self._head.client_api, refused)
        await self.start(refused.status, make_error_headers(refused, body))
        await self.end(body)

    def note(self, **facts: Any) -> None:
        """Add facts to the request's log line, but never text of a conversation."""
        self._facts |= facts

    def log(self) -> None:
        """Log one line for the request, answered or not."""
        if not _LOG.isEnabledFor(logging.INFO):
            return
        head = self._head
        seconds = time.monotonic() - self._started_at
        status = self.status or 0
        fields = {
            "method": head.method,
            "path": head.path,
            "status": status,
            "seconds": round(seconds, 4),
            "tenant": head.caller.tenant,
            "key": head.caller.key_id,
            **self._facts,
        }
        filled = {
            name: value
            for name, value in fields.items()
            if value or name in self._facts
        }
        log_fields(
            _LOG,
            logging.INFO,
            f"{head.method} {head.path} {status or 'unanswered'} in {seconds:.3f} s",
            filled,
        )

    async def _send_message(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            raise ClientGone from None


_CONTENT = frozenset({"text", "reasoning", "refusal", "call", "stop"})
"""Kinds of deltas that show that an answer has begun."""


class Pieces:
    """The pieces of a body as they arrive. Pieces that are read ahead stay buffered."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._buffer: list[bytes] = []
        self._next: asyncio.Task[bytes | None] | None = None

    @classmethod
    def from_bytes(cls, body: bytes) -> Pieces:
        """Return a body with a single piece."""
        pieces = cls(_yield_nothing())
        pieces._buffer.append(body)
        return pieces

    async def join(self) -> bytes:
        """Return the whole body, whatever its length."""
        return b"".join([piece async for piece in self.all()])

    async def read_all(self, max_bytes: int) -> bytes | None:
        """Return the whole body, which stays buffered; None if it has more than `max_bytes` bytes."""
        while sum(map(len, self._buffer)) <= max_bytes:
            piece = await anext(self._source, None)
            if piece is None:
                return b"".join(self._buffer)
            self._buffer.append(piece)
        return None

    async def peek_error(
        self, reader: AnswerReader, seconds: float
    ) -> StreamDelta | None:
        """Buffer a stream until its first content or for at most `seconds`; return the error if it begins with one."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            self._next = asyncio.ensure_future(_next_piece(self._source))
            remaining = deadline - asyncio.get_running_loop().time()
            finished_tasks, _ = await asyncio.wait(
                {self._next}, timeout=max(0.0, remaining)
            )
            if not finished_tasks:
                return None
            piece = await self._next
            self._next = None
            if piece is None:
                return None
            self._buffer.append(piece)
            deltas = reader.feed(piece)
            error = next((delta for delta in deltas if delta.kind == "error"), None)
            if error is not None or any(delta.kind in _CONTENT for delta in deltas):
                return error

    async def drop(self) -> None:
        """Stop reading; the pieces that are left are dropped."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})

    async def all(self) -> AsyncIterator[bytes]:
        """Yield all pieces, the buffered ones first."""
        for piece in self._buffer:
            yield piece
        if self._next is not None:
            next_piece = await self._next
            self._next = None
            if next_piece is None:
                return
            yield next_piece
        async for piece in self._source:
            yield piece


async def _yield_nothing() -> AsyncIterator[bytes]:
    nothing: tuple[bytes, ...] = ()
    for piece in nothing:
        yield piece


async def _next_piece(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)


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
    """Keep the connection of a waiting client alive by sending comments."""

    def __init__(
        self,
        writer: ResponseWriter,
        limits: Limits,
        metrics: Metrics,
        streams: Callable[[], bool],
    ) -> None:
        self._writer = writer
        self._limits = limits
        self._metrics = metrics
        self._streams = streams
        """Returns whether the client asked for a stream; called only if the client has to wait."""
        self.has_started = False
        """Whether the answer's status and headers were sent."""

    async def wait_for_gateway(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work of the gateway before the upstream has answered; return its result."""
        first_delay = (
            self._limits.keepalive_seconds
            if self.has_started
            else self._limits.silence_seconds
        )
        return await self._run_with_comments(work, first_delay, ResponseHead)

    async def wait_for_words(
        self, work: Coroutine[Any, Any, T], head: ResponseHead | None
    ) -> T:
        """Wait for the first content of a stream. `head`: None if the stream is compressed and cannot have comments."""
        return await self._run_with_comments(
            work, self._limits.keepalive_seconds, lambda: head
        )

    async def _run_with_comments(
        self,
        work: Coroutine[Any, Any, T],
        first_delay: float,
        head: Callable[[], ResponseHead | None],
    ) -> T:
        async def send_comments() -> None:
            while await self._send_comment(head()):  # noqa: ASYNC110  a comment at each interval
                await asyncio.sleep(self._limits.keepalive_seconds)

        return await run_with_watcher(work, send_comments, delay_seconds=first_delay)

    async def _send_comment(self, head: ResponseHead | None) -> bool:
        """Send one comment; return False if the response cannot carry one."""
        if not self.has_started:
            if head is None or not self._streams():
                return False
            self.has_started = True
            await self._writer.start(head.status, head.headers, head.own_headers)
        self._metrics.count("keepalives")
        await self._writer.body(KEEPALIVE_COMMENT)
        return True
