"""End the work for a client that disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Message, Scope, Send

DISCONNECT_EXTENSION = "everthread.disconnect"
"""The extension of an ASGI scope that contains the `DisconnectWatchers` of its connection."""
T = TypeVar("T")


class DisconnectWatchers:
    """Callbacks for when a client disconnects."""

    def __init__(self) -> None:
        self._watchers: set[Callable[[], None]] = set()
        self._is_ended = False

    def add(self, watcher: Callable[[], None]) -> None:
        self._watchers.add(watcher)
        if self._is_ended:
            asyncio.get_running_loop().call_soon(self.end)

    def discard(self, watcher: Callable[[], None]) -> None:
        self._watchers.discard(watcher)

    def end(self) -> None:
        """Call all watchers, because the client has disconnected."""
        self._is_ended = True
        while self._watchers:
            self._watchers.pop()()


class ClientGone(Exception):  # noqa: N818  not an error: a client may leave
    """The client disconnected before its request was complete."""


def limit_send_time(send: Send, seconds: float) -> Send:
    """Limit the time of each message. Raise `ClientGone` if the client takes longer to read it."""

    async def send_in_time(message: Message) -> None:
        try:
            async with asyncio.timeout(seconds):
                await send(message)
        except TimeoutError:
            raise ClientGone from None

    return send_in_time


async def run_while_connected(work: Coroutine[Any, Any, T], scope: Scope) -> T:
    """Do some work and return its result. If the client disconnects first, end the work and raise `ClientGone`."""
    watchers: DisconnectWatchers = scope["extensions"][DISCONNECT_EXTENSION]
    limit = asyncio.timeout(None)

    def end_work() -> None:
        limit.reschedule(0.0)

    try:
        async with limit:
            watchers.add(end_work)
            return await work
    except TimeoutError:
        if limit.expired():
            raise ClientGone from None
        raise
    finally:
        watchers.discard(end_work)
