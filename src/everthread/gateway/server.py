"""Listen and serve the gateway on one address."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
from typing import Self

from everthread.errors import InputError
from everthread.gateway.app import GatewayApp
from everthread.gateway.http_protocol import make_header_timeout_protocol
from everthread.gateway.loop_server import LoopServer, format_http_url, listen

_MAX_FILES = 65_536
_MAX_CONNECTIONS = 16_384
_RESERVED_FILE_COUNT = 128
"""Files that are left for other uses than connections: the store, logs, modules."""
_THREAD_SWITCH_INTERVAL_SECONDS = 0.0005
"""Seconds after which a thread must let others run."""
_CLIENT_IDLE_TIMEOUT_SECONDS = 120
"""Seconds for which an idle connection stays open: longer than clients keep connections (Go and reqwest: 90 s), so that
no request is sent on a connection that is just being closed."""
_STOP_TIMEOUT_SECONDS = 30.0
"""Seconds that open answers have to end when the gateway stops."""
_STOP_NOTICE_SECONDS = 2.0
"""Seconds of `_STOP_TIMEOUT_SECONDS` that are reserved to send the end of a turn to waiting callers."""


class Gateway:
    """A gateway that listens and serves, and lets open answers end before it stops."""

    def __init__(  # noqa: PLR0913 - where and how long, each by its name
        self,
        service: GatewayApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        grace_seconds: float = _STOP_TIMEOUT_SECONDS,
        max_connections: int | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        service.check_listen_host(host)
        self._service = service
        self._host = host
        self._port = port
        self._grace_seconds = grace_seconds
        self._max_connections = max_connections
        """Maximum concurrent connections, or None for as many as the system allows."""
        self._listener = listener
        """A bound socket to use; None to bind one."""
        self._server: LoopServer | None = None

    @property
    def url(self) -> str:
        if self._server is None:
            raise InputError("the gateway is not running; open it with `async with`")
        return format_http_url(self._host, self._port)

    def find_dashboard_url(self) -> str | None:
        """Return the address of the dashboard, a one-time link if no key is needed, or None if it is off."""
        pages = self._service.pages
        if pages is None or pages.login.is_off:
            return None
        path = pages.login.make_login_link() if pages.login.auth == "none" else "/"
        return f"{self.url}{path}"

    async def __aenter__(self) -> Self:
        listener = self._listener or listen(self._port, self._host)
        self._port = listener.getsockname()[1]
        limits = self._service.proxy.limits
        self._server = LoopServer(
            self._service,
            listener,
            make_header_timeout_protocol(
                limits.header_seconds,
                limits.header_bytes,
                self._max_connections or find_connection_limit(),
            ),
            grace_seconds=self._grace_seconds,
            timeout_keep_alive=_CLIENT_IDLE_TIMEOUT_SECONDS,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            log_level="critical",  # the gateway writes its own log, without headers or bodies
        )
        await self._server.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        async with asyncio.TaskGroup() as task_group:
            task_group.create_task(
                self._service.shut_down(max(0.0, self._grace_seconds - _STOP_NOTICE_SECONDS))
            )
            if self._server:
                task_group.create_task(self._server.stop())
        self._server = None
        await self._service.proxy.close()


def find_connection_limit() -> int:
    """Return the maximum number of client connections, if each needs one more connection, to its upstream.

    Raise the soft limit of open files to the hard limit first, because many systems start with 1,024.
    """
    try:
        import resource  # noqa: PLC0415  not on every system
    except ImportError:
        return _MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    file_limit = hard if hard != resource.RLIM_INFINITY else _MAX_FILES
    if soft != resource.RLIM_INFINITY and soft < file_limit:
        # Not allowed: keep the current limit.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(file_limit, _MAX_FILES), hard))
            soft = min(file_limit, _MAX_FILES)
    files = _MAX_FILES if soft == resource.RLIM_INFINITY else soft
    return max(16, min(_MAX_CONNECTIONS, (files - _RESERVED_FILE_COUNT) // 2))


def tune_process() -> None:
    """Shorten the pauses of a process that runs only a gateway. Call this once the process is ready.

    Exclude loaded modules and other lasting objects from later garbage collections (`benchmarks gateway_parts` measures
    the pauses with and without). Let other threads yield to the event loop sooner than after Python's default of 5 ms.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_THREAD_SWITCH_INTERVAL_SECONDS)
