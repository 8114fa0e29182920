"""Who waits for a stream hears comments; status, headers and errors stay the upstream's wherever they can."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

from everthread.gateway.contracts import GatewayLimits, IncomingRequest, Outgoing
from everthread.gateway.keep_alive import KEEPALIVE_COMMENT
from everthread.gateway.proxy import Proxy
from tests.apis import MESSAGES_PATH
from tests.gateway.raw_http import (
    JSON,
    STREAM,
    PassThroughManager,
    RawMessage,
    WriteAnswer,
    encode_chunk,
    fixed_answer,
    open_raw_gateway,
    open_raw_upstream,
    post_request,
    raw_gateway,
    response_head,
    send_bytes,
)
from tests.gateway.test_proxy_overflow import BLOCK, ERROR_EVENT, START, TOO_LONG

STREAMED = b'{"stream": true}'
QUICK = GatewayLimits(keepalive_seconds=0.02, silence_seconds=0.03, hold_seconds=5)
LATER = GatewayLimits(keepalive_seconds=0.02, silence_seconds=30, hold_seconds=5)


class SlowManager(PassThroughManager):
    """Takes its time to prepare, until as many comments as wanted were heard."""

    def __init__(self, *, hold: bool = False) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.hold = hold

    async def outgoing(self, _incoming: IncomingRequest) -> Outgoing:
        if not self.hold:
            await self.go.wait()
        return Outgoing(
            b'{"stream":true,"n":1}',
            is_rewritten=True,
            headers={"x-everthread-thread": "t"},
            should_hold_first_events=self.hold,
        )

    async def recover_with(
        self, _incoming: IncomingRequest, sent: Outgoing, _body: bytes
    ) -> Outgoing | None:
        return (
            Outgoing(
                b'{"stream":true,"n":2}',
                is_rewritten=True,
                should_hold_first_events=True,
            )
            if b'"n":1' in sent.body
            else None
        )

    def received(self, piece: bytes) -> None:
        if KEEPALIVE_COMMENT in piece:
            self.go.set()


def stream_answer(*events: bytes) -> WriteAnswer:
    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(
            response_head(200, [*STREAM, (b"x-request-id", b"theirs")])
            + b"".join(map(encode_chunk, events))
            + b"0\r\n\r\n"
        )

    return answer


async def test_a_slow_compaction_starts_the_stream_with_comments() -> None:
    manager = SlowManager()
    async with (
        open_raw_upstream(stream_answer(START, BLOCK)) as upstream,
        open_raw_gateway(upstream.url, manager, limits=QUICK) as (
            url,
            proxy,
        ),
    ):
        sent = post_request(
            MESSAGES_PATH,
            STREAMED,
            *JSON,
            (b"accept-encoding", b"gzip"),
        )
        response = await send_bytes(url, sent, on_chunk=manager.received)
        assert upstream.received[0].header_values["accept-encoding"] == "identity", (
            "comments cannot go between gzip"
        )
        assert proxy.metrics.value("keepalives") >= 1
    assert response.status == 200
    assert response.header_values["content-type"].startswith("text/event-stream")
    assert response.chunks[0] == KEEPALIVE_COMMENT
    assert response.body.replace(KEEPALIVE_COMMENT, b"") == START + BLOCK


async def test_sends_no_keepalive_to_a_non_streaming_client() -> None:
    manager = SlowManager()
    asyncio.get_running_loop().call_later(0.15, manager.go.set)
    async with (
        open_raw_upstream(fixed_answer(400, JSON, TOO_LONG)) as upstream,
        open_raw_gateway(upstream.url, manager, limits=QUICK) as (url, proxy),
    ):
        response = await send_bytes(url, post_request(MESSAGES_PATH, b'{"stream": false}', *JSON))
        assert proxy.metrics.value("keepalives") == 0
    assert response.status == 400
    assert response.body == TOO_LONG


async def test_sends_no_keepalive_into_a_gemini_stream() -> None:
    """Google's SDK reads a comment as data and fails."""
    manager = SlowManager()
    asyncio.get_running_loop().call_later(0.15, manager.go.set)
    event = b'data: {"candidates": []}\n\n'
    path = "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse"
    async with (
        open_raw_upstream(stream_answer(event)) as upstream,
        open_raw_gateway(upstream.url, manager, limits=QUICK) as (url, proxy),
    ):
        response = await send_bytes(url, post_request(path, b'{"contents": []}', *JSON))
        assert proxy.metrics.value("keepalives") == 0
    assert response.body == event


async def wait_for_comment(proxy: Proxy, manager: SlowManager) -> None:
    """Until a client heard a comment."""
    while not proxy.metrics.value("keepalives"):  # noqa: ASYNC110  there is no event for it
        await asyncio.sleep(0.005)
    manager.go.set()


async def stream_through(url: str, api: str) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    if api == "messages":
        async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as claude:
            async for _ in await claude.messages.create(
                model="m", messages=messages, max_tokens=9, stream=True
            ):
                pass
        return
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        if api == "chat":
            stream: Any = await client.chat.completions.create(
                model="m", messages=messages, stream=True
            )
        else:
            stream = await client.responses.create(model="m", input=messages, stream=True)
        async for _ in stream:
            pass


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_an_error_after_keepalives_is_raised_by_the_official_sdk(api: str) -> None:
    """The official clients raise it as the error it is."""
    manager = SlowManager()
    async with (
        open_raw_upstream(fixed_answer(400, JSON, TOO_LONG)) as upstream,
        open_raw_gateway(upstream.url, manager, limits=QUICK) as (url, proxy),
    ):
        waiting = asyncio.create_task(wait_for_comment(proxy, manager))
        with pytest.raises((openai.APIError, anthropic.APIError)) as raised:
            await stream_through(url, api)
        await waiting
    assert "prompt is too long" in str(raised.value)


@pytest.mark.parametrize("again", [True, False])
async def test_forwards_the_first_lines_of_a_held_stream(again: bool) -> None:
    """Also if it is sent again after that, and if that fails."""
    manager = SlowManager(hold=True)

    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        if json.loads(request.body)["n"] == 2:
            await (stream_answer(START, BLOCK) if again else fixed_answer(400, JSON, TOO_LONG))(
                request, writer
            )
            return
        writer.write(
            response_head(200, [*STREAM, (b"x-request-id", b"theirs")]) + encode_chunk(START)
        )
        await manager.go.wait()
        writer.write(encode_chunk(ERROR_EVENT) + b"0\r\n\r\n")

    async with raw_gateway(answer, manager, limits=LATER) as (url, upstream):
        response = await send_bytes(
            url, post_request(MESSAGES_PATH, STREAMED, *JSON), on_chunk=manager.received
        )
        assert len(upstream.received) == 2
    assert response.status == 200
    assert response.header_values["x-request-id"] == "theirs"
    assert response.header_values["x-everthread-thread"] == "t"
    body = response.body.replace(KEEPALIVE_COMMENT, b"")
    if again:
        assert body == START + BLOCK, "nothing of the first try reached the client"
    else:
        assert body.startswith(b"event: error\n")
        assert b"prompt is too long" in body


async def test_passes_a_held_stream_through_unchanged() -> None:
    manager = SlowManager(hold=True)

    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(response_head(200, STREAM) + encode_chunk(START))
        await manager.go.wait()
        writer.write(encode_chunk(BLOCK) + b"0\r\n\r\n")

    async with raw_gateway(answer, manager, limits=LATER) as (url, _):
        response = await send_bytes(
            url, post_request(MESSAGES_PATH, STREAMED, *JSON), on_chunk=manager.received
        )
    assert [piece for piece in response.chunks if piece != KEEPALIVE_COMMENT] == [
        START,
        BLOCK,
    ]
    assert len(manager.errors) == 0


async def test_reports_an_unreachable_upstream_inside_the_stream() -> None:
    manager = SlowManager()
    async with open_raw_gateway("http://127.0.0.1:9", manager, limits=QUICK) as (
        url,
        _,
    ):
        response = await send_bytes(
            url, post_request(MESSAGES_PATH, STREAMED, *JSON), on_chunk=manager.received
        )
    last = response.body.replace(KEEPALIVE_COMMENT, b"")
    assert json.loads(last.partition(b"data: ")[2])["error"]["type"] == "api_error"
