"""Odd HTTP and JSON from both sides: a whole answer or a refusal, without effect on other clients."""

from __future__ import annotations

import asyncio
import json
from itertools import chain
from pathlib import Path

from everthread.config import Config, parse_config
from everthread.factory.gateways import open_gateway
from tests.apis import PATHS
from tests.gateway.odd_requests import (
    ANSWER_ODDITIES,
    HEADER_ODDITIES,
    JSON_ODDITIES,
    PLAIN,
)
from tests.gateway.raw_http import (
    JSON,
    RawMessage,
    connect,
    open_raw_upstream,
    post_request,
    read_message,
    send_get,
    send_post,
    write_answer,
)

SECONDS = 1
"""Seconds that the gateway waits for missing bytes."""


class EchoUpstream:
    """Answers each request with its own body, or with the next odd answer if one is left."""

    def __init__(self) -> None:
        self.odd = b""

    async def __call__(self, request: RawMessage, writer: asyncio.StreamWriter) -> None:
        if b"honest" in request.body:
            client = (b"x-of", request.header_values["x-of"].encode())
            write_answer(
                writer,
                200,
                headers=[client],
                body=request.body,
            )
        elif self.odd:
            writer.write(self.odd)
        else:
            write_answer(
                writer,
                200,
                headers=JSON,
                body=b"{}",
            )


def make_config(folder: Path, upstream: str) -> Config:
    limits = (
        f"limits: {{body_seconds: {SECONDS}, header_seconds: {SECONDS}, answer_seconds: {SECONDS}}}"
    )
    upstreams = f"upstreams: [{{name: a, url: '{upstream}'}}]"
    return parse_config(
        f"gateway: {{port: 0, {upstreams}, {limits}}}\nstore: {{url: 'sqlite:///{folder}/s.db'}}"
    )


async def assert_honest(url: str, number: int) -> None:
    """Another client gets its own answer, byte for byte."""
    body = json.dumps(
        {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": f"honest {number}"}],
        }
    ).encode()
    answer = await send_post(
        url,
        "/v1/chat/completions",
        body,
        (b"X-Of", b"%d" % number),
    )
    assert answer.status == 200
    assert answer.body == body
    assert answer.header_values["x-of"] == str(number)


async def send(url: str, request: bytes) -> list[RawMessage]:
    """Return all answers that come back; the other side may close the connection without one."""
    reader, writer = await connect(url)
    responses: list[RawMessage] = []
    # The connection stays open for a next request: of two the second may be none, and no body follows a HEAD.
    may_wait = request.startswith(b"HEAD")
    try:
        writer.write(request)
        while True:
            try:
                async with asyncio.timeout(SECONDS + 2 if responses or may_wait else 60):
                    responses.append(await read_message(reader))
            except TimeoutError:
                if not responses and not may_wait:
                    raise AssertionError(f"no answer to {request[:200]!r}") from None
                break
            else:
                if (
                    request.startswith(b"HEAD")
                    or responses[-1].header_values.get("connection") == "close"
                ):
                    break
                if not request.endswith(request[:20]) and len(responses) == 1:
                    break
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        pass
    finally:
        writer.close()
    return responses


async def test_answers_malformed_requests_and_other_clients_as_ever(
    tmp_path: Path,
) -> None:
    echo = EchoUpstream()
    async with open_raw_upstream(echo) as upstream:
        config = make_config(tmp_path, upstream.url)
        async with open_gateway(config) as gateway:
            for number, (name, request) in enumerate(HEADER_ODDITIES.items()):
                for answer in await send(gateway.url, request):
                    assert answer.status in range(100, 500), (name, answer)
                await assert_honest(gateway.url, number)
            for number, (name, body) in enumerate(JSON_ODDITIES.items()):
                for path in PATHS.values():
                    before = len(upstream.received)
                    answer = await send_post(
                        gateway.url, path, body, (b"Content-Type", b"application/json")
                    )
                    assert answer.status in (200, 400, 413), (name, answer)
                    if answer.status == 200:
                        sent = [
                            received.body
                            for received in upstream.received[before:]
                            if received.line.startswith(b"POST")
                            and b"/api/show" not in received.line  # asks for the window
                        ]
                        assert sent == [body], name
                await assert_honest(gateway.url, number)
            metrics = (await send_get(gateway.url, "/metrics")).body
    assert not [
        received.line
        for received in upstream.received
        if received.line.startswith(b"GET") and b"passwd" in received.line
    ]
    assert b"everthread_failed_open_total{" not in metrics, (
        "an unreadable request is not a failure of the gateway"
    )
    assert b'everthread_unmanaged_total{why="unreadable"}' in metrics


async def test_relays_no_malformed_answer_to_another_client(tmp_path: Path) -> None:
    echo = EchoUpstream()
    async with open_raw_upstream(echo) as upstream:
        config = make_config(tmp_path, upstream.url)
        async with open_gateway(config) as gateway:
            for number, (name, odd) in enumerate(ANSWER_ODDITIES.items()):
                echo.odd = odd
                requests = [
                    send(gateway.url, post_request(path, PLAIN))
                    for path in (*PATHS.values(), "/v1/models")
                ]
                for answer in chain.from_iterable(await asyncio.gather(*requests)):
                    assert 200 <= answer.status <= 504, (name, answer)
                    assert b"stolen" not in answer.body, name
                    assert answer.header_values.get("x-everthread-thread") != "forged", name
                    assert "access-control-allow-origin" not in answer.header_values, name
                echo.odd = b""
                await assert_honest(gateway.url, number)
