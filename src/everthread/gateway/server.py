"""Run uvicorn inside a running event loop, with limits for connections and headers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
from collections.abc import Iterator
from typing import Any, ClassVar, Self, cast

import httptools
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from everthread.errors import InputError
from everthread.gateway.app import GatewayApp
from everthread.gateway.request.request_head import DISCONNECT, DisconnectWatchers

_BACKLOG = 512
"""Maximum connections that wait to be accepted."""
_ACCEPTED_AT_ONCE = 32
"""Maximum connections accepted at once before surplus ones are closed, so that a burst cannot exhaust file handles."""


class LoopServer(Server):
    """Run uvicorn on a bound socket in the running event loop. `grace_seconds`: time for open answers when it stops.

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
            _, late_tasks = await asyncio.wait(
                self.server_state.tasks, timeout=self._grace_seconds
            )
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


def bind_socket(
    family: int, address: Any, *, shares_port: bool = False
) -> socket.socket:
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


def http_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""The response that uvicorn writes first if the client waits for permission to send its body."""
_MAX_FILES = 65_536
_MAX_CONNECTIONS = 16_384
_OTHER_FILES = 128
_FRAMING_HEADERS = (b"content-length", b"transfer-encoding")


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits for a request's headers, which also reads the body of a request with an upgrade.

    httptools drops such a body and reads its bytes as the next request (request smuggling). Some clients offer an
    upgrade to `h2c` by default. A server may ignore such an offer (RFC 9110, 7.8), and this one ignores all of them.
    """

    seconds: ClassVar[float]
    header_bytes: ClassVar[int]
    max_connections: ClassVar[int]
    idle_connections: ClassVar[dict[HeaderTimeoutProtocol, None]]
    """Connections of one server that have no open request, the longest idle one first."""
    _header_timer: asyncio.TimerHandle | None = None
    _in_headers = True
    _header_size = 0
    _watchers: DisconnectWatchers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._watchers = DisconnectWatchers()
        self.idle_connections[self] = None
        if len(self.connections) > self.max_connections:
            # Close an idle connection, so that one client with many connections does not lock others out.
            longest_idle = next(iter(self.idle_connections))
            # Remove it now: its transport reports the end later.
            del self.idle_connections[longest_idle]
            longest_idle.transport.abort()
        self._start_header_timer()

    def data_received(self, data: bytes) -> None:
        self._header_size += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if not self._in_headers:
            self._stop_header_timer()
        elif self._header_size > self.header_bytes and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        elif self._header_timer is None:
            self._start_header_timer()

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Drop fields after the body (trailers), which come too late for any decision."""
        if self._in_headers:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self.idle_connections.pop(self, None)
        if self.parser.get_method() == b"CONNECT":
            # The parser reports this as an error, and the client gets 400.
            raise ValueError("no tunnel is opened here")
        cast("dict[str, Any]", self.scope)["extensions"] = {DISCONNECT: self._watchers}
        super().on_headers_complete()
        self.cycle.transport = cast(
            "asyncio.Transport", _HeadBuffer(self.transport, self.loop)
        )

    def on_message_complete(self) -> None:
        # The parser skipped the body, which is still to come.
        if self.parser.should_upgrade():
            return
        self._header_size = 0
        super().on_message_complete()
        # A long body pauses reading; a paused connection would not notice that its client leaves.
        if not self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and self in self.connections:
            self.idle_connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self.idle_connections.pop(self, None)
        super().connection_lost(exc)
        self._watchers.end()

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._decline_upgrade()
            else:
                return

    def _decline_upgrade(self) -> None:
        """Continue with a new parser that knows the request's framing, so that it reads the next bytes as the body."""
        resumed = _ResumedRequest(self)
        self.parser = httptools.HttpRequestParser(resumed)
        framing = b"".join(
            name + b": " + value + b"\r\n"
            for name, value in self.headers
            if name in _FRAMING_HEADERS
        )
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.seconds, self.transport.close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class _HeadBuffer:
    """A transport that buffers a response's head, to write it together with a body that follows immediately."""

    __slots__ = ("_head", "_is_begun", "_loop", "_transport")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self._is_begun = False

    def write(self, data: bytes) -> None:
        if self._head:
            data = self._head + data
            self._head = b""
        elif not self._is_begun and data != _CONTINUE:
            self._is_begun = True
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        head = self._head
        self._head = b""
        if head:
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class _ResumedRequest:
    """Parser callbacks after a declined upgrade. Ignore the repeated head; pass everything else to the protocol."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._is_head_known = True
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self._is_head_known:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_head_known:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_head_known:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_head_known:
            self._is_head_known = False
        else:
            self._protocol.on_headers_complete()


def make_header_timeout_protocol(
    seconds: float, header_bytes: int, max_connections: int
) -> type[HeaderTimeoutProtocol]:
    """Return a protocol class with the limits of one server."""
    limits = {
        "seconds": seconds,
        "header_bytes": header_bytes,
        "max_connections": max_connections,
        "idle_connections": {},
    }
    return type("HeaderTimeout", (HeaderTimeoutProtocol,), limits)


def find_connection_limit() -> int:
    """Return the maximum number of client connections, given as many to upstreams, and files and the store.

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
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (min(file_limit, _MAX_FILES), hard)
            )
            soft = min(file_limit, _MAX_FILES)
    files = _MAX_FILES if soft == resource.RLIM_INFINITY else soft
    return max(16, min(_MAX_CONNECTIONS, (files - _OTHER_FILES) // 2))


_SWITCH_SECONDS = 0.0005


def tune_process() -> None:
    """Shorten the pauses of a process that runs only a gateway. Call this once the process is ready.

    Exclude loaded modules and other lasting objects from later garbage collections (`benchmarks gateway_parts` measures
    the pauses with and without). Let other threads yield to the event loop sooner than after Python's default of 5 ms.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_SECONDS)


_IDLE_SECONDS = 120
"""Seconds for which an idle connection stays open: longer than clients keep connections (Go and reqwest: 90 s), so that
no request is sent on a connection that is just being closed."""
_STOP_SECONDS = 30.0
"""Seconds that open answers have to end when the gateway stops."""
_STOP_NOTICE_SECONDS = 2.0
"""Seconds of `_STOP_SECONDS` that are reserved to send the end of a turn to waiting callers."""


class Gateway:
    """Run the gateway: listen and serve, and let open answers end before stopping."""

    def __init__(  # noqa: PLR0913 - where and how long, each by its name
        self,
        service: GatewayApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        grace_seconds: float = _STOP_SECONDS,
        connections: int | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        service.check_listen_host(host)
        self._service = service
        self._host = host
        self._port = port
        self._grace_seconds = grace_seconds
        self._connections = connections
        """Maximum concurrent connections; None for as many as the system allows."""
        self._listener = listener
        """A bound socket to use; None to bind one."""
        self._server: LoopServer | None = None

    @property
    def url(self) -> str:
        if self._server is None:
            raise InputError("the gateway is not running; open it with `async with`")
        return http_url(self._host, self._port)

    def find_dashboard_url(self) -> str | None:
        """Return the address of the dashboard, a one-time link if no key is needed; None if it is off."""
        pages = self._service.pages
        if pages is None or pages.access.is_off:
            return None
        return (
            f"{self.url}{pages.access.make_login_link()}"
            if pages.access.auth == "none"
            else f"{self.url}/"
        )

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
                self._connections or find_connection_limit(),
            ),
            grace_seconds=self._grace_seconds,
            timeout_keep_alive=_IDLE_SECONDS,
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
                self._service.shut_down(
                    max(0.0, self._grace_seconds - _STOP_NOTICE_SECONDS)
                )
            )
            if self._server:
                task_group.create_task(self._server.stop())
        self._server = None
        await self._service.proxy.close()
