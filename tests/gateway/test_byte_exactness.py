"""While nothing needs rewriting: request, answer and stream go through byte for byte, as they come."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.raw_http import (
    JSON,
    STREAM,
    PassThroughManager,
    RawMessage,
    encode_chunk,
    fixed_answer,
    post_request,
    raw_gateway,
    response_head,
    send_bytes,
)

CONVERSATIONS = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
PATHS = [
    *CONVERSATIONS,
    "/v1/messages/count_tokens",
    "/v1/embeddings?x=%2f&y",
]
TOKEN = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(
    lambda text: f"x-{text}".encode()
)
VALUE = st.binary(max_size=20).map(lambda raw: bytes(33 + byte % 94 for byte in raw))
BODIES = st.one_of(
    st.binary(max_size=300),
    st.dictionaries(st.text(max_size=5), st.text()).map(lambda d: json.dumps(d).encode()),
)
"""Also invalid JSON: the upstream refuses it."""


def comparable_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the end-to-end headers; those about a connection are the gateway's own."""
    own = {b"host", b"content-length", b"connection", b"transfer-encoding"}
    return [(name.lower(), value) for name, value in headers if name.lower() not in own]


@settings(max_examples=40)
@given(
    path=st.sampled_from(PATHS),
    sent=BODIES,
    fields=st.lists(st.tuples(TOKEN, VALUE), max_size=4),
    status=st.sampled_from([200, 201, 400, 404, 413, 429, 500, 529]),
    answer=st.binary(max_size=300),
    replied=st.lists(st.tuples(TOKEN, VALUE), max_size=4),
)
async def test_passes_a_complete_answer_through_unchanged(
    *,
    path: str,
    sent: bytes,
    fields: list[tuple[bytes, bytes]],
    status: int,
    answer: bytes,
    replied: list[tuple[bytes, bytes]],
) -> None:
    theirs = [
        *JSON,
        (b"authorization", b"Bearer sk-client"),
        *fields,
    ]
    async with raw_gateway(fixed_answer(status, replied, answer)) as (url, upstream):
        response = await send_bytes(url, post_request(path, sent, *theirs))
        (request,) = upstream.received
    assert request.line == b"POST " + path.encode() + b" HTTP/1.1"
    assert request.body == sent
    assert comparable_headers(request.headers) == theirs
    assert response.status == status
    assert response.body == answer
    assert comparable_headers(response.headers)[: len(replied)] == replied
    notice = [] if path in CONVERSATIONS else [b"x-everthread-notice"]
    assert [name for name, _ in comparable_headers(response.headers)[len(replied) :]] == [
        b"content-security-policy",
        b"x-content-type-options",
        *notice,
        b"x-request-id",
        b"x-everthread-request",
    ]


@settings(max_examples=40)
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=60), max_size=6),
    path=st.sampled_from(PATHS),
)
async def test_passes_a_stream_through_piece_by_piece(pieces: list[bytes], path: str) -> None:
    """The next piece is sent when the client heard the one before: nothing is held back."""
    received_chunks = asyncio.Semaphore(0)

    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(response_head(200, STREAM))
        for piece in pieces:
            writer.write(encode_chunk(piece))
            await received_chunks.acquire()
        writer.write(b"0\r\n\r\n")

    async with raw_gateway(answer) as (url, _):
        response = await send_bytes(
            url, post_request(path, b"{}"), on_chunk=lambda _: received_chunks.release()
        )
    assert response.chunks == pieces


@pytest.mark.parametrize("path", PATHS)
async def test_passes_compressed_bodies_through_unchanged(path: str) -> None:
    manager = PassThroughManager()
    packed = gzip.compress(b'{"model": "m", "messages": []}')
    answer = gzip.compress(b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}')
    write_answer = fixed_answer(200, [*JSON, (b"content-encoding", b"gzip")], answer)
    async with raw_gateway(write_answer, manager) as (url, upstream):
        response = await send_bytes(
            url,
            post_request(
                path,
                packed,
                *JSON,
                (b"content-encoding", b"gzip"),
            ),
        )
        assert upstream.received[0].body == packed
        assert upstream.received[0].header_values["content-encoding"] == "gzip"
    assert response.body == answer
    bodies = [incoming.body.plain for incoming in manager.prepared]
    assert bodies in (
        [],
        [b'{"model": "m", "messages": []}'],
    )


async def test_a_truncated_answer_reaches_the_client_truncated() -> None:
    """Half an answer must not look whole."""

    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(response_head(200, STREAM) + encode_chunk(b"data: 1\n\n"))
        await writer.drain()
        writer.close()

    async with raw_gateway(answer) as (url, _):
        with pytest.raises((asyncio.IncompleteReadError, ValueError)):
            await send_bytes(url, post_request("/v1/messages", b"{}"))


async def test_passes_an_upload_through_piece_by_piece() -> None:
    """A path that is not parsed has no limit: its body is never in memory as a whole."""
    big = b"0123456789" * 300_000
    async with raw_gateway() as (url, upstream):
        await send_bytes(
            url,
            post_request("/v1/files", big, (b"content-type", b"multipart/form-data")),
        )
        assert upstream.received[0].body == big
