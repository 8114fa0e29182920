"""The moments at which a feature of the gateway acts: through HTTP, with features made for the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from everthread.factory.gateways import make_features
from everthread.gateway.answers import Answer, AnswerBody
from everthread.gateway.app import GatewayApp
from everthread.gateway.contracts import NOTICE_HEADER
from everthread.gateway.exchange import Exchange, UpstreamRequest
from everthread.gateway.features import Feature, Filter
from everthread.gateway.header_selection import ResponseHeaders
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway
from everthread.thread.caller.caller_request import Outcome
from tests.apis import CHAT_PATH
from tests.gateway.raw_http import (
    JSON,
    STREAM,
    PassThroughManager,
    RawMessage,
    RawUpstream,
    WriteAnswer,
    encode_chunk,
    fixed_answer,
    open_raw_upstream,
    post_request,
    response_head,
    send_bytes,
)

ASK = json.dumps(
    {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
    }
).encode()


@asynccontextmanager
async def gateway(
    answer: WriteAnswer, *features: Feature
) -> AsyncIterator[tuple[str, RawUpstream]]:
    async with open_raw_upstream(answer) as upstream:
        proxy = Proxy(
            Routes([Upstream("only", upstream.url)]),
            PassThroughManager(),
            features=features,
        )
        async with Gateway(GatewayApp(proxy), grace_seconds=1.0) as running:
            yield running.url, upstream


class TaggingFilter(Feature):
    """Puts its name on what passes, and notes each moment."""

    def __init__(self, name: str, moments: list[str]) -> None:
        self.name = name
        self.moments = moments

    def make_filter(self, exchange: Exchange) -> Filter | None:  # noqa: ARG002
        return NamedFilter(self.name, self.moments)


class NamedFilter(Filter):
    def __init__(self, name: str, moments: list[str]) -> None:
        self.name = name
        self.moments = moments

    def change_request(self, request: UpstreamRequest) -> UpstreamRequest:
        self.moments.append(f"{self.name} request")
        if not isinstance(request.body, bytes):  # a body that is streamed through
            return request
        return replace(
            request,
            body=request.body + self.name.encode(),
            is_changed=True,
        )

    async def change_answer(self, answer: Answer) -> Answer:
        self.moments.append(f"{self.name} answer {answer.status}")
        return replace(answer, is_changed=True)

    def convert_piece(self, piece: bytes) -> bytes:
        return piece + self.name.encode()

    def release_held_bytes(self) -> bytes:
        return f"/{self.name}".encode()

    def read_piece(self, piece: bytes) -> None:
        self.moments.append(f"{self.name} saw {piece.decode()}")

    def finish(self, outcome: Outcome) -> Outcome:
        self.moments.append(f"{self.name} done {outcome.status}")
        return outcome


async def stream_one(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
    writer.write(response_head(200, STREAM) + encode_chunk(b"piece") + b"0\r\n\r\n")


async def test_a_request_passes_the_features_in_order_and_its_answer_in_reverse() -> None:
    moments: list[str] = []
    async with gateway(stream_one, TaggingFilter("A", moments), TaggingFilter("B", moments)) as (
        url,
        upstream,
    ):
        response = await send_bytes(url, post_request(CHAT_PATH, ASK))
    assert upstream.received[0].body == ASK + b"AB"
    assert upstream.received[0].header_values["content-length"] == str(len(ASK) + 2)
    assert response.body == b"pieceBA" + b"/BA/A"
    assert moments == [
        "A request",
        "B request",
        "B answer 200",
        "A answer 200",
        "A saw piece",
        "B saw piece",
        "B done 200",
        "A done 200",
    ]


async def test_features_also_see_requests_that_are_passed_on_unread() -> None:
    moments: list[str] = []
    async with gateway(fixed_answer(200, JSON, b"[]"), TaggingFilter("A", moments)) as (
        url,
        upstream,
    ):
        response = await send_bytes(url, post_request("/v1/embeddings", b'{"model":"m"}'))
    assert upstream.received[0].body == b'{"model":"m"}'
    assert response.body == b"[]A/A"
    assert moments == ["A request", "A answer 200", "A saw []", "A done 200"]


class RetryOnce(Feature, Filter):
    """Has a refused request sent once more."""

    def __init__(self) -> None:
        self.refusals: list[tuple[int, bytes]] = []

    def make_filter(self, exchange: Exchange) -> Filter | None:  # noqa: ARG002
        return self

    async def retry_after_refusal(self, status: int, body: bytes) -> bool:
        self.refusals.append((status, body))
        return len(self.refusals) == 1


async def test_a_feature_has_a_refused_request_sent_again() -> None:
    feature = RetryOnce()
    async with gateway(fixed_answer(400, JSON, b'{"error":{}}'), feature) as (
        url,
        upstream,
    ):
        response = await send_bytes(url, post_request(CHAT_PATH, ASK))
    assert response.status == 400
    assert feature.refusals == [(400, b'{"error":{}}')] * 2
    assert len(upstream.received) == 2


class OwnPath(Feature, Filter):
    """Answers a path of its own with the request's contents."""

    paths = frozenset({"/v1/own"})

    def __init__(self) -> None:
        self.body = b""

    def make_filter(self, exchange: Exchange) -> Filter | None:
        if exchange.incoming is None:
            return None
        self.body = exchange.incoming.body.plain
        return self

    async def change_answer(self, answer: Answer) -> Answer:  # noqa: ARG002
        headers = ResponseHeaders([(b"content-type", b"text/plain")])
        return Answer(
            200,
            headers,
            AnswerBody.from_bytes(b"own"),
            own_headers={NOTICE_HEADER: "answered here"},
        )


async def test_a_feature_answers_a_path_of_its_own_in_place_of_the_upstream() -> None:
    feature = OwnPath()
    async with gateway(fixed_answer(404, JSON, b"{}"), feature) as (url, _):
        own = await send_bytes(url, post_request("/v1/own", b'{"model":"m"}'))
        other = await send_bytes(url, post_request("/v1/other", b'{"model":"m"}'))
    assert own.status == 200
    assert own.body == b"own"
    assert own.header_values[NOTICE_HEADER] == "answered here"
    assert feature.body == b'{"model":"m"}'
    assert other.status == 404


async def test_each_feature_of_the_gateway_can_be_left_out() -> None:
    """Without any one of them, a chat is answered with the upstream's own bytes."""
    answer = {
        "id": "1",
        "model": "m",
        "choices": [
            {
                "message": {"role": "assistant", "content": "yes"},
            }
        ],
    }
    body = json.dumps(answer).encode()
    listed = make_features(make_item=_make_no_item)
    for left_out in listed:
        rest = [feature for feature in listed if feature is not left_out]
        async with gateway(fixed_answer(200, JSON, body), *rest) as (url, upstream):
            response = await send_bytes(url, post_request(CHAT_PATH, ASK))
        assert response.body == body
        assert upstream.received[0].body == ASK


async def _make_no_item(_incoming: object) -> tuple[dict[str, object], int]:
    raise NotImplementedError
