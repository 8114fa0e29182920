"""The proxy protects itself and its upstreams: keys, limits, slow or leaving clients, logs, its own paths."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from typing import cast

import pytest

from everthread.gateway.app import GatewayApp
from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway
from tests.apis import CHAT_PATH, MESSAGES_PATH
from tests.gateway.authenticators import PROXY_KEYS
from tests.gateway.raw_http import (
    JSON,
    STREAM,
    PassThroughManager,
    RawMessage,
    connect,
    encode_chunk,
    fixed_answer,
    open_raw_gateway,
    open_raw_upstream,
    post_request,
    raw_gateway,
    read_message,
    response_head,
    send_bytes,
    send_get,
    send_post,
    write_answer,
)


async def test_an_upstream_without_a_key_gets_no_credential() -> None:
    manager = PassThroughManager()
    async with raw_gateway(manager=manager, authenticator=PROXY_KEYS) as (url, upstream):
        await send_post(
            url,
            CHAT_PATH,
            b"{}",
            (b"Authorization", b"Bearer et-good"),
        )
    [request] = upstream.received
    assert not {"authorization", "x-api-key"} & request.header_values.keys()
    tenants = [incoming.head.caller.tenant for incoming in manager.prepared]
    assert tenants == ["acme"]


async def test_refuses_large_bodies_even_if_compressed_or_chunked() -> None:
    limits = GatewayLimits(body_bytes=10_000)
    packed = gzip.compress(b" " * 10_001)
    async with raw_gateway(limits=limits) as (url, upstream):
        plain = await send_post(url, MESSAGES_PATH, b" " * 10_001)
        zipped = await send_post(
            url,
            MESSAGES_PATH,
            packed,
            (b"content-encoding", b"gzip"),
        )
        headers = (
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunked = await send_bytes(url, headers + encode_chunk(b" " * 6_000) * 2)
        assert upstream.received == []
        response = await send_post(url, MESSAGES_PATH, b" " * 10_000)
        assert response.status == 200
    for refused in (plain, zipped, chunked):
        assert refused.status == 413
        assert json.loads(refused.body)["error"]["type"] == "request_too_large"


async def test_ends_requests_that_are_sent_too_slowly() -> None:
    limits = GatewayLimits(body_seconds=0.05, header_seconds=0.05, header_bytes=2_000)
    async with raw_gateway(limits=limits) as (url, upstream):
        # One that is parsed, and one that is streamed through.
        for path in (
            b"/v1/messages",
            b"/v1/files",
        ):
            late = await send_bytes(
                url,
                b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
            )
            assert late.status == 408
        for begun in (b"", b"POST /v1/mess"):
            reader, writer = await connect(url)
            writer.write(begun)
            assert await reader.read() == b""
            writer.close()
        large = await send_bytes(
            url,
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 4_000 + b"\r\n\r\n",
        )
        assert large.status == 431
        assert upstream.received == []


async def test_a_connection_stays_open_through_a_pause() -> None:
    async with raw_gateway() as (url, _):
        reader, writer = await connect(url)
        for pause in (0.0, 5.5):  # longer than uvicorn waits by itself
            await asyncio.sleep(pause)
            writer.write(post_request(MESSAGES_PATH, b"{}"))
            assert (await read_message(reader)).status == 200
        writer.close()


async def test_gives_up_on_a_client_that_does_not_read() -> None:
    """Without the setting a client has 60 seconds, so an end within 20 is due to it."""

    async def endless(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(response_head(200, STREAM))
        while True:
            writer.write(encode_chunk(b"data: " + b"x" * 60_000 + b"\n\n"))
            await writer.drain()

    async with raw_gateway(endless, limits=GatewayLimits(write_seconds=0.1)) as (
        url,
        upstream,
    ):
        for path in (MESSAGES_PATH, "/v1/files"):
            _, writer = await connect(url)
            cast("asyncio.Transport", writer.transport).pause_reading()
            writer.write(post_request(path, b'{"stream": true}', *JSON))
            async with asyncio.timeout(20):
                await upstream.disconnected.wait()
            upstream.disconnected.clear()
            assert not writer.transport.is_closing(), "the client has not left"
            writer.transport.abort()


async def test_refuses_surplus_requests_with_retry_after() -> None:
    go = asyncio.Event()

    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        write_answer(writer, 200, headers=[], body=b"{}")

    limits = GatewayLimits(concurrent=2)
    async with (
        open_raw_upstream(answer) as upstream,
        open_raw_gateway(upstream.url, limits=limits) as (url, proxy),
    ):
        first = [asyncio.create_task(send_post(url, MESSAGES_PATH)) for _ in range(2)]
        await upstream.wait_for_requests(2)
        third = await send_post(url, CHAT_PATH)
        assert third.status == 429
        assert third.header_values["retry-after"] == "1"
        response = await send_get(url, "/healthz")
        assert response.status == 200
        go.set()
        assert [accepted.status for accepted in await asyncio.gather(*first)] == [200, 200]
        response = await send_post(url, CHAT_PATH)
        assert response.status == 200
        assert proxy.metrics.value("requests", status="429") == 1


@pytest.mark.parametrize("path", [MESSAGES_PATH, "/v1/other"])
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize(
    "size", [0, 300_000], ids=["short", "long"]
)  # after a long body reading was paused
async def test_a_leaving_client_ends_the_upstream_request(
    path: str, begun: bool, size: int
) -> None:
    manager = PassThroughManager()

    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        if begun:
            writer.write(response_head(200, STREAM) + encode_chunk(b'data: {"type": "ping"}\n\n'))

    async with raw_gateway(answer, manager) as (url, upstream):
        reader, writer = await connect(url)
        writer.write(post_request(path, b"{}" + b" " * size))
        if begun:
            await reader.readuntil(b"ping")
        await upstream.wait_for_requests(1)
        writer.transport.abort()
        await asyncio.wait_for(upstream.disconnected.wait(), 10)
        if begun and path == MESSAGES_PATH:
            await asyncio.wait_for(manager.recorded.wait(), 10)
            assert manager.outcomes[0].status == 200


async def test_an_unreachable_upstream_is_a_502_in_the_clients_protocol() -> None:
    async with open_raw_gateway("http://127.0.0.1:9") as (url, _):
        chat = await send_post(url, CHAT_PATH)
        messages = await send_post(url, MESSAGES_PATH)
    assert chat.status == messages.status
    assert messages.status == 502
    assert json.loads(chat.body)["error"]["code"] == "upstream_unreachable"
    assert json.loads(messages.body)["error"]["type"] == "api_error"


async def test_logs_an_unexpected_failure_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class BrokenRoutes(Routes):
        def choose(self, *_arguments: object, **_more: object) -> Upstream:
            raise RuntimeError("what the client said")

    async with Gateway(
        GatewayApp(
            Proxy(
                BrokenRoutes([Upstream("only", "http://127.0.0.1:9")]),
                PassThroughManager(),
            )
        )
    ) as running:
        with caplog.at_level(logging.ERROR, "everthread"):
            answer = await send_post(running.url, "/v1/chat/completions")
    assert answer.status == 500
    [line] = [
        record.getMessage() for record in caplog.records if record.name == "everthread.gateway"
    ]
    assert "RuntimeError at " in line
    assert "what the client said" not in line


async def test_serves_readiness_and_metrics_itself() -> None:
    usage = b'{"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 4}}'
    async with raw_gateway(fixed_answer(200, JSON, usage)) as (url, upstream):
        await send_post(url, CHAT_PATH)
        response = await send_get(url, "/readyz")
        assert response.status == 200
        text = (await send_get(url, "/metrics")).body.decode()
        lines = [request.line for request in upstream.received]
        assert lines == [b"POST /v1/chat/completions HTTP/1.1"]
    assert 'everthread_requests_total{api="openai_chat",status="200"} 1' in text
    assert 'everthread_first_byte_seconds_bucket{le="+Inf"} 1' in text


async def test_finishes_open_answers_when_it_stops() -> None:
    manager = PassThroughManager()
    ending = asyncio.Event()

    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(response_head(200, STREAM) + encode_chunk(b"data: 1\n\n"))
        await ending.wait()
        writer.write(encode_chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    async with open_raw_upstream(answer) as upstream:
        async with open_raw_gateway(upstream.url, manager) as (url, _):
            reader, writer = await connect(url)
            writer.write(post_request(MESSAGES_PATH, b"{}"))
            await reader.readuntil(b"data: 1\n\n")
            asyncio.get_running_loop().call_later(0.02, ending.set)
        assert b"data: 2\n\n" in await reader.read()
        writer.close()
    assert len(manager.outcomes) == 1
