"""An answer of an upstream or of the gateway, on its way to the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from everthread.core.types import StreamDelta
from everthread.gateway.answer_reader import AnswerReader
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.header_selection import (
    Headers,
    ResponseHeaders,
    select_client_headers,
)
from everthread.gateway.request.encoding import decode_body
from everthread.gateway.upstream import UpstreamResponse

MAX_ERROR_BYTES = 1024 * 1024
"""A longer error of an upstream is passed on unread."""
_CONTENT_KINDS = frozenset({"text", "reasoning", "refusal", "call", "stop"})
"""Kinds of deltas that show that an answer has begun."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer on its way to the client."""

    status: int
    headers: ResponseHeaders
    body: AnswerBody
    is_changed: bool = False
    """Whether the body is not the upstream's own, so that its stated length no longer fits."""
    own_headers: Mapping[str, str] | None = None
    """Set if the gateway answers in place of the upstream: its headers for the client."""

    @property
    def is_own(self) -> bool:
        """Whether the gateway answers in place of the upstream."""
        return self.own_headers is not None

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def is_plain(self) -> bool:
        """Whether the body is uncompressed."""
        return self.headers.get("content-encoding", "identity") == "identity"

    @property
    def client_headers(self) -> Headers:
        headers = select_client_headers(self.headers.raw)
        if not self.is_changed:
            return headers
        return [(name, value) for name, value in headers if name != b"content-length"]

    async def read_error(self) -> bytes | None:
        """Return the whole decoded body, or None if it is too long or its encoding is unknown."""
        raw = await self.body.peek_all(MAX_ERROR_BYTES)
        if not raw:
            return raw
        encoding = self.headers.get("content-encoding", "")
        try:
            return decode_body(raw, encoding, MAX_ERROR_BYTES)
        except RequestRefused:
            return None


def make_answer(response: UpstreamResponse) -> Answer:
    """Return an upstream's response as the answer for the client."""
    return Answer(response.status_code, response.headers, AnswerBody(response.pieces()))


class AnswerBody:
    """The body of an answer, piece by piece as it arrives. Pieces that are read ahead stay buffered."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._buffer: list[bytes] = []
        self._next: asyncio.Task[bytes | None] | None = None

    @classmethod
    def from_bytes(cls, body: bytes) -> AnswerBody:
        """Return a body with a single piece."""
        return cls(_yield_once(body))

    async def read(self) -> bytes:
        """Return the whole body, whatever its length."""
        return b"".join([piece async for piece in self.pieces()])

    async def peek_all(self, max_bytes: int) -> bytes | None:
        """Return the whole body, which stays buffered, or None if it has more than `max_bytes` bytes."""
        while sum(map(len, self._buffer)) <= max_bytes:
            piece = await anext(self._source, None)
            if piece is None:
                return b"".join(self._buffer)
            self._buffer.append(piece)
        return None

    async def peek_error(self, reader: AnswerReader, seconds: float) -> StreamDelta | None:
        """Buffer a stream until its first content or for at most `seconds`; return the error if it begins with one."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            self._next = asyncio.ensure_future(_read_next_piece(self._source))
            remaining = deadline - asyncio.get_running_loop().time()
            finished_tasks, _ = await asyncio.wait({self._next}, timeout=max(0.0, remaining))
            if not finished_tasks:
                return None
            piece = await self._next
            self._next = None
            if piece is None:
                return None
            self._buffer.append(piece)
            deltas = reader.feed(piece)
            error = next((delta for delta in deltas if delta.kind == "error"), None)
            if error is not None or any(delta.kind in _CONTENT_KINDS for delta in deltas):
                return error

    async def stop_reading(self) -> None:
        """Stop reading; the pieces that are left are dropped."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})

    async def pieces(self) -> AsyncIterator[bytes]:
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


async def _yield_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _read_next_piece(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
