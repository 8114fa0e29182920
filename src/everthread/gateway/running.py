"""The gateway as a running server: `async with Gateway(service) as gateway: gateway.url`."""

from __future__ import annotations

import asyncio
from typing import Self

from everthread.errors import InputError
from everthread.gateway.patience import connection_limit, header_timeout_protocol
from everthread.gateway.service import Service
from everthread.gateway.serving import LoopServer, listen

_PATIENCE = 30.0
"""For answers that are being sent when it ends."""
_TELLING = 2.0
"""Of it, to tell who waits for a turn how it ended."""


class Gateway:
    """Listens, serves, and ends after what it is answering."""

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        patience: float = _PATIENCE,
        connections: int | None = None,
    ) -> None:
        service.may_listen(host)
        self._service = service
        self._host = host
        self._port = port
        self._patience = patience
        self._connections = connections
        """At once; None: as many as the system allows."""
        self._server: LoopServer | None = None

    @property
    def url(self) -> str:
        if self._server is None:
            raise InputError("the gateway is not running; open it with `async with`")
        shown = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{shown}:{self._port}"

    def page(self) -> str | None:
        """Where a person looks: with a link that opens the pages once, where no key does. None: they are off."""
        pages = self._service.pages
        if pages is None or pages.access.door == "off":
            return None
        return f"{self.url}{pages.new_link()}" if pages.access.door == "local" else f"{self.url}/"

    async def __aenter__(self) -> Self:
        listener = listen(self._port, self._host)
        self._port = listener.getsockname()[1]
        limits = self._service.proxy.limits
        self._server = LoopServer(
            self._service,
            listener,
            header_timeout_protocol(
                limits.header_seconds, limits.header_bytes, self._connections or connection_limit()
            ),
            patience=self._patience,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            log_level="critical",  # the gateway tells what happens itself, without headers or bodies
        )
        await self._server.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        async with asyncio.TaskGroup() as ending:
            ending.create_task(self._service.end(max(0.0, self._patience - _TELLING)))
            if self._server:
                ending.create_task(self._server.stop())
        self._server = None
        await self._service.proxy.close()
