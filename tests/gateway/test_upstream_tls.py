"""Real ways to an upstream: over TLS, through a proxy of the environment, on kept connections."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from everthread.gateway.contracts import Limits
from everthread.gateway.router import Upstream
from everthread.gateway.upstream import UpstreamClient
from tests.gateway.raw_http import (
    JSON,
    STREAM,
    RawMessage,
    RawUpstream,
    encode_chunk,
    open_raw_gateway,
    post_request,
    response_head,
    send_bytes,
    send_post,
    whole_answer,
)

HOST = "localhost"
BODY = b'{"model": "gpt-4o",  "messages": [{"role": "user", "content": "caf\\u00e9"}]}'


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """One that is trusted here, and nothing of the environment between."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return made


@dataclass
class TlsUpstream:
    """An upstream with TLS, and the host names requested from it."""

    upstream: RawUpstream
    port: int
    names: list[str | None] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"


@asynccontextmanager
async def serve_tls(
    authority: trustme.CA, upstream: RawUpstream, *names: str
) -> AsyncIterator[TlsUpstream]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or (HOST,))).configure_cert(context)
    here = TlsUpstream(upstream, 0)

    def asked(
        _socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext
    ) -> None:
        here.names.append(name)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.connections += 1
        await upstream.serve(reader, writer)

    context.sni_callback = asked
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        server.close()


async def test_relays_requests_answers_and_streams_over_tls(
    authority: trustme.CA,
) -> None:
    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        if b'"stream"' not in request.body:
            big = json.dumps({"id": "x" * 700_000}).encode()
            await whole_answer(200, [*JSON, (b"x-upstream", b"1")], big)(
                request, writer
            )
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
            heard = await send_post(url, "/v1/chat/completions", body, *JSON)
            assert heard.status == 200
            assert there.upstream.received[-1].body == body
            assert "x-trailer" not in heard.names
            if b"stream" in body:
                assert heard.body == b"data: {0}\n\ndata: {1}\n\ndata: {2}\n\n"
            else:
                assert len(heard.body) > 700_000
                assert heard.names["x-upstream"] == "1"
        assert (there.connections, there.names) == (1, [HOST]), (
            "one connection, which said for whom it is"
        )
        assert there.upstream.received[0].names["host"] == f"{HOST}:{there.port}"


async def test_explains_an_invalid_certificate(
    authority: trustme.CA,
) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    stranger = trustme.CA()
    door = await asyncio.start_server(plain, "127.0.0.1", 0)
    for issuer, name in ((authority, "elsewhere.example"), (stranger, HOST)):
        upstream = RawUpstream(whole_answer(200, JSON, b"{}"))
        async with (
            serve_tls(issuer, upstream, name) as there,
            open_raw_gateway(there.url) as (url, _),
        ):
            heard = await send_post(url, "/v1/chat/completions", BODY, *JSON)
            told = json.loads(heard.body)["error"]
            assert (heard.status, told["code"]) == (502, "upstream_unreachable")
            assert "certificate" in told["message"]
            assert "SSL_CERT_FILE" in told["message"]
            assert not upstream.received, "not a byte of the request was shown"
    async with open_raw_gateway(
        f"https://{HOST}:{door.sockets[0].getsockname()[1]}"
    ) as (
        url,
        _,
    ):
        heard = await send_post(url, "/v1/messages", BODY, *JSON)
        assert (heard.status, json.loads(heard.body)["error"]["type"]) == (
            502,
            "api_error",
        )
        assert "TLS" in json.loads(heard.body)["error"]["message"]
    door.close()


class TunnelProxy:
    """A proxy that opens tunnels, and passes on what is asked for by its whole address."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.port = 0

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
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


@asynccontextmanager
async def run_proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TunnelProxy]:
    proxy = TunnelProxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    try:
        yield proxy
    finally:
        server.close()


async def test_uses_the_proxy_of_the_environment_except_for_no_proxy(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = RawUpstream(
        whole_answer(200, [*JSON, (b"x-upstream", b"1")], b'{"id": 1}')
    )
    plain = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    port = plain.sockets[0].getsockname()[1]
    async with run_proxy(monkeypatch) as proxy, serve_tls(authority, upstream) as there:
        asked = post_request(
            "/v1/chat/completions?a=%2f",
            BODY,
            *JSON,
            (b"Authorization", b"Bearer sk-1"),
        )
        for address, line in (
            (there.url, b"CONNECT localhost:%d HTTP/1.1" % there.port),
            (
                f"http://127.0.0.1:{port}",
                b"POST http://127.0.0.1:%d/v1/chat/completions?a=%%2f HTTP/1.1" % port,
            ),
        ):
            async with open_raw_gateway(address) as (url, _):
                heard = await send_bytes(url, asked)
            assert (heard.status, heard.body, heard.names["x-upstream"]) == (
                200,
                b'{"id": 1}',
                "1",
            )
            got = upstream.received[-1]
            assert (got.body, got.names["authorization"]) == (BODY, "Bearer sk-1")
            assert "user-agent" not in got.names, "nothing of ours is added"
            assert proxy.lines[-1] == line
        through = len(proxy.lines)
        for spared in ("localhost", f"localhost:{there.port}", "*"):
            monkeypatch.setenv("NO_PROXY", spared)
            async with open_raw_gateway(there.url) as (url, _):
                assert (await send_bytes(url, asked)).status == 200
        assert len(proxy.lines) == through
        monkeypatch.setenv("NO_PROXY", "other.example")
        async with (
            serve_tls(trustme.CA(), upstream) as stranger,
            open_raw_gateway(stranger.url) as (url, _),
        ):
            heard = await send_bytes(url, asked)
            assert heard.status == 502
            assert b"certificate" in heard.body, (
                "who is behind the proxy is looked at too"
            )
    plain.close()


async def test_does_not_use_a_connection_that_was_closed(
    authority: trustme.CA,
) -> None:
    """Nor is a request sent twice whose outcome is unknown."""
    ends = asyncio.Event()
    heard: list[bytes] = []

    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        heard.append(request.line.split()[1])
        if b"/late" in request.line and len(heard) % 2:
            writer.close()  # just when the next request was on its way
            return
        await whole_answer(200, JSON, b"{}")(request, writer)
        if b"/close" in request.line:
            await writer.drain()
            writer.close()
            ends.set()

    async with serve_tls(authority, RawUpstream(answer)) as there:
        client = UpstreamClient(Limits())
        upstream = Upstream("only", there.url)

        async def asked(method: str, path: bytes) -> int:
            got = await client.send(
                upstream, method, path, [], b"{}" if method == "POST" else None
            )
            assert b"".join([piece async for piece in got.aiter_raw()]) == b"{}"
            await got.aclose()
            return got.status_code

        await asked("POST", b"/close")
        await ends.wait()
        assert await asked("POST", b"/next") == 200
        assert there.connections == 2, (
            "the closed one was seen, and nothing said into it"
        )
        assert await asked("GET", b"/late") == 200
        assert heard == [b"/close", b"/next", b"/late", b"/late"]
        with pytest.raises(Exception, match="cannot be reached"):
            await asked("POST", b"/late")
        assert len(heard) == 5, (
            "a call that may have been paid for is not made again by itself"
        )
        await client.close()
