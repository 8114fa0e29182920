"""A provider that refuses the size is asked again with a smaller request, before a byte reaches the client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from everthread.gateway.contracts import GatewayLimits, IncomingRequest, Outgoing
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
    send_post,
    write_answer,
)

TOO_LONG = b'{"error": {"message": "prompt is too long: 9 tokens > 8 maximum", "type": "invalid_request_error"}}'
ERROR_EVENT = (
    b'event: error\ndata: {"type": "error", "error": '
    b'{"type": "invalid_request_error", "message": "too long"}}\n\n'
)
START = b'event: message_start\ndata: {"type": "message_start", "message": {"usage": {"input_tokens": 5}}}\n\n'
BLOCK = b'data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}}\n\n'


class ShrinkingManager(PassThroughManager):
    """Sends a number that goes down; holds streams."""

    async def outgoing(self, incoming: IncomingRequest) -> Outgoing:
        await super().outgoing(incoming)
        return Outgoing(
            b'{"size": 9}',
            is_rewritten=True,
            headers={"x-everthread-thread": "t9"},
            should_hold_first_events=True,
        )

    async def recover_with(
        self, _incoming: IncomingRequest, sent: Outgoing, _body: bytes
    ) -> Outgoing | None:
        size = json.loads(sent.body)["size"] - 1
        return Outgoing(
            b'{"size": %d}' % size,
            is_rewritten=True,
            headers={"x-everthread-thread": f"t{size}"},
            should_hold_first_events=True,
        )


def fits_at(size: int, *, streamed: bool) -> WriteAnswer:
    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        fits = json.loads(request.body)["size"] <= size
        if streamed:
            last = BLOCK if fits else ERROR_EVENT
            writer.write(
                response_head(200, STREAM) + encode_chunk(START) + encode_chunk(last) + b"0\r\n\r\n"
            )
        elif fits:
            write_answer(writer, 200, headers=JSON, body=b"{}")
        else:
            write_answer(writer, 400, headers=JSON, body=TOO_LONG)

    return answer


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("size", "requests"),
    [
        (9, 1),
        (8, 2),
        (6, 4),
        (5, 4),
    ],
)
async def test_sends_a_refused_request_again_at_most_three_times(
    size: int, requests: int, streamed: bool
) -> None:
    manager = ShrinkingManager()
    answer = fits_at(size, streamed=streamed)
    async with (
        open_raw_upstream(answer) as upstream,
        open_raw_gateway(upstream.url, manager) as (url, proxy),
    ):
        response = await send_post(url, "/v1/messages", b'{"stream": true}', *JSON)
        assert len(upstream.received) == requests
    if size == 5:
        assert response.body == (START + ERROR_EVENT if streamed else TOO_LONG)
    else:
        assert response.body == (START + BLOCK if streamed else b"{}")
        assert response.header_values["x-everthread-thread"] == f"t{size}"
    assert response.status == (400 if size == 5 and not streamed else 200)
    assert len(manager.errors) == requests - 1
    assert len(manager.outcomes) == 1
    assert proxy.metrics.value("rewrites", kind="managed") == 1
    assert proxy.metrics.value("rewrites", kind="repaired") == requests - 1


async def test_observe_mode_never_sends_again() -> None:
    manager = ShrinkingManager()

    answer = fixed_answer(400, JSON, TOO_LONG)
    async with raw_gateway(answer, manager, mode="observe") as (url, upstream):
        response = await send_post(url, "/v1/messages", b'{"a": 1}', *JSON)
        bodies = [request.body for request in upstream.received]
        assert bodies == [b'{"a": 1}']
    assert response.body == TOO_LONG


async def test_holds_a_stream_no_longer_than_the_limit() -> None:
    is_first_chunk_received = asyncio.Event()

    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(response_head(200, STREAM) + encode_chunk(START))
        await is_first_chunk_received.wait()
        writer.write(encode_chunk(ERROR_EVENT) + b"0\r\n\r\n")

    limits = GatewayLimits(hold_seconds=0.05)
    async with raw_gateway(answer, ShrinkingManager(), limits=limits) as (url, _):
        response = await send_bytes(
            url,
            post_request("/v1/messages", b"{}", *JSON),
            on_chunk=lambda _: is_first_chunk_received.set(),
        )
    assert response.chunks == [START, ERROR_EVENT]


async def test_remembers_that_an_upstream_refuses_stream_options() -> None:
    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        body: Any = json.loads(request.body)
        error = b'{"error": {"message": "Unrecognized request argument supplied: stream_options"}}'
        if "stream_options" in body:
            write_answer(writer, 400, headers=JSON, body=error)
        else:
            writer.write(
                response_head(200, STREAM)
                + encode_chunk(b'data: {"choices": []}\n\n')
                + b"0\r\n\r\n"
            )

    manager = PassThroughManager()
    sent = b'{"stream": true, "messages": []}'
    async with raw_gateway(answer, manager) as (url, upstream):
        for _ in range(2):
            response = await send_post(url, "/v1/chat/completions", sent, *JSON)
            assert response.status == 200
        assert [b"stream_options" in request.body for request in upstream.received] == [
            True,
            False,
            False,
        ]
        assert upstream.received[1].body == sent
    assert manager.errors == []
    assert [(outcome.usage, outcome.estimated) for outcome in manager.outcomes] == [
        (None, True)
    ] * 2
