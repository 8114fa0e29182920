"""The server's HTTP protocol: headers must be there in time, and an offered upgrade changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"
_MOST_FILES = 65_536
_MOST_CONNECTIONS = 16_384
_OTHER_FILES = 128
_FRAMING = (b"content-length", b"transfer-encoding")


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits for a request's headers, which reads the body of a request with an upgrade.

    httptools drops such a body and reads what follows as the next request (request smuggling). Clients offer `h2c` by
    default, and a server may ignore the offer (RFC 9110, 7.8): here every one is ignored.
    """

    seconds: ClassVar[float]
    header_bytes: ClassVar[int]
    most_connections: ClassVar[int]
    waiting: ClassVar[dict[HeaderTimeoutProtocol, None]]
    """Connections of one server without a request under way, the longest waiting first."""
    _clock: asyncio.TimerHandle | None = None
    _in_headers = True
    _heard = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self.waiting[self] = None
        if len(self.connections) > self.most_connections:
            next(iter(self.waiting)).transport.abort()  # so that one who opens many keeps nobody out
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._heard += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if not self._in_headers:
            self._stop()
        elif self._heard > self.header_bytes and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._clock is None:
            self._wait()

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self.waiting.pop(self, None)
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("no tunnel is opened here")  # the parser makes an error of it, the client gets 400
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():  # the parser skipped the body, which is still to come
            return
        self._heard = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and self in self.connections:
            self.waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.waiting.pop(self, None)
        super().connection_lost(exc)

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
        """Go on with a new parser that was told the request's framing, so that the next bytes are its body."""
        resumed = _ResumedRequest(self)
        self.parser = httptools.HttpRequestParser(resumed)
        framing = b"".join(name + b": " + value + b"\r\n" for name, value in self.headers if name in _FRAMING)
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")

    def _wait(self) -> None:
        self._clock = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


class _ResumedRequest:
    """Parser callbacks after a declined upgrade: the head is known already, all that follows goes to the protocol."""

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


def header_timeout_protocol(seconds: float, header_bytes: int, most_connections: int) -> type[HeaderTimeoutProtocol]:
    """The protocol of one server, with its limits."""
    limits = {"seconds": seconds, "header_bytes": header_bytes, "most_connections": most_connections, "waiting": {}}
    return type("HeaderTimeout", (HeaderTimeoutProtocol,), limits)


def connection_limit() -> int:
    """How many connections of clients fit beside as many to upstreams, files and the store.

    The soft limit of open files is raised to the hard one first: many systems begin at 1,024.
    """
    try:
        import resource  # noqa: PLC0415  not on every system
    except ImportError:
        return _MOST_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else _MOST_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # not allowed: what is there must do
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, _MOST_FILES), hard))
            soft = min(wanted, _MOST_FILES)
    files = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return max(16, min(_MOST_CONNECTIONS, (files - _OTHER_FILES) // 2))
