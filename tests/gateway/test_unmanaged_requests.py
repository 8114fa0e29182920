"""Bounds: what would cost too much is passed on unmanaged and says so; two fields of one name are refused."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tracemalloc
from typing import Any

import pytest

from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.filters.charging import choose_charged_model
from everthread.gateway.request.encoding import keep_supported_encodings
from everthread.gateway.request.json_slices import ExcessError, slice_body
from everthread.gateway.request.outer_fields import OuterFields
from tests.apis import CHAT_PATH
from tests.gateway.authenticators import AnyKey, RecordingAccount
from tests.gateway.gateway_setup import CHAT_MODEL, Gateways
from tests.gateway.raw_http import (
    JSON,
    PassThroughManager,
    RawMessage,
    fixed_answer,
    open_raw_gateway,
    open_raw_upstream,
    post_request,
    raw_gateway,
    send_bytes,
)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(
            {"model": "m", "messages": [{"role": "user", "content": "x"}] * 10_001}
        ).encode(),
        b'{"model": "m", "messages": [' + b"{}," * 400_000 + b"{}]}",
        b'{"model": "m", "messages": [' + b"1," * 400_000 + b"1]}",
        b'{"model": "m", "messages": [{"role": "user", "content": [' + b"1," * 400_000 + b"1]}]}",
    ],
)
async def test_forwards_oversized_requests_unmanaged_with_a_notice(
    body: bytes,
) -> None:
    manager = PassThroughManager()
    async with (
        open_raw_upstream() as upstream,
        open_raw_gateway(upstream.url, manager) as (url, proxy),
    ):
        answer = await send_bytes(url, post_request(CHAT_PATH, body))
    assert answer.status == 200, answer.body
    assert upstream.received[0].body == body
    assert manager.prepared == []
    assert "passed on unmanaged" in answer.header_values["x-everthread-notice"]
    assert proxy.metrics.value("unmanaged") == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            b'{"model": "m", "messages": [' + b'"",' * 41_000 + b'""]}',
            "more than 40,000 messages",
        ),
        (
            b'{"model": "m", "messages": [{"role": "user", "content": ['
            + b"1," * 51_000
            + b"1]}]}",
            "50,000 values",
        ),
        (
            b'{"model": "m", "messages": [], "tools": [' + b"1," * 51_000 + b"1]}",
            "`tools` has more than 50,000 values",
        ),
        (
            b'{"model": "m", "messages": []'
            + b"".join(b',"k%d":1' % n for n in range(1_001))
            + b"}",
            "1,000 fields",
        ),
        (
            b'{"model": "m", "messages": ["' + b"\\ud800" * 1_000_001 + b'"]}',
            "1,000,000 escapes",
        ),
    ],
)
def test_does_not_parse_a_part_of_many_tiny_values(body: bytes, why: str) -> None:
    with pytest.raises(ExcessError, match=why):
        slice_body(body, "openai_chat")


async def test_forwards_a_message_of_many_values_unmanaged(
    gateways: Gateways,
) -> None:
    """Ten megabytes of numbers in one message do not delay other clients."""
    body = json.dumps(
        {
            "model": CHAT_MODEL,
            "messages": [{"role": "user", "content": [1] * 51_000}],
        }
    ).encode()
    url = await gateways.start()
    key = await gateways.create_key()
    answer = await send_bytes(
        url, post_request(CHAT_PATH, body, (b"authorization", f"Bearer {key}".encode()))
    )
    assert (
        "one of its messages has more than 50,000 values"
        in answer.header_values["x-everthread-notice"]
    )


def test_commas_in_texts_do_not_count_as_values() -> None:
    text = json.dumps(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "1," * 400_000}],
        }
    ).encode()
    assert not OuterFields(text).is_excessive
    assert len(slice_body(text, "openai_chat").messages) == 1
    assert OuterFields(
        b'{"a":"' + b'\\",' * 400_000
    ).is_excessive  # no JSON, and not to be looked at again and again


def test_does_not_read_a_million_outer_fields_one_by_one() -> None:
    """60 MB of short fields are not parsed one by one, and the right model is still charged."""
    fields = b",".join(b'"k%d":1' % number for number in range(500_000))
    body = (
        b"{" + fields + b', "model": "gpt-4o", "messages": [], ' + fields.replace(b"k", b"l") + b"}"
    )
    tracemalloc.start()
    try:
        outer = OuterFields(body)
        assert outer.is_excessive
        assert outer.model == "gpt-4o"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(body)


def test_searches_for_escaped_names_once() -> None:
    """Millions of short escaped names are not decoded one by one."""
    body = b'{"model": "m", "messages": ["\\ud800", {' + b'"\\u0041b": 1, ' * 300_000 + b'"b": 1}]}'
    counted = sys.getprofile()
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        assert OuterFields(body).model == "m"
    finally:
        sys.setprofile(counted)
    assert calls < 1_000


async def test_forwards_a_body_that_decompresses_too_far_unmanaged() -> None:
    packed = gzip.compress(b'{"model": "m", "messages": [' + b" " * 20_000_000 + b"]}")
    manager = PassThroughManager()
    async with raw_gateway(manager=manager) as (url, upstream):
        answer = await send_bytes(
            url, post_request(CHAT_PATH, packed, (b"content-encoding", b"gzip"))
        )
    assert answer.status == 200
    assert upstream.received[0].body == packed
    assert manager.prepared == []
    assert "times as large" in answer.header_values["x-everthread-notice"]


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        (b"br", b"brotli"),
        (b"gzip", gzip.compress(b"") * 5_000),
    ],
)
async def test_forwards_an_undecodable_body_with_a_notice(name: bytes, packed: bytes) -> None:
    manager = PassThroughManager()
    async with raw_gateway(manager=manager) as (url, upstream):
        answer = await send_bytes(url, post_request(CHAT_PATH, packed, (b"content-encoding", name)))
    assert answer.status == 200
    assert upstream.received[0].body == packed
    assert manager.prepared == []
    assert (
        answer.header_values["x-everthread-notice"]
        == "passed on unmanaged: its body cannot be decoded here"
    )


@pytest.mark.parametrize(
    ("body", "fine"),
    [
        (b'{"model": "a", "messages": []}', True),
        (
            b'{"model": "a", "messages": [{"model": "b", "input": {"model": "c"}}]}',
            True,
        ),
        (b'{"model": "a", "messages": [{"content": "\\"model\\": \\"b\\""}]}', True),
        (b'{"model": "a", "metadata": {"mod\\u00e9l": "b"}}', True),
        (b'{"model": "dear", "messages": [], "model": "cheap"}', False),
        (b'{"model": "dear", "mod\\u0065l": "cheap"}', False),
        (b'{"mod\\u0065l": "dear", "messages": []}', False),
        (b'{"messages": [], "model": "a", "messages": [1]}', False),
        (b'{"model": "a", "stream": true, "stream": false}', False),
        (b"no json", True),
    ],
)
async def test_refuses_duplicates_only_of_fields_that_matter(body: bytes, *, fine: bool) -> None:
    if fine:
        OuterFields(body)
        return
    with pytest.raises(RequestRefused, match="twice"):
        OuterFields(body)
    async with raw_gateway() as (url, upstream):
        answer = await send_bytes(url, post_request(CHAT_PATH, body))
    assert answer.status == 400
    assert upstream.received == []
    assert json.loads(answer.body)["error"]["code"] == "duplicate_field"


@pytest.mark.parametrize(
    ("accepted", "asked"),
    [
        (b"gzip, deflate, br, zstd", b"gzip, deflate, zstd"),
        (b"br", b"identity"),
        (b"*", b"identity"),
        (b"gzip;q=0.5, br;q=1", b"gzip;q=0.5"),
        (b"", b"identity"),
    ],
)
def test_asks_upstreams_only_for_encodings_it_can_read(accepted: bytes, asked: bytes) -> None:
    assert keep_supported_encodings(accepted) == asked


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/embeddings"])
async def test_charges_the_model_that_answered(path: str) -> None:
    account = RecordingAccount()
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
    }
    answer: Any = {
        "id": "x",
        "model": "gpt-4o",
        "usage": usage,
    }
    if path == CHAT_PATH:
        answer["choices"] = [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi"},
                "finish_reason": "stop",
            }
        ]

    async def reply(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        assert request.header_values["accept-encoding"] == "gzip"
        packed = gzip.compress(json.dumps(answer).encode())
        await fixed_answer(200, [*JSON, (b"content-encoding", b"gzip")], packed)(request, writer)

    async with raw_gateway(reply, authenticator=AnyKey(account)) as (url, _):
        body = json.dumps(
            {
                "model": "gpt-4o-mini",
                "messages": [{"role": "user", "content": "Hi"}],
            }
        ).encode()
        response = await send_bytes(
            url,
            post_request(
                path,
                body,
                *JSON,
                (b"accept-encoding", b"gzip, br"),
            ),
        )
        assert response.status == 200
    [(usage_charged, model)] = account.calls
    assert usage_charged.total_tokens == 9
    assert model == "gpt-4o"
    assert choose_charged_model("gpt-4o", "a-model-nobody-knows") == "gpt-4o"
