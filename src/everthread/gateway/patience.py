"""A connection that begins a request must finish its headers in time: an open socket is not for nothing."""

from __future__ import annotations

import asyncio
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def hurrying(seconds: float) -> type[H11Protocol]:
    """The server's protocol, which closes a connection whose headers are not there after so long."""

    class Hurrying(H11Protocol):
        _clock: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(cast("asyncio.Transport", transport))
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop()
            elif self._clock is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._clock = self.loop.call_later(seconds, self.transport.close)

        def _stop(self) -> None:
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None

    return Hurrying
