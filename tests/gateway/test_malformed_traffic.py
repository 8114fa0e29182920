"""Odd HTTP and JSON from both sides: a whole answer or a refusal, without effect on other clients."""

from __future__ import annotations

import asyncio
import json
from itertools import chain
from pathlib import Path

import pytest

from everthread.config import parse_config
from everthread.factory.gateways import open_gateway
from tests.gateway.odd_requests import (
    ANSWER_ODDITIES,
    HEADER_ODDITIES,
    JSON_ODDITIES,
    PLAIN,
)
from tests.gateway.raw_http import (
    RawMessage,
    connect,
    post_request,
    raw_upstream,
    read_message,
    response_head,
    send_bytes,
    send_post,
)

APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
SECONDS = 1
"""Seconds that the gateway waits for missing bytes."""


class EchoUpstream:
    """Answers each request with its own body, or with the next odd answer if one is left."""

    def __init__(self) -> None:
        self.odd = b""

    async def __call__(self, request: RawMessage, writer: asyncio.StreamWriter) -> None:
        if b"honest" in request.body:
            body = request.body
            writer.write(
                response_head(
                    200,
                    [
                        (b"content-length", b"%d" % len(body)),
                        (b"x-of", request.names["x-of"].encode()),
                    ],
                )
            )
            writer.write(body)
        elif self.odd:
            writer.write(self.odd)
        else:
            writer.write(
                response_head(
                    200,
                    [(b"content-type", b"application/json"), (b"content-length", b"2")],
                )
                + b"{}"
            )


def settings(folder: Path) -> str:
    limits = f"limits: {{body_seconds: {SECONDS}, header_seconds: {SECONDS}, answer_seconds: {SECONDS}}}"
    return f"gateway: {{port: 0, {limits}}}\nstore: {{url: 'sqlite:///{folder}/s.db'}}"


async def check_honest(url: str, number: int) -> None:
    """Another client gets its own answer, byte for byte."""
    body = json.dumps(
        {
            "model": "gpt-4o",
            "messages": [{"role": "user", "content": f"honest {number}"}],
        }
    ).encode()
    answer = await send_post(
        url, "/v1/chat/completions", body, (b"X-Of", b"%d" % number)
    )
    assert (answer.status, answer.body, answer.names["x-of"]) == (
        200,
        body,
        str(number),
    )


async def send(url: str, request: bytes) -> list[RawMessage]:
    """Return all answers that come back; the other side may close the connection without one."""
    reader, writer = await connect(url)
    heard: list[RawMessage] = []
    # The connection stays open for a next request: of two the second may be none, and no body follows a HEAD.
    may_wait = request.startswith(b"HEAD")
    try:
        writer.write(request)
        while True:
            try:
                async with asyncio.timeout(SECONDS + 2 if heard or may_wait else 60):
                    heard.append(await read_message(reader))
            except TimeoutError:
                if not heard and not may_wait:
                    raise AssertionError(f"no answer to {request[:200]!r}") from None
                break
            else:
                if (
                    request.startswith(b"HEAD")
                    or heard[-1].names.get("connection") == "close"
                ):
                    break
                if not request.endswith(request[:20]) and len(heard) == 1:
                    break
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        pass
    finally:
        writer.close()
    return heard


async def test_odd_requests(tmp_path: Path) -> None:
    echo = EchoUpstream()
    async with raw_upstream(echo) as upstream:
        config = parse_config(
            settings(tmp_path).replace(
                "port: 0", f"port: 0, upstreams: [{{name: a, url: '{upstream.url}'}}]"
            )
        )
        async with open_gateway(config) as gateway:
            for number, (what, request) in enumerate(HEADER_ODDITIES.items()):
                for answer in await send(gateway.url, request):
                    assert answer.status in range(100, 500), (what, answer)
                await check_honest(gateway.url, number)
            for number, (what, body) in enumerate(JSON_ODDITIES.items()):
                for path in APIS:
                    before = len(upstream.received)
                    answer = await send_post(
                        gateway.url, path, body, (b"Content-Type", b"application/json")
                    )
                    assert answer.status in (200, 400, 413), (what, answer)
                    if answer.status == 200:
                        sent = [
                            heard.body
                            for heard in upstream.received[before:]
                            if heard.line.startswith(b"POST")
                            and b"/api/show" not in heard.line  # asks for the window
                        ]
                        assert sent == [body], what
                await check_honest(gateway.url, number)
            metrics = (
                await send_bytes(
                    gateway.url, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
                )
            ).body
    assert not [
        heard.line
        for heard in upstream.received
        if heard.line.startswith(b"GET") and b"passwd" in heard.line
    ]
    assert b"everthread_failed_open_total{" not in metrics, (
        "what cannot be read is no failure of ours"
    )
    assert b'everthread_unmanaged_total{why="unreadable"}' in metrics


async def test_odd_answers(tmp_path: Path) -> None:
    echo = EchoUpstream()
    async with raw_upstream(echo) as upstream:
        config = parse_config(
            settings(tmp_path).replace(
                "port: 0", f"port: 0, upstreams: [{{name: a, url: '{upstream.url}'}}]"
            )
        )
        async with open_gateway(config) as gateway:
            for number, (what, odd) in enumerate(ANSWER_ODDITIES.items()):
                echo.odd = odd
                asked = [
                    send(gateway.url, post_request(path, PLAIN))
                    for path in (*APIS, "/v1/models")
                ]
                for answer in chain.from_iterable(await asyncio.gather(*asked)):
                    assert 200 <= answer.status <= 504, (what, answer)
                    assert b"stolen" not in answer.body, what
                    assert answer.names.get("x-everthread-thread") != "forged", what
                    assert "access-control-allow-origin" not in answer.names, what
                echo.odd = b""
                await check_honest(gateway.url, number)


@pytest.mark.parametrize("listed", [JSON_ODDITIES, HEADER_ODDITIES, ANSWER_ODDITIES])
def test_each_is_another(listed: dict[str, bytes]) -> None:
    assert len(set(listed.values())) == len(listed)
