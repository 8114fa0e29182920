"""A web server inside a running event loop: there at once, gone at once, and no hand on the process's signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

_PATIENCE = 2.0
"""How long answers that are being sent may take when the server ends."""


class _Quiet(Server):
    """Begins and ends at an event, where uvicorn looks ten times a second whether it should."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.ending = asyncio.Event()

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
            _, late = await asyncio.wait(self.server_state.tasks, timeout=_PATIENCE)
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
    """Serves the application on a socket that listens already."""

    def __init__(self, application: ASGIApp, listener: socket.socket, protocol: type[H11Protocol]) -> None:
        config = Config(
            application,
            http=protocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            ws="none",
        )
        self._server = _Quiet(config)
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
