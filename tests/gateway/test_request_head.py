"""The head of a request: read once, within bounds, and in one way; answers of an upstream keep to themselves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from everthread.gateway.access.authentication import Caller
from everthread.gateway.contracts import GatewayLimits, IncomingRequest
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.monitoring.log_lines import TerminalLines
from tests.apis import CHAT_PATH
from tests.gateway.gateway_setup import CHAT_MODEL, Gateways
from tests.gateway.raw_http import (
    JSON,
    PassThroughManager,
    connect,
    encode_chunk,
    fixed_answer,
    open_raw_gateway,
    open_raw_upstream,
    post_request,
    raw_gateway,
    read_message,
    send_bytes,
)

FILES = "/v1/files"
LONG = "a/" * 16_000


def body_with(model: str) -> bytes:
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "Hi"}],
        }
    ).encode()


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


@pytest.mark.parametrize(
    "path", [CHAT_PATH, "/v1/responses", "/v1/compact", "/v1/responses/compact"]
)
async def test_refuses_a_too_long_model_name_everywhere(path: str, gateways: Gateways) -> None:
    """Looking up the price of a name with many slashes does not block other clients."""
    url = await gateways.start()
    key = (
        b"authorization",
        f"Bearer {await gateways.create_key(scopes=('proxy', 'threads'))}".encode(),
    )
    answer = await send_bytes(url, post_request(path, body_with(LONG), key, *JSON))
    fine = await send_bytes(url, post_request(CHAT_PATH, body_with(CHAT_MODEL), key, *JSON))
    assert answer.status == 400
    assert code_of(answer.body) == "model_name_too_long"
    assert b"at most 300" in answer.body
    assert fine.status == 200
    models = [record.body["model"] for record in gateways.provider.log]
    assert models == [CHAT_MODEL]


@pytest.mark.parametrize("mode", ["managed", "observe", "off"])
async def test_refuses_a_too_long_model_name_in_every_mode(
    mode: str,
) -> None:
    async with raw_gateway(mode=mode) as (url, upstream):
        named = await send_bytes(url, post_request(CHAT_PATH, body_with(LONG), *JSON))
        listed = await send_bytes(
            url,
            b"GET /v1/models/" + LONG.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        )
        longest = await send_bytes(url, post_request(CHAT_PATH, body_with("m" * 300), *JSON))
    statuses = [answer.status for answer in (named, listed, longest)]
    assert statuses == [400, 400, 200]
    assert len(upstream.received) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1%2fchat%2fcompletions",
        "/v1/%2563hat/completions",
        "/v1/files%2f..%2fchat/completions",
        "/v1/x%252f..%252fchat%252fcompletions",
        "/v1/..%2f..%2fmetrics",
        "/%256detrics",
        "/v1/%256dessages/count_tokens",
        "/v1/responses%2fcompact",
        "/v1beta/models%2fgemini-2.5-pro:generateContent",
    ],
)
async def test_refuses_a_path_that_routes_differently_when_decoded_again(
    path: str,
) -> None:
    async def make_item(_incoming: IncomingRequest) -> tuple[dict[str, Any], int]:
        return {}, 0

    manager = PassThroughManager()
    async with raw_gateway(manager=manager, make_item=make_item) as (url, upstream):
        answer = await send_bytes(url, post_request(path, b"{}", *JSON))
        assert answer.status == 400
        assert b"means something else each time it is decoded" in answer.body
    assert upstream.received == []
    assert manager.prepared == []


async def test_refuses_a_path_encoded_many_times() -> None:
    async with raw_gateway() as (url, upstream):
        answer = await send_bytes(
            url, post_request("/v1/files/%" + "25" * 20_000 + "41", b"{}", *JSON)
        )
        assert answer.status == 400
        assert code_of(answer.body) == "invalid_path"
        assert upstream.received == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/a%2fb",
        "/v1/files/%252e%252e/x",
        "/v1/files/100%25",
        "/v1/files/a%20b",
    ],
)
async def test_forwards_the_bytes_of_a_path_unchanged(
    path: str,
) -> None:
    async with raw_gateway() as (url, upstream):
        response = await send_bytes(url, post_request(path, b"{}", *JSON))
        assert response.status == 200
    assert upstream.received[0].line.split()[1] == path.encode()


class GoodKeys:
    """Accepts the key `good`."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        key = headers.get("x-api-key", "")
        if not key.startswith("good"):
            raise RequestRefused(401, "missing_api_key", "No API key.")
        return Caller(key.rpartition("-")[0], key, frozenset({"proxy"}))


@pytest.mark.parametrize("offer", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
@pytest.mark.parametrize("path", [CHAT_PATH, FILES])
async def test_does_not_accept_a_key_in_a_trailer(path: str, offer: bytes) -> None:
    """Trailers are ignored: a proxy in front of the gateway that strips or checks headers never sees them."""
    start = (
        b"POST "
        + path.encode()
        + b" HTTP/1.1\r\nHost: localhost\r\n"
        + offer
        + b"Transfer-Encoding: chunked\r\n"
    )
    async with raw_gateway(authenticator=GoodKeys()) as (url, upstream):
        hidden = (
            start + b"\r\n" + encode_chunk(b"{}") + b"0\r\nx-api-key: good-1\r\nx-other: a\r\n\r\n"
        )
        refused = await send_bytes(url, hidden)
        accepted = await send_bytes(
            url,
            start + b"x-api-key: good-1\r\n\r\n" + encode_chunk(b"{}") + b"0\r\nx-other: a\r\n\r\n",
        )
    assert refused.status == 401
    assert accepted.status == 200
    assert ["x-other" in request.header_values for request in upstream.received] == [False]


async def test_refuses_two_credentials_in_one_header() -> None:
    """Which of two counts each server decides for itself."""
    async with raw_gateway(authenticator=GoodKeys()) as (url, _):
        two = await send_bytes(
            url,
            post_request(
                CHAT_PATH,
                b"{}",
                (b"x-api-key", b"good-1"),
                (b"x-api-key", b"good-2"),
            ),
        )
        same = await send_bytes(
            url,
            post_request(
                CHAT_PATH,
                b"{}",
                (b"x-api-key", b"good-1"),
                (b"x-api-key", b"good-1"),
            ),
        )
    assert two.status == 400
    assert code_of(two.body) == "duplicate_credential"
    assert same.status == 200


async def test_the_keys_of_one_tenant_share_half_of_the_capacity() -> None:
    """Two keys of one tenant cannot take all places."""
    done = asyncio.Event()

    async def slowly(request: object, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        await fixed_answer(200, JSON, b"{}")(request, writer)  # type: ignore[arg-type]

    async with raw_gateway(
        slowly, limits=GatewayLimits(concurrent=4), authenticator=GoodKeys()
    ) as (
        url,
        upstream,
    ):
        places = [await connect(url) for _ in range(5)]
        for (_, writer), key in zip(
            places, (b"good-a-1", b"good-a-2", b"good-b-1", b"good-b-2"), strict=False
        ):
            writer.write(post_request(CHAT_PATH, b"{}", (b"x-api-key", key)))
        await upstream.wait_for_requests(4)
        places[4][1].write(post_request(CHAT_PATH, b"{}", (b"x-api-key", b"good-a-3")))
        refused = await read_message(places[4][0])
        done.set()
        answers = [await read_message(reader) for reader, _ in places[:4]]
        for _, writer in places:
            writer.close()
    assert refused.status == 429
    statuses = {answer.status for answer in answers}
    assert statuses == {200}


HTML = b"<script>document.title = 'ran'</script>"


async def test_removes_an_upstreams_headers_about_our_origin() -> None:
    theirs = [
        (b"content-type", b"text/html"),
        (b"set-cookie", b"everthread_session=x"),
        (b"clear-site-data", b'"*"'),
        (b"x-everthread-notice", b"call this number"),
        (b"X-Everthread-Thread", b"forged"),
        (b"service-worker-allowed", b"/"),
        (b"x-content-type-options", b"sniff"),
        (b"x-ratelimit-remaining", b"7"),
    ]
    async with raw_gateway(fixed_answer(200, theirs, HTML)) as (url, _):
        for path in (CHAT_PATH, FILES, "/v1/responses/compact"):
            answer = await send_bytes(url, post_request(path, b"{}", *JSON))
            assert answer.body == HTML
            assert answer.header_values["content-security-policy"] == "sandbox"
            assert [
                value for name, value in answer.headers if name == b"x-content-type-options"
            ] == [b"nosniff"]
            assert answer.header_values["x-ratelimit-remaining"] == "7"
            named = {name.lower() for name, _ in answer.headers}
            assert not named & {
                b"set-cookie",
                b"clear-site-data",
                b"service-worker-allowed",
            }
            assert b"forged" not in [value for _, value in answer.headers]
            assert "this number" not in answer.header_values.get("x-everthread-notice", "")


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The reasons in the lines of requests, in order."""
    fields: list[dict[str, str]] = [getattr(record, "fields", {}) for record in caplog.records]
    return [one["reason"] for one in fields if "reason" in one]


@pytest.mark.parametrize("path", [CHAT_PATH, FILES])
async def test_the_log_says_why_an_upstream_refused_a_request(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = b"sk-" + b"proj-T7kQ2mZ9xW4pL8vR3nB6yH1c"
    error = b'{"error": {"message": "Unknown model gpt-99, key ' + key + b'", "type": "x"}}'
    caplog.set_level(logging.INFO, "everthread.gateway")
    async with raw_gateway(fixed_answer(400, JSON, error)) as (url, _):
        answer = await send_bytes(url, post_request(path, body_with("gpt-99"), *JSON))
    assert answer.status == 400
    assert answer.body == error
    assert reasons(caplog) == ["Unknown model gpt-99, key [REDACTED]"]
    line = TerminalLines().format(
        next(record for record in caplog.records if hasattr(record, "fields"))
    )
    assert "Unknown model gpt-99" in line


async def test_the_log_says_why_the_gateway_refused_a_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "everthread.gateway")
    async with raw_gateway() as (url, _):
        await send_bytes(url, post_request(CHAT_PATH, body_with(LONG), *JSON))
        await send_bytes(url, post_request("/v1/%2563hat/completions", b"{}", *JSON))
    assert [words.split()[1] for words in reasons(caplog)] == ["model's", "path"]


async def test_warns_once_of_bodies_that_are_not_managed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        open_raw_upstream() as upstream,
        open_raw_gateway(upstream.url) as (url, proxy),
    ):
        for _ in range(3):
            await send_bytes(url, post_request(CHAT_PATH, b"brotli", (b"content-encoding", b"br")))
        assert proxy.metrics.value("unmanaged") == 3
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned == ["a request is passed on unmanaged: its body cannot be decoded here"]
