"""A connection that begins a request must finish its headers in time: an open socket is not for nothing."""

from __future__ import annotations

import asyncio
from typing import ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"


class Hurrying(HttpToolsProtocol):
    """The server's protocol, with limits for a request's headers."""

    seconds: ClassVar[float]
    header_bytes: ClassVar[int]
    _clock: asyncio.TimerHandle | None = None
    _in_headers = True
    _heard = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._heard += len(data)
        super().data_received(data)
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
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._heard = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._clock = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


def hurrying(seconds: float, header_bytes: int) -> type[Hurrying]:
    """The protocol which closes a connection whose headers are not there after so long, or so many bytes."""
    return type("Hurrying", (Hurrying,), {"seconds": seconds, "header_bytes": header_bytes})
