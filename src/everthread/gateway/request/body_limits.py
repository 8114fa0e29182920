"""Receive a request's body within the limits of size and time; refuse one that is too large or too slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.types import Message, Receive

from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.client_connection import ClientGone
from everthread.gateway.request.request_head import RequestHead


def make_too_large_error() -> RequestRefused:
    return RequestRefused(
        413,
        "request_too_large",
        "The request is larger than this gateway accepts; see gateway.limits.",
    )


def make_too_slow_error(seconds: float) -> RequestRefused:
    return RequestRefused(
        408,
        "request_timeout",
        f"The request's body did not arrive within {seconds:g} seconds.",
    )


def _ignore_size(size: int) -> None:
    """Do nothing: the default for a function that counts bytes."""


async def read_body(
    receive: Receive,
    head: RequestHead,
    limits: GatewayLimits,
    count: Callable[[int], None] = _ignore_size,
) -> bytes:
    """Read a whole body. Raise `RequestRefused` if it is too large or slow. `count`: called with each piece's size."""
    length = head.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limits.body_bytes:
        raise make_too_large_error()
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await collect_body(receive, limits.body_bytes, count)
    except TimeoutError:
        raise make_too_slow_error(limits.body_seconds) from None


async def collect_body(
    receive: Receive, max_bytes: int, count: Callable[[int], None] = _ignore_size
) -> bytes:
    """Return a whole body. Raise `RequestRefused` if it is too large. `count`: called with the size of each piece."""
    pieces: list[bytes] = []
    size = 0
    async for piece in iterate_body(receive):
        size += len(piece)
        if size > max_bytes:
            raise make_too_large_error()
        count(len(piece))
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` function that gives an application a body that was read already."""
    is_given = False

    async def receive_again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def iterate_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the pieces of a body as they arrive. Raise `ClientGone` if the client disconnects before the last one."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


class Upload:
    """Stream a body as it arrives."""

    def __init__(self, receive: Receive, head: RequestHead, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self.size = 0
        """Bytes received so far."""
        self.has_body = "content-length" in head.headers or "transfer-encoding" in head.headers

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body piece by piece. Raise `RequestRefused` if the next piece does not arrive in time."""
        source = iterate_body(self._receive)
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    piece = await anext(source, None)
            except TimeoutError:
                raise make_too_slow_error(self._seconds) from None
            if piece is None:
                break
            self.size += len(piece)
            yield piece
