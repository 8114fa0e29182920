"""One connection to an upstream that speaks HTTP/1.1: bytes there and back, without a layer that changes them."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator
from typing import cast

import httptools

Headers = list[tuple[bytes, bytes]]
Address = tuple[str, int, bool]
"""Host, port, and whether it is encrypted."""

_MOST_WAITING = 256 * 1024
"""So many bytes of an answer wait for who reads them; then the upstream does."""
_MOST_HEAD = 256 * 1024
"""So long may the first lines of an answer be."""
_NO_BODY = (204, 304)


class BrokeOffError(Exception):
    """The upstream ended the connection, or speaks no HTTP, before its answer was complete."""


class SlowError(Exception):
    """The upstream said nothing for too long."""


class Fields(dict[str, str]):
    """An answer's headers by their lower-case names, of several of one name the last; `raw` are all, as they came."""

    def __init__(self, raw: Headers) -> None:
        super().__init__((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw)
        self.raw = raw


class Wire(asyncio.Protocol):
    """One connection, with one request on it at a time."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._waiter: asyncio.Future[None] | None = None
        self._begin(bodiless=False)
        self._busy = False

    def _begin(self, *, bodiless: bool) -> None:
        """Ready for the next answer."""
        self._parser = httptools.HttpResponseParser(self)
        self._bodiless = bodiless
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._paused = False
        self._error: Exception | None = None
        self._keep = False
        self._to_the_end = False
        self._interim = False
        self._heard = 0
        self.raw: Headers = []
        self.status = 0
        self.has_head = False
        self.complete = False

    # Out

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        return self.complete and self._keep and self.is_open and not self._has_news()

    @property
    def answered(self) -> bool:
        """Whether a byte came back for the request."""
        return self._heard > 0

    def _has_news(self) -> bool:
        """Whether something came between two requests which the loop has not told yet: that it was closed, mostly."""
        known = self._transport.get_extra_info("socket") if self._transport is not None else None
        if known is None or not hasattr(select, "poll"):
            return False
        poll = select.poll()
        poll.register(known.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def open_request(self, data: bytes, *, bodiless: bool) -> None:
        """Send the beginning of a request, or all of it. `bodiless`: its answer has headers only."""
        self._begin(bodiless=bodiless)
        self._busy = True
        self.write(data)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self, seconds: float) -> None:
        """Until the upstream takes more."""
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(seconds):
                await self._writable.wait()
        except TimeoutError:
            raise SlowError from None

    def rest(self) -> None:
        """Between two requests."""
        self._busy = False

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # In

    async def head(self, seconds: float | None) -> None:
        """Until the answer has begun."""
        while not self.has_head:
            await self._more(seconds)

    async def pieces(self, seconds: float) -> AsyncIterator[bytes]:
        """The body as it comes; at most so long between two pieces."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._waiting -= len(piece)
                yield piece
            if self.complete:
                return
            if self._paused and self._transport is not None:
                self._paused = False
                self._transport.resume_reading()
            await self._more(seconds)

    async def _more(self, seconds: float | None) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._waiter
        except TimeoutError:
            raise SlowError from None
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_up(self, why: str) -> None:
        self._keep = False
        self._fail(why)
        self.close()

    def _fail(self, why: str) -> None:
        if not self.complete and self._error is None:
            self._error = BrokeOffError(why)
        self._writable.set()
        self._wake()

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._busy or self.complete:  # nobody asked
            self._keep = False
            self.close()
            return
        self._heard += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._keep = False
            self.close()
        except httptools.HttpParserError as error:
            self._give_up(f"it speaks no HTTP: {error}")
        if not self.has_head and self._heard > _MOST_HEAD:
            self._give_up(f"its headers are longer than {_MOST_HEAD:,} bytes")
        self._wake()

    def eof_received(self) -> None:
        self._ended()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended() if exc is None else self._fail(str(exc) or type(exc).__name__)
        self._transport = None

    def _ended(self) -> None:
        self._keep = False
        if self._to_the_end and self.has_head and self._error is None:
            self.complete = True
        self._fail("it closed the connection")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # What the parser tells

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:  # what comes behind the body belongs to this connection
            self.raw.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:  # another answer, to nothing
            self._keep = False
            return
        status = self._parser.get_status_code()
        if status == 101:
            self._give_up("it changed to another protocol, which nobody asked for")
            return
        if status < 200:
            self._interim = True
            self.raw = []
            return
        self.status = status
        self.has_head = True
        self._to_the_end = status not in _NO_BODY and not any(map(_tells_its_end, self.raw))
        if self._bodiless:
            self.complete = True  # a length that may stand there is of what is not sent

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self._pieces.append(body)
        self._waiting += len(body)
        if self._waiting > _MOST_WAITING and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._interim or self.complete or not self.has_head:
            self._interim = False
            return
        self.complete = True
        self._keep = not self._bodiless and self._parser.should_keep_alive()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()


def _tells_its_end(header: tuple[bytes, bytes]) -> bool:
    name, value = header[0].lower(), header[1]
    return name == b"content-length" or (name == b"transfer-encoding" and value.strip().lower().endswith(b"chunked"))
