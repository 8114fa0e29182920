"""uvicorn's HTTP protocol with limits for connections and headers."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from everthread.gateway.request.client_connection import DISCONNECT_EXTENSION, DisconnectWatchers

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""The response that uvicorn writes first if the client waits for permission to send its body."""
_FRAMING_HEADERS = (b"content-length", b"transfer-encoding")


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits for a request's headers, which also reads the body of a request with an upgrade.

    httptools drops such a body and reads its bytes as the next request (request smuggling). Some clients offer an
    upgrade to `h2c` by default. A server may ignore such an offer (RFC 9110, 7.8), and this one ignores all of them.
    """

    header_seconds: ClassVar[float]
    header_bytes: ClassVar[int]
    max_connections: ClassVar[int]
    idle_connections: ClassVar[dict[HeaderTimeoutProtocol, None]]
    """Connections of one server that have no open request, the longest idle one first."""
    _header_timer: asyncio.TimerHandle | None = None
    _in_headers = True
    _header_size = 0
    _watchers: DisconnectWatchers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._watchers = DisconnectWatchers()
        self.idle_connections[self] = None
        if len(self.connections) > self.max_connections:
            # Close an idle connection, so that one client with many connections does not lock others out.
            longest_idle = next(iter(self.idle_connections))
            # Remove it now: its transport reports the end later.
            del self.idle_connections[longest_idle]
            longest_idle.transport.abort()
        self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        self._header_size += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if not self._in_headers:
            self._stop_header_timer()
        elif self._header_size > self.header_bytes and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._header_timer is None:
            self._start_header_timer()

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Drop fields after the body (trailers), which come too late for any decision."""
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self.idle_connections.pop(self, None)
        if self.parser.get_method() == b"CONNECT":
            # The parser reports this as an error, and the client gets 400.
            raise ValueError("no tunnel is opened here")
        cast("dict[str, Any]", self.scope)["extensions"] = {DISCONNECT_EXTENSION: self._watchers}
        super().on_headers_complete()
        self.cycle.transport = cast("asyncio.Transport", _HeadBuffer(self.transport, self.loop))

    def on_message_complete(self) -> None:
        # The parser skipped the body, which is still to come.
        if self.parser.should_upgrade():
            return
        self._header_size = 0
        super().on_message_complete()
        # A long body pauses reading; a paused connection would not notice that its client leaves.
        if not self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and self in self.connections:
            self.idle_connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self.idle_connections.pop(self, None)
        super().connection_lost(exc)
        self._watchers.end()

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._decline_upgrade()
            else:
                return

    def _decline_upgrade(self) -> None:
        """Continue with a new parser that knows the request's framing, so that it reads the next bytes as the body."""
        resumed = _ResumedRequest(self)
        self.parser = httptools.HttpRequestParser(resumed)
        framing = b"".join(
            name + b": " + value + b"\r\n"
            for name, value in self.headers
            if name in _FRAMING_HEADERS
        )
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class _HeadBuffer:
    """A transport that buffers a response's head, to write it together with a body that follows immediately."""

    __slots__ = ("_head", "_is_begun", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._is_begun = False

    def write(self, data: bytes) -> None:
        if self._head:
            data = self._head + data
            self._head = b""
        elif not self._is_begun and data != _CONTINUE:
            self._is_begun = True
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        head = self._head
        self._head = b""
        if head:
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class _ResumedRequest:
    """Parser callbacks after a declined upgrade. Ignore the repeated head; pass everything else to the protocol."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._is_head_known = True
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self._is_head_known:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_head_known:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_head_known:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_head_known:
            self._is_head_known = False
        else:
            self._protocol.on_headers_complete()


def make_header_timeout_protocol(
    seconds: float, header_bytes: int, max_connections: int
) -> type[HeaderTimeoutProtocol]:
    """Return a protocol class with the limits of one server."""
    limits = {
        "header_seconds": seconds,
        "header_bytes": header_bytes,
        "max_connections": max_connections,
        "idle_connections": {},
    }
    return type("HeaderTimeout", (HeaderTimeoutProtocol,), limits)
