"""Connections to upstreams, kept for the next request."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from everthread.gateway.wires import Address, BrokeOffError, Fields, Wire

_IDLE_SECONDS = 4.0
"""Less than the five that many servers keep a connection: who closes first meets no request on its way."""


class WireAnswer:
    """`gateway.upstream.Answer`."""

    def __init__(self, wire: Wire, pool: Wires, upload: asyncio.Task[None] | None, seconds: float) -> None:
        self.status_code = wire.status
        self.headers = Fields(wire.raw)
        self._wire: Wire | None = wire
        self._pool = pool
        self._upload = upload
        self._seconds = seconds

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        if self._wire is not None:
            async for piece in self._wire.pieces(self._seconds):
                yield piece

    async def aclose(self) -> None:
        wire, self._wire = self._wire, None
        if wire is None:
            return
        unheard = await _ended(self._upload)
        if wire.complete and not unheard:
            self._pool.give_back(wire)
        else:
            wire.close()


class Wires:
    """The connections of a process."""

    def __init__(self, *, most: int, connect_seconds: float, idle_seconds: float = _IDLE_SECONDS) -> None:
        self._idle: dict[Address, list[tuple[Wire, asyncio.TimerHandle]]] = {}
        self._most = most
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    async def send(  # noqa: PLR0913  what a request is, each by its name
        self, address: Address, head: bytes, content: bytes | AsyncIterator[bytes] | None, *, bodiless: bool,
        seconds: float, again: bool = False,
    ) -> WireAnswer:  # fmt: skip
        """The answer to a request. `BrokeOffError`, `SlowError`, `OSError` or `TimeoutError` where there is none.

        `again`: it may be sent twice. It is, once, where a kept connection ends before a byte of an answer came:
        the upstream may just have closed it. Of any other request nobody knows what was done for it.
        """
        wire = self._kept(address)
        if wire is not None and again and not isinstance(content, AsyncIterator):
            try:
                return await self._sent(wire, head, content, bodiless=bodiless, seconds=seconds)
            except BrokeOffError:
                if wire.answered:
                    raise
            wire = None
        wire = wire or await self._connected(address)
        return await self._sent(wire, head, content, bodiless=bodiless, seconds=seconds)

    async def _sent(
        self, wire: Wire, head: bytes, content: bytes | AsyncIterator[bytes] | None, *, bodiless: bool, seconds: float
    ) -> WireAnswer:
        upload: asyncio.Task[None] | None = None
        try:
            wire.open_request(head + content if isinstance(content, bytes) else head, bodiless=bodiless)
            if content is not None and not isinstance(content, bytes):
                upload = asyncio.create_task(_uploaded(wire, content, seconds, stated=_stated_length(head)))
                await _either(upload, wire)
            await wire.head(seconds)
        except BaseException:
            wire.close()
            await _ended(upload)
            raise
        return WireAnswer(wire, self, upload, seconds)

    def give_back(self, wire: Wire) -> None:
        """It is kept where another request may use it."""
        wire.rest()
        idle = self._idle.setdefault(wire.address, [])
        if self._closed or not wire.reusable or len(idle) >= self._most:
            wire.close()
            return
        clock = asyncio.get_running_loop().call_later(self._idle_seconds, self._expire, wire)
        idle.append((wire, clock))

    def close(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            for wire, clock in idle:
                clock.cancel()
                wire.close()
        self._idle.clear()

    def _kept(self, address: Address) -> Wire | None:
        """One that is there."""
        idle = self._idle.get(address, [])
        while idle:
            wire, clock = idle.pop()
            clock.cancel()
            if wire.reusable:
                return wire
            wire.close()
        return None

    async def _connected(self, address: Address) -> Wire:
        host, port, encrypted = address
        more: dict[str, Any] = {"ssl": self._context(), "server_hostname": host} if encrypted else {}
        loop = asyncio.get_running_loop()
        if isinstance(loop, asyncio.BaseEventLoop):  # other loops do not know it
            more["happy_eyeballs_delay"] = 0.25
        async with asyncio.timeout(self._connect_seconds):
            _, made = await loop.create_connection(lambda: Wire(address), host, port, **more)
        return made

    def _expire(self, wire: Wire) -> None:
        idle = self._idle.get(wire.address, [])
        self._idle[wire.address] = [pair for pair in idle if pair[0] is not wire]
        wire.close()

    def _context(self) -> ssl.SSLContext:
        """Which authorities are trusted is the same for every client here."""
        if self._tls is None:
            self._tls = httpx2.create_ssl_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


async def _uploaded(wire: Wire, content: AsyncIterator[bytes], seconds: float, *, stated: int | None) -> None:
    """A body that goes on as it comes, as fast as the upstream takes it; with the length that was stated, or in chunks.

    `BrokeOffError` where the length is another: what is sent next would be taken for the rest of it.
    """
    left = stated
    async for piece in content:
        if left is None:
            wire.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        elif len(piece) > left:
            raise BrokeOffError("the body is longer than its stated length")
        else:
            left -= len(piece)
            wire.write(piece)
        await wire.drain(seconds)
    if left is None:
        wire.write(b"0\r\n\r\n")
    elif left:
        raise BrokeOffError("the body is shorter than its stated length")


def _stated_length(head: bytes) -> int | None:
    """Of the body; None: it goes in chunks."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return int(value)
    return None


async def _either(upload: asyncio.Task[None], wire: Wire) -> None:
    """Until all is said, or the upstream answers or leaves before."""
    answered = asyncio.create_task(wire.head(None))
    try:
        await asyncio.wait({upload, answered}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _ended(answered)
    if upload.done():
        upload.result()


async def _ended(task: asyncio.Task[None] | None) -> bool:
    """Whether the task had to be ended, or ended badly."""
    if task is None:
        return False
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled() or task.exception() is not None
