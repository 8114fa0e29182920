"""Sends an answer, or fails to: the faults that happen on the connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from everthread.lab.provider.answers import ProviderAnswer
from everthread.lab.provider.log import Record

Connections = dict[Any, asyncio.Transport]
"""The open connections by the client's address: a reset is beyond what an application can ask of its server."""


def remembering(connections: Connections) -> type[H11Protocol]:
    """The server's protocol, which notes every connection."""

    class HeaderLogProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made = cast("asyncio.Transport", transport)
            super().connection_made(made)
            connections[made.get_extra_info("peername")] = made

        def connection_lost(self, exc: Exception | None) -> None:
            connections.pop(self.transport.get_extra_info("peername"), None)
            super().connection_lost(exc)

    return HeaderLogProtocol


class AnswerApp:
    """The application that sends one answer; `closing` ends what hangs."""

    def __init__(
        self,
        outgoing: ProviderAnswer,
        record: Record,
        connections: Connections,
        closing: asyncio.Event,
        done: Callable[[Record], None],
    ) -> None:
        self._outgoing = outgoing
        self._record = record
        self._connections = connections
        self._closing = closing
        self._done = done
        self._gone: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send(scope, receive, send)
        finally:
            if self._gone:
                self._gone.cancel()
            self._done(self._record)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        out, fault = self._outgoing, self._outgoing.fault
        kind = fault.kind if fault else ""
        if fault and kind in ("hang", "delay") and not await self._wait(receive, fault.seconds):
            return
        if kind == "hang":
            self._reset(scope)
            return
        if kind == "reset" and out.events is None:
            self._reset(scope)
            return
        self._record.status = out.status
        if out.events is None:
            body = out.body[: len(out.body) // 2] if kind == "truncated" else out.body
            if kind == "truncated":
                self._record.events.append("cut")
            await send(_start(out, {"content-type": "application/json", "content-length": str(len(body))}))
            await send({"type": "http.response.body", "body": body})
            return
        await send(_start(out, {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}))
        if not await self._stream(out.events, receive, send):
            return
        if kind == "reset":
            await asyncio.sleep(0.02)  # a reset overtakes what the client has not read yet
            self._reset(scope)
            return
        if kind == "truncated":
            self._record.events.append("cut")
        await send({"type": "http.response.body", "body": b""})

    async def _stream(self, events: list[bytes], receive: Receive, send: Send) -> bool:
        """The events one by one; whether the client heard them all."""
        fault = self._outgoing.fault
        pause = fault.seconds if fault and fault.kind == "slow" else 0.0
        for event in events[: fault.after] if fault and fault.kind in ("reset", "truncated") else events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            await asyncio.sleep(0)  # each event is on its way before the next one, as a model writes
            if pause and not await self._wait(receive, pause):
                return False
        return True

    async def _wait(self, receive: Receive, seconds: float) -> bool:
        """Whether the client is still there after so long."""
        if self._gone is None:
            self._gone = asyncio.create_task(_until_gone(receive))
        closing = asyncio.create_task(self._closing.wait())
        await asyncio.wait({self._gone, closing}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if self._gone.done():
            self._record.events.append("gone")
        return not self._gone.done()

    def _reset(self, scope: Scope) -> None:
        self._record.events.append("reset")
        client = scope.get("client")
        transport = self._connections.get(tuple(client)) if client else None
        if transport is None:
            return
        lingering = struct.pack("ii", 1, 0)  # nothing lingers: the connection ends with a reset
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingering)
        transport.abort()


def _start(out: ProviderAnswer, headers: Mapping[str, str]) -> dict[str, Any]:
    fields = {**headers, **out.headers, "request-id": "req_lab", "x-request-id": "req_lab"}
    return {
        "type": "http.response.start",
        "status": out.status,
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
    }


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
