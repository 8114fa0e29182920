"""One request stays one request: no body is dropped, no byte of one client's request reaches another's answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.router import Upstream
from everthread.gateway.upstream import UpstreamClient
from tests.apis import CHAT_PATH
from tests.gateway.raw_http import (
    JSON,
    RawMessage,
    connect,
    encode_chunk,
    fixed_answer,
    open_raw_upstream,
    post_request,
    raw_gateway,
    read_message,
    send_bytes,
    send_post,
)

FILES = "/v1/files"
OFFERS = [
    ((b"Connection", b"Upgrade"), (b"Upgrade", b"foo")),
    (
        (b"Connection", b"Upgrade, HTTP2-Settings"),
        (b"Upgrade", b"h2c"),
        (b"HTTP2-Settings", b"AAMAAABk"),
    ),
]


async def echo(request: RawMessage, writer: asyncio.StreamWriter) -> None:
    """Answer with the request's own bytes."""
    await fixed_answer(200, JSON, request.line + b"|" + request.body)(request, writer)


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("path", [CHAT_PATH, FILES])
async def test_ignores_an_offered_upgrade(
    path: str, offer: tuple[tuple[bytes, bytes], ...]
) -> None:
    """Neither requests hidden in a dropped body are answered, nor is the next request read as a body."""
    hidden = post_request(CHAT_PATH, b'{"model":"evil-1"}') + post_request(
        CHAT_PATH, b'{"model":"evil-2"}'
    )
    async with raw_gateway(echo) as (url, upstream):
        request = post_request(path, hidden, *offer)
        response = await send_bytes(url, request)
        reader, writer = await connect(url)
        cut = len(request) - len(hidden)
        for piece in (request[:cut], request[cut : cut + 5], request[cut + 5 :]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        pieces = await read_message(reader)
        writer.write(post_request(CHAT_PATH, b'{"model":"next"}'))  # the connection stays usable
        following = await read_message(reader)
        writer.close()
        victim = await send_post(url, CHAT_PATH, b'{"model":"victim"}')
    line = b"POST " + path.encode() + b" HTTP/1.1|"
    assert response.body == pieces.body
    assert pieces.body == line + hidden
    assert following.body.endswith(b'{"model":"next"}')
    assert victim.body.endswith(b'{"model":"victim"}')
    assert len(upstream.received) == 4
    for received_request in upstream.received:
        assert not {"upgrade", "connection", "http2-settings"} & set(received_request.header_values)


async def test_reads_chunked_and_pipelined_requests_after_an_offered_upgrade() -> None:
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    chunked = (
        head
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + encode_chunk(b"one")
        + encode_chunk(b"two")
        + b"0\r\n\r\n"
    )
    async with raw_gateway(echo) as (url, _):
        reader, writer = await connect(url)
        writer.write(chunked + head + b"\r\n" + chunked + post_request(FILES, b"last"))
        bodies = [(await read_message(reader)).body.partition(b"|")[2] for _ in range(4)]
        writer.close()
    assert bodies == [b"onetwo", b"", b"onetwo", b"last"]


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/responses", "/responses", FILES, "/healthz"])
async def test_refuses_websockets(path: str) -> None:
    request = (
        b"GET "
        + path.encode()
        + b" HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with raw_gateway(echo) as (url, upstream):
        answer = await send_bytes(url, request)
        assert upstream.received == []
    assert answer.status == 426
    assert answer.header_values["upgrade"] == "HTTP/1.1"
    assert json.loads(answer.body)["error"]["code"] == "no_websocket"


async def test_refuses_connect_requests() -> None:
    async with raw_gateway(echo) as (url, upstream):
        answer = await send_bytes(
            url,
            b"CONNECT example.com:443 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            + post_request(CHAT_PATH, b"{}"),
        )
        assert upstream.received == []
    assert answer.status == 400


@pytest.mark.parametrize(
    "content", [b"short", b"", None, [b"sho", b"rt"], [b"much", b" longer than stated"]]
)
async def test_does_not_reuse_a_connection_after_a_wrong_content_length(
    content: bytes | list[bytes] | None,
) -> None:
    """Whatever was stated, the next request on the connection is not taken for a part of this one."""

    async def pieces(parts: list[bytes]) -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    async with open_raw_upstream(echo) as upstream:
        client = UpstreamClient(GatewayLimits(max_answer_gap_seconds=5))
        upstream_route = Upstream("only", upstream.url)

        async def send(body: bytes | AsyncIterator[bytes] | None, length: bytes) -> bytes:
            answer = await client.send(
                upstream_route,
                "POST",
                b"/x",
                [(b"content-length", length)],
                body,
            )
            try:
                return b"".join([piece async for piece in answer.pieces()])
            finally:
                await answer.close()

        try:
            if isinstance(content, list):
                with pytest.raises(RequestRefused):
                    await send(pieces(content), b"9")
            else:
                response = await send(content, b"9")
                assert response == b"POST /x HTTP/1.1|" + (content or b"")
            for number in range(3):
                response = await send(b"%d" % number, b"1")
                assert response == b"POST /x HTTP/1.1|%d" % number
        finally:
            await client.close()
