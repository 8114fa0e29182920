"""The connection to an upstream: the answers that HTTP allows, and the reuse of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.router import Upstream
from everthread.gateway.upstream import (
    UpstreamClient,
    UpstreamDisconnectedError,
    UpstreamTimeoutError,
)
from tests.gateway.raw_http import (
    RawMessage,
    RawUpstream,
    WriteAnswer,
    encode_chunk,
    fixed_answer,
    open_raw_upstream,
)

Asked = Callable[..., Awaitable[tuple[int, list[tuple[bytes, bytes]], bytes]]]


@asynccontextmanager
async def open_client(
    answer: WriteAnswer, limits: GatewayLimits | None = None
) -> AsyncIterator[tuple[Asked, RawUpstream]]:
    async with open_raw_upstream(answer) as upstream:
        client = UpstreamClient(limits or GatewayLimits())

        async def ask(
            method: str = "POST", content: bytes | AsyncIterator[bytes] | None = b"{}"
        ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
            got = await client.send(
                Upstream("only", upstream.url),
                method,
                b"/v1/x?y=%2f",
                [(b"x-a", b"\xe9")],
                content,
            )
            try:
                return (
                    got.status_code,
                    got.headers.raw,
                    b"".join([piece async for piece in got.pieces()]),
                )
            finally:
                await got.close()

        try:
            yield ask, upstream
        finally:
            await client.close()


def answer_with_bytes(data: bytes, *, close: bool = False) -> WriteAnswer:
    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if close:
            writer.close()

    return answer


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (
            answer_with_bytes(
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab"
            ),
            b"ab",
        ),
        (
            answer_with_bytes(
                b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
            ),
            b"",
        ),
        (
            answer_with_bytes(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", close=True),
            b"until the end",
        ),
        (
            answer_with_bytes(b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", close=True),
            b"abc",
        ),
        (
            answer_with_bytes(
                b"HTTP/1.1 200\r\ntransfer-encoding: chunked\r\n\r\n"
                + encode_chunk(b"ab")
                + b"0\r\nx: y\r\n\r\n"
            ),
            b"ab",
        ),
        (
            answer_with_bytes(
                b"HTTP/1.1 200 OK\r\ncontent-length: 400000\r\n\r\n" + b"x" * 400_000
            ),
            b"x" * 400_000,
        ),
    ],
)
async def test_reads_every_valid_form_of_answer(answer: WriteAnswer, body: bytes) -> None:
    async with open_client(answer) as (ask, _):
        for _ in range(2):
            status, headers, content = await ask()
            assert status == 200
            assert content == body
            assert not {b"link", b"x"} & set(dict(headers)), (
                "nothing of an earlier answer, nor what follows the body"
            )


async def test_reuses_a_connection() -> None:
    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
        # Its length counts bytes that do not follow.
        if not request.line.startswith(b"HEAD"):
            writer.write(b"{}")

    async with open_client(answer) as (ask, upstream):
        for _ in range(3):
            assert (await ask())[2] == b"{}"
        assert (await ask("HEAD", None))[2] == b""
        assert (await ask())[2] == b"{}"
        assert not upstream.disconnected.is_set()
        assert [request.line.split()[1] for request in upstream.received] == [b"/v1/x?y=%2f"] * 5


@pytest.mark.parametrize("later", [False, True])
async def test_an_unrequested_answer_ends_the_connection(*, later: bool) -> None:
    """Bytes between two requests, or after an answer, end the connection."""
    pushed = asyncio.Event()

    async def answer(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        if later:
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nextra")
        await writer.drain()
        pushed.set()

    async with open_client(answer) as (ask, _):
        for _ in range(3):
            pushed.clear()
            assert (await ask())[2] == b"{}"
            await pushed.wait()


async def test_sends_header_values_as_utf_8() -> None:
    async with open_client(fixed_answer(200, [], b"{}")) as (ask, upstream):
        await ask()
        assert dict(upstream.received[0].headers)[b"x-a"] == "é".encode()


async def test_stops_an_upload_when_the_upstream_has_answered() -> None:
    async with open_client(fixed_answer(200, [], b"{}")) as (ask, upstream):

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 10_000
                await asyncio.sleep(0)

        async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
            while await reader.read(65_536):
                pass
            writer.close()
            left.set()

        left = asyncio.Event()
        server = await asyncio.start_server(early, "127.0.0.1", 0)
        upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        status, _, body = await ask("POST", endless())
        assert status == 413
        assert body == b"no"
        await asyncio.wait_for(left.wait(), 10)
        server.close()


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_ends_with_its_headers(status: int) -> None:
    async with open_client(
        answer_with_bytes(b"HTTP/1.1 %d Any\r\netag: x\r\ncontent-length: 5\r\n\r\n" % status)
    ) as (ask, upstream):
        for _ in range(2):
            assert (await ask("GET", None))[::2] == (status, b"")
        assert not upstream.disconnected.is_set(), "and its connection is used again"


async def test_closes_the_connections_of_cancelled_requests() -> None:
    waits = asyncio.Event()

    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        if request.body == b"wait":
            await waits.wait()
        await fixed_answer(200, [], b"{}")(request, writer)

    async with open_client(answer, GatewayLimits(concurrent=2)) as (ask, upstream):
        for cancelled in (True, False):
            waits.clear()
            before = len(upstream.received)
            many = [asyncio.ensure_future(ask("POST", b"wait")) for _ in range(6)]
            await upstream.wait_for_requests(before + 6)
            if cancelled:
                for one in many:
                    one.cancel()
            waits.set()
            await asyncio.wait(many)
            async with asyncio.timeout(60):
                await upstream.wait_until_connections_at_most(0 if cancelled else 6)
            assert [one.cancelled() for one in many] == [cancelled] * 6


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (answer_with_bytes(b"", close=True), 502),
        (answer_with_bytes(b"220 smtp.example ready\r\n"), 502),
        (answer_with_bytes(b"HTTP/1.1 200 OK\r\n"), 504),
        (
            answer_with_bytes(
                b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\nhello"
            ),
            502,
        ),
        (answer_with_bytes(b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * 300_000), 502),
        (
            answer_with_bytes(
                b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"
            ),
            502,
        ),
    ],
)
async def test_refuses_a_missing_or_invalid_answer(answer: WriteAnswer, status: int) -> None:
    async with open_client(answer, GatewayLimits(max_answer_gap_seconds=0.2)) as (ask, upstream):
        with pytest.raises(RequestRefused) as refused:
            await ask()
        assert refused.value.status == status
        await asyncio.wait_for(upstream.disconnected.wait(), 10)


@pytest.mark.parametrize(
    ("close", "kind"),
    [
        (True, UpstreamDisconnectedError),
        (False, UpstreamTimeoutError),
    ],
)
async def test_an_incomplete_answer_is_an_error(*, close: bool, kind: type[Exception]) -> None:
    async with open_client(
        answer_with_bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", close=close),
        GatewayLimits(max_answer_gap_seconds=0.2),
    ) as (ask, upstream):
        with pytest.raises(kind):
            await ask()
        await asyncio.wait_for(upstream.disconnected.wait(), 10)
