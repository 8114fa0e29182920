"""A web server inside a running event loop: there at once, gone at once, and no hand on the process's signals."""

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


class _Quiet(Server):
    """Begins and ends at an event, where uvicorn looks ten times a second whether it should."""

    def __init__(self, config: Config, patience: float) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.ending = asyncio.Event()
        self._patience = patience

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.ready.set()
        await self.ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            _, late = await asyncio.wait(self.server_state.tasks, timeout=self._patience)
            for task in late:
                task.cancel()
        for _ in range(100):  # what was sent is on its way; a client that never reads it is not waited for
            if not self.server_state.connections:
                return
            await asyncio.sleep(0.001)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


class LoopServer:
    """Serves the application on a socket that listens already; `patience`: for what is being answered at the end."""

    def __init__(
        self,
        application: ASGIApp,
        listener: socket.socket,
        protocol: type[asyncio.Protocol] = H11Protocol,
        *,
        patience: float = 2.0,
        **settings: Any,
    ) -> None:
        config = Config(
            application,
            http=protocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
            **settings,
        )
        self._server = _Quiet(config, patience)
        self._listener = listener
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._server.ending.set()
        self._server.should_exit = True
        if self._task:
            await self._task


def listen(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A socket that says that it is TCP: only then asyncio sends small pieces at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise InputError(f"there is no address {host} to listen on: {error.strerror or error}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise InputError(f"port {port} of {host} cannot be used: {error.strerror or error}") from error
    return listener
