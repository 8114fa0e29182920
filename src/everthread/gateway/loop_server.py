"""Run uvicorn inside a running event loop, on a socket that is bound first."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from everthread.errors import InputError

_BACKLOG = 512
"""Maximum connections that wait to be accepted."""
_ACCEPTED_AT_ONCE = 32
"""Maximum connections accepted at once before surplus ones are closed, so that a burst cannot exhaust file handles."""


class LoopServer(Server):
    """Runs uvicorn on a bound socket in the running event loop. `grace_seconds`: time for open answers when it stops.

    Unlike uvicorn, which polls ten times a second, it reacts to events.
    """

    def __init__(
        self,
        application: ASGIApp,
        listener: socket.socket,
        protocol: type[asyncio.Protocol] = H11Protocol,
        *,
        grace_seconds: float = 2.0,
        **settings: Any,
    ) -> None:
        super().__init__(
            Config(
                application,
                http=protocol,
                lifespan="off",
                log_config=None,
                access_log=False,
                ws="none",
                backlog=_ACCEPTED_AT_ONCE,
                **settings,
            )
        )
        self._listener = listener
        self._grace_seconds = grace_seconds
        self._ready_event = asyncio.Event()
        self._end_event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self.serve(sockets=[self._listener]))
        ready = asyncio.create_task(self._ready_event.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            self._task.result()
        # asyncio has shortened the queue to the number that it accepts at once.
        self._listener.listen(_BACKLOG)

    async def stop(self) -> None:
        self._end_event.set()
        self.should_exit = True
        if self._task:
            await self._task

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self._ready_event.set()
        await self._end_event.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            _, late_tasks = await asyncio.wait(self.server_state.tasks, timeout=self._grace_seconds)
            for task in late_tasks:
                task.cancel()
        # The data is on its way; do not wait for a client that never reads it.
        for _ in range(100):
            if not self.server_state.connections:
                return
            await asyncio.sleep(0.001)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


def listen(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Return a listening socket; raise `InputError` if the address cannot be used.

    Set IPPROTO_TCP explicitly, so that asyncio enables TCP_NODELAY.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host,
            port,
            type=socket.SOCK_STREAM,
            proto=socket.IPPROTO_TCP,
            flags=socket.AI_PASSIVE,
        )[0]
    except OSError as error:
        raise InputError(
            f"there is no address {host} to listen on: {error.strerror or error}"
        ) from error
    listener = bind_socket(family, address)
    listener.listen(_BACKLOG)
    return listener


def bind_socket(family: int, address: Any, *, shares_port: bool = False) -> socket.socket:
    """Return a bound socket. `shares_port`: whether the system distributes connections among sockets on this port."""
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InputError(
            f"port {address[1]} of {address[0]} cannot be used: {error.strerror or error}"
        ) from error
    return listener


def format_http_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
