"""Real ways to an upstream: over TLS, through a proxy of the environment, on kept connections."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.router import Upstream
from everthread.gateway.upstream import UpstreamClient
from tests.gateway.raw_http import (
    JSON,
    STREAM,
    RawMessage,
    RawUpstream,
    encode_chunk,
    fixed_answer,
    open_raw_gateway,
    response_head,
    send_post,
)

HOST = "localhost"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BODY = b'{"model": "gpt-4o",  "messages": [{"role": "user", "content": "caf\\u00e9"}]}'


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """An authority whose certificates are trusted."""
    certificate_authority = trustme.CA()
    certificate_authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return certificate_authority


@asynccontextmanager
async def listen(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve on a free port and yield it."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@dataclass
class TlsUpstream:
    """An upstream with TLS, and the host names requested from it."""

    upstream: RawUpstream
    port: int = 0
    names: list[str | None] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self.upstream.serve(reader, writer)

    def note_name(self, _socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        self.names.append(name)


@asynccontextmanager
async def serve_tls(
    authority: trustme.CA, upstream: RawUpstream, name: str = HOST
) -> AsyncIterator[TlsUpstream]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    tls_upstream = TlsUpstream(upstream)
    context.sni_callback = tls_upstream.note_name
    async with listen(tls_upstream.serve, context) as tls_upstream.port:
        yield tls_upstream


async def test_relays_requests_answers_and_streams_over_tls(
    authority: trustme.CA,
) -> None:
    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        if b'"stream"' not in request.body:
            big = json.dumps({"id": "x" * 700_000}).encode()
            await fixed_answer(200, [*JSON, (b"x-upstream", b"1")], big)(request, writer)
            return
        writer.write(response_head(200, STREAM))
        for number in range(3):
            writer.write(encode_chunk(b"data: {%d}\n\n" % number))
            await writer.drain()
        writer.write(b"0\r\nx-trailer: late\r\n\r\n")

    async with (
        serve_tls(authority, RawUpstream(answer)) as there,
        open_raw_gateway(there.url, mode="off") as (url, _),
    ):
        for body in (
            BODY,
            BODY.replace(b"}]}", b'}], "stream": true}'),
            b" " * 900_000 + BODY,
        ):
            response = await send_post(url, "/v1/chat/completions", body, *JSON)
            assert response.status == 200
            assert there.upstream.received[-1].body == body
            assert "x-trailer" not in response.header_values
            if b"stream" in body:
                assert response.body == b"data: {0}\n\ndata: {1}\n\ndata: {2}\n\n"
            else:
                assert len(response.body) > 700_000
                assert response.header_values["x-upstream"] == "1"
        assert there.connections == 1, "one connection, which said for whom it is"
        assert there.names == [HOST], "one connection, which said for whom it is"
        assert there.upstream.received[0].header_values["host"] == f"{HOST}:{there.port}"


@pytest.mark.parametrize("is_stranger", [False, True], ids=["other name", "stranger"])
async def test_explains_an_invalid_certificate(is_stranger: bool, authority: trustme.CA) -> None:
    upstream = RawUpstream(fixed_answer(200, JSON, b"{}"))
    issuer = trustme.CA() if is_stranger else authority
    name = HOST if is_stranger else "elsewhere.example"
    async with (
        serve_tls(issuer, upstream, name) as there,
        open_raw_gateway(there.url) as (url, _),
    ):
        answer = await send_post(url, "/v1/chat/completions", BODY, *JSON)
    error = json.loads(answer.body)["error"]
    assert answer.status == 502
    assert error["code"] == "upstream_unreachable"
    assert "certificate" in error["message"]
    assert "SSL_CERT_FILE" in error["message"]
    assert not upstream.received, "not a byte of the request was shown"


async def test_explains_that_an_upstream_has_no_tls() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with (
        listen(answer) as port,
        open_raw_gateway(f"https://{HOST}:{port}") as (url, _),
    ):
        refused = await send_post(url, "/v1/messages", BODY, *JSON)
    error = json.loads(refused.body)["error"]
    assert refused.status == 502
    assert error["type"] == "api_error"
    assert "TLS" in error["message"]


class TunnelProxy:
    """A proxy that opens tunnels, and passes on what is asked for by its whole address."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readuntil(b"\r\n\r\n")
        self.lines.append(first.split(b"\r\n")[0])
        method, target, _ = self.lines[-1].split()
        port = int(target.rsplit(b":", 1)[1].split(b"/")[0])
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        if method == b"CONNECT":
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            onward.write(first)
        await asyncio.gather(_copy(reader, onward), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except ConnectionError:
        pass  # the other side left, which is its right
    finally:
        writer.close()


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TunnelProxy]:
    """A proxy that the environment names."""
    tunnel = TunnelProxy()
    async with listen(tunnel.serve) as port:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        yield tunnel


CREDENTIAL = (b"Authorization", b"Bearer sk-1")


async def test_uses_the_proxy_of_the_environment(authority: trustme.CA, proxy: TunnelProxy) -> None:
    path = "/v1/chat/completions?a=%2f"
    relayed = fixed_answer(200, [*JSON, (b"x-upstream", b"1")], b'{"id": 1}')
    upstream = RawUpstream(relayed)
    async with listen(upstream.serve) as port, serve_tls(authority, upstream) as there:
        plain = f"http://127.0.0.1:{port}"
        lines = {
            there.url: f"CONNECT localhost:{there.port} HTTP/1.1",
            plain: f"POST {plain}{path} HTTP/1.1",
        }
        for address, line in lines.items():
            async with open_raw_gateway(address) as (url, _):
                answer = await send_post(
                    url,
                    path,
                    BODY,
                    *JSON,
                    CREDENTIAL,
                )
            assert answer.status == 200
            assert answer.body == b'{"id": 1}'
            assert answer.header_values["x-upstream"] == "1"
            received = upstream.received[-1]
            assert received.body == BODY
            assert received.header_values["authorization"] == "Bearer sk-1"
            assert "user-agent" not in received.header_values, "the gateway adds nothing"
            assert proxy.lines[-1] == line.encode()


@pytest.mark.parametrize("excluded", [HOST, f"{HOST}:PORT", "*"])
async def test_uses_no_proxy_for_excluded_hosts(
    excluded: str,
    authority: trustme.CA,
    proxy: TunnelProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upstream = RawUpstream(fixed_answer(200, JSON, b"{}"))
    async with serve_tls(authority, upstream) as there:
        monkeypatch.setenv("NO_PROXY", excluded.replace("PORT", str(there.port)))
        async with open_raw_gateway(there.url) as (url, _):
            answer = await send_post(url, "/v1/chat/completions", BODY, *JSON)
    assert answer.status == 200
    assert proxy.lines == []


async def test_checks_the_certificate_of_an_upstream_behind_a_proxy(
    proxy: TunnelProxy,
) -> None:
    upstream = RawUpstream(fixed_answer(200, JSON, b"{}"))
    async with (
        serve_tls(trustme.CA(), upstream) as stranger,
        open_raw_gateway(stranger.url) as (url, _),
    ):
        answer = await send_post(url, "/v1/chat/completions", BODY, *JSON)
    assert answer.status == 502
    assert b"certificate" in answer.body
    assert len(proxy.lines) == 1


async def test_does_not_use_a_connection_that_was_closed(
    authority: trustme.CA,
) -> None:
    """Nor is a request sent twice whose outcome is unknown."""
    ends = asyncio.Event()
    received: list[bytes] = []

    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        received.append(request.line.split()[1])
        if b"/late" in request.line and len(received) % 2:
            writer.close()  # just when the next request was on its way
            return
        await fixed_answer(200, JSON, b"{}")(request, writer)
        if b"/close" in request.line:
            await writer.drain()
            writer.close()
            ends.set()

    async with serve_tls(authority, RawUpstream(answer)) as there:
        client = UpstreamClient(GatewayLimits())
        upstream = Upstream("only", there.url)

        async def asked(method: str, path: bytes) -> int:
            got = await client.send(
                upstream,
                method,
                path,
                [],
                b"{}" if method == "POST" else None,
            )
            assert b"".join([piece async for piece in got.pieces()]) == b"{}"
            await got.close()
            return got.status_code

        await asked("POST", b"/close")
        await ends.wait()
        assert await asked("POST", b"/next") == 200
        assert there.connections == 2, "the closed one was seen, and nothing said into it"
        assert await asked("GET", b"/late") == 200
        assert received == [b"/close", b"/next", b"/late", b"/late"]
        with pytest.raises(Exception, match="cannot be reached"):
            await asked("POST", b"/late")
        assert len(received) == 5, "a call that may have been paid for is not made again by itself"
        await client.close()
