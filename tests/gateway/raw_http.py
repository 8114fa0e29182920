"""HTTP as bytes: an upstream that sends exactly the given bytes, and a client that returns exactly what it received."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from everthread.core.types import ModelReply
from everthread.factory.gateways import make_features
from everthread.gateway.access.authentication import Authenticator
from everthread.gateway.app import GatewayApp
from everthread.gateway.contracts import (
    GatewayLimits,
    IncomingRequest,
    Mode,
    Outgoing,
    RequestManager,
)
from everthread.gateway.filters.compaction_answers import MakeItem
from everthread.gateway.filters.telemetry import TelemetryFeature
from everthread.gateway.proxy import Proxy
from everthread.gateway.request.request_reader import RequestReader
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway
from everthread.gateway.site_policy import SitePolicy
from everthread.thread.caller.caller_request import Outcome

JSON = [(b"content-type", b"application/json")]


@dataclass
class RawMessage:
    """A request or an answer."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    chunks: list[bytes] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.line.split()[1])

    @property
    def header_values(self) -> dict[str, str]:
        return {name.decode().lower(): value.decode("latin-1") for name, value in self.headers}


async def read_message(
    reader: asyncio.StreamReader, *, on_chunk: Callable[[bytes], None] | None = None
) -> RawMessage:
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head[:-4].split(b"\r\n")
    fields = [(name, value.strip()) for name, _, value in (text.partition(b":") for text in rest)]
    message = RawMessage(line, fields)
    if message.header_values.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            piece = await reader.readexactly(size)
            message.chunks.append(piece)
            if on_chunk:
                on_chunk(piece)
            await reader.readexactly(2)
        await reader.readline()
        message.body = b"".join(message.chunks)
    elif "content-length" in message.header_values:
        message.body = await reader.readexactly(int(message.header_values["content-length"]))
    return message


WriteAnswer = Callable[[RawMessage, asyncio.StreamWriter], Awaitable[None]]


class RawUpstream:
    """Answers each request by `answer`; keeps the requests, and notes when its peer disconnects."""

    def __init__(self, answer: WriteAnswer) -> None:
        self.answer = answer
        self.received: list[RawMessage] = []
        self.disconnected = asyncio.Event()
        self.url = ""
        self.open_connections = 0
        self._changed = asyncio.Condition()

    async def wait_for_requests(self, number: int) -> None:
        """Wait for this number of requests."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.received) >= number)

    async def wait_until_connections_at_most(self, number: int) -> None:
        """Wait until at most this number of connections is open."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.open_connections <= number)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        try:
            while True:
                request = await read_message(reader)
                async with self._changed:
                    self.received.append(request)
                    self._changed.notify_all()
                await self.answer(request, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.disconnected.set()
        finally:
            writer.close()
            self.open_connections -= 1
            async with self._changed:
                self._changed.notify_all()


def fixed_answer(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> WriteAnswer:
    """Return a function that writes this answer."""

    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        write_answer(
            writer,
            status,
            headers=headers,
            body=body,
        )

    return answer


def write_answer(
    writer: asyncio.StreamWriter,
    status: int,
    headers: Iterable[tuple[bytes, bytes]],
    body: bytes,
) -> None:
    length = (b"content-length", str(len(body)).encode())
    writer.write(response_head(status, [*headers, length]) + body)


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return b"HTTP/1.1 %d Any\r\n" % status + lines + b"\r\n"


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = [(b"content-type", b"text/event-stream"), (b"transfer-encoding", b"chunked")]


class PassThroughManager:
    """A manager that changes nothing and keeps what it was asked."""

    thread = ""

    def __init__(self) -> None:
        self.reader: RequestReader | None = None
        self.prepared: list[IncomingRequest] = []
        self.outcomes: list[Outcome] = []
        self.errors: list[tuple[int, bytes]] = []
        self.sent: list[tuple[IncomingRequest, Outgoing]] = []
        self.recorded = asyncio.Event()

    def forward_first(self, _incoming: IncomingRequest) -> None:
        return None

    async def prepare(self, incoming: IncomingRequest) -> PassThroughTurn:
        self.prepared.append(incoming)
        return PassThroughTurn(
            self,
            incoming,
            outgoing=await self.outgoing(incoming),
            thread=self.thread,
        )

    async def outgoing(self, incoming: IncomingRequest) -> Outgoing:
        return Outgoing(incoming.body.raw)

    async def recover_with(
        self, _incoming: IncomingRequest, _sent: Outgoing, _body: bytes
    ) -> Outgoing | None:
        return None

    async def record(self, incoming: IncomingRequest, sent: Outgoing, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.sent.append((incoming, sent))
        self.recorded.set()


@dataclass
class PassThroughTurn:
    manager: PassThroughManager
    incoming: IncomingRequest
    outgoing: Outgoing
    thread: str = ""

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        self.manager.errors.append((status, body))
        instead = await self.manager.recover_with(self.incoming, self.outgoing, body)
        self.outgoing = instead or self.outgoing
        return instead

    async def resume_after_recall(self, reply: ModelReply) -> Outgoing | None:  # noqa: ARG002
        return None

    async def retry_without_recall(self, reply: ModelReply) -> Outgoing | None:  # noqa: ARG002
        return None

    async def make_response_headers(self) -> Mapping[str, str]:
        return self.outgoing.headers

    async def record(self, outcome: Outcome) -> None:
        await self.manager.record(self.incoming, self.outgoing, outcome)


@asynccontextmanager
async def open_raw_upstream(
    answer: WriteAnswer | None = None,
) -> AsyncIterator[RawUpstream]:
    """Listen on a port; without an `answer` every request gets an empty object."""
    upstream = RawUpstream(answer or fixed_answer(200, JSON, b"{}"))
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield upstream
    finally:
        server.close()


@asynccontextmanager
async def open_raw_gateway(
    upstreams: str | list[Upstream],
    manager: RequestManager | None = None,
    *,
    limits: GatewayLimits | None = None,
    include_usage: bool = True,
    mode: Mode = "managed",
    authenticator: Authenticator | None = None,
    telemetry: TelemetryFeature | None = None,
    sites: SitePolicy | None = None,
    make_item: MakeItem | None = None,
) -> AsyncIterator[tuple[str, Proxy]]:
    """Start a gateway before these upstreams; yield its address and its proxy."""
    configured_upstreams = (
        [Upstream("only", upstreams, mode=mode)] if isinstance(upstreams, str) else upstreams
    )
    proxy = Proxy(
        Routes(configured_upstreams),
        manager or PassThroughManager(),
        features=make_features(
            include_usage=include_usage, make_item=make_item, telemetry=telemetry
        ),
        limits=limits,
    )
    service = GatewayApp(proxy, authenticator=authenticator, site_policy=sites)
    async with Gateway(service, grace_seconds=1.0) as running:
        yield running.url, proxy


@asynccontextmanager
async def raw_gateway(
    answer: WriteAnswer | None = None, manager: RequestManager | None = None, **options: Any
) -> AsyncIterator[tuple[str, RawUpstream]]:
    """Start a gateway before an upstream that writes this answer; yield its address and the upstream."""
    async with (
        open_raw_upstream(answer) as upstream,
        open_raw_gateway(upstream.url, manager, **options) as (url, _),
    ):
        yield url, upstream


async def send_bytes(
    url: str, request: bytes, *, on_chunk: Callable[[bytes], None] | None = None
) -> RawMessage:
    """Send these bytes and return the answer."""
    reader, writer = await connect(url)
    try:
        writer.write(request)
        return await read_message(reader, on_chunk=on_chunk)
    finally:
        writer.close()


async def send_post(
    url: str, path: str, body: bytes = b"{}", *headers: tuple[bytes, bytes]
) -> RawMessage:
    """Send a POST request and return the answer."""
    return await send_bytes(url, post_request(path, body, *headers))


async def send_get(
    url: str, path: str, *headers: tuple[bytes, bytes], host: str = "127.0.0.1"
) -> RawMessage:
    """Send a GET request and return the answer."""
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n".encode()
    return await send_bytes(url, head + lines + b"\r\n")


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 24)


def post_request(path: str, body: bytes, *headers: tuple[bytes, bytes]) -> bytes:
    fields = [
        (b"Host", b"127.0.0.1"),
        *headers,
        (b"Content-Length", str(len(body)).encode()),
    ]
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
    return b"POST " + path.encode() + b" HTTP/1.1\r\n" + lines + b"\r\n" + body
