"""No client can keep the others out by slow bodies, many requests or many connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from everthread.gateway.access.authentication import (
    AcceptedCredentials,
    Caller,
    PassthroughCredential,
)
from everthread.gateway.app import GatewayApp
from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway
from tests.apis import CHAT_PATH
from tests.gateway.raw_http import (
    PassThroughManager,
    RawMessage,
    connect,
    open_raw_upstream,
    raw_gateway,
    read_message,
    send_post,
)


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/files"])
async def test_slow_bodies_do_not_count_as_requests(path: str) -> None:
    limits = GatewayLimits(concurrent=3)
    async with raw_gateway(limits=limits) as (url, _):
        slow = [await connect(url) for _ in range(6)]
        for _, writer in slow:
            writer.write(
                b"POST "
                + path.encode()
                + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
            )
            await writer.drain()
        for _ in range(3):
            response = await send_post(url, CHAT_PATH)
            assert response.status == 200
        for _, writer in slow:
            writer.close()


SLOW = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\nx-api-key: %b\r\n\r\n{"


class Credentials:
    """One credential that an upstream has accepted; all others are made up."""

    async def has(self, digest: str) -> bool:
        return self.is_known(digest)

    def is_known(self, digest: str) -> bool:
        return digest == "good"

    def add(self, digest: str) -> None:
        """No upstream here refuses a credential, so made-up ones stay unknown."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        key = headers["x-api-key"]
        credential = PassthroughCredential(key, cast("AcceptedCredentials", self))
        return Caller(
            key,
            key,
            frozenset({"proxy"}),
            is_passthrough=True,
            credential=credential,
        )


async def test_unaccepted_credentials_share_half_of_the_capacity() -> None:
    """Slow bodies with a credential each are limited too, though no share per key is reached."""
    limits = GatewayLimits(concurrent=2)
    async with raw_gateway(limits=limits, authenticator=Credentials()) as (url, _):
        slow = [await connect(url) for _ in range(12)]
        for number, (_, writer) in enumerate(slow):
            writer.write(SLOW % (b"made-up-%d" % number))
            await writer.drain()
        refused = [await asyncio.wait_for(read_message(reader), 60) for reader, _ in slow[4:]]
        statuses = {answer.status for answer in refused}
        assert statuses == {429}
        for _ in range(3):
            response = await send_post(
                url,
                "/v1/messages",
                b"{}",
                (b"x-api-key", b"good"),
            )
            assert response.status == 200
        for _, writer in slow:
            writer.close()


async def test_limits_the_bytes_of_all_bodies_together() -> None:
    """Many unfinished bodies of the largest size do not fill the memory."""
    limits = GatewayLimits(body_bytes=100_000)
    head = (
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        % CHAT_PATH.encode()
    )
    async with raw_gateway(limits=limits) as (url, _):
        slow = [await connect(url) for _ in range(40)]
        for _, writer in slow:
            writer.write(head + b"x" * 99_000)
            await writer.drain()
        waiting = {asyncio.create_task(read_message(reader)) for reader, _ in slow}
        done: set[asyncio.Task[RawMessage]] = set()
        while len(done) < 8:
            done, _ = await asyncio.wait(waiting, timeout=0.1)
        statuses = {task.result().status for task in done}
        assert statuses == {429}
        for _, writer in slow:
            writer.close()
        await asyncio.gather(*waiting, return_exceptions=True)
        while (await send_post(url, CHAT_PATH)).status != 200:  # noqa: ASYNC110 - as a client tries again
            await asyncio.sleep(0.01)


async def test_idle_connections_give_way_to_new_ones() -> None:
    async with open_raw_upstream() as upstream:
        proxy = Proxy(Routes([Upstream("only", upstream.url)]), PassThroughManager())
        async with Gateway(GatewayApp(proxy), grace_seconds=1.0, max_connections=8) as running:
            idle = [await connect(running.url) for _ in range(30)]
            for _ in range(5):
                response = await send_post(running.url, CHAT_PATH)
                assert response.status == 200
            ended = [reader.at_eof() for reader, _ in idle]
            for _, writer in idle:
                writer.close()
    assert sum(ended) >= 22
    assert not any(ended[-2:])


@pytest.mark.parametrize(
    ("header", "piece"),
    [
        (b"Content-Length: 9000000", b"x" * 100_000),
        (b"Content-Length: 9000000\r\nContent-Encoding: gzip", b"x" * 100_000),
        (b"Transfer-Encoding: chunked", b"186a0\r\n" + b"x" * 100_000 + b"\r\n"),
    ],
    ids=["stated", "encoded", "chunked"],
)
async def test_refuses_a_too_large_body_without_a_reset(header: bytes, piece: bytes) -> None:
    """The client is still sending when the refusal comes, and reads it afterwards."""

    def send(url: str) -> bytes:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(
                b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n"
            )
            for _ in range(90):
                client.sendall(piece)
            return client.recv(65_536)

    limits = GatewayLimits(body_bytes=10_000)
    async with raw_gateway(limits=limits) as (url, _):
        answer = await asyncio.to_thread(send, url)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"gateway.limits" in answer


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files to lower")
async def test_answers_despite_more_idle_connections_than_files(tmp_path: Path) -> None:
    """A process with 1,024 files and 1,100 idle clients keeps answering, and its log stays short."""
    import resource  # noqa: PLC0415  not on every system

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4_096:
        pytest.skip("this process itself may not open so many connections")
    resource.setrlimit(
        resource.RLIMIT_NOFILE,
        (max(soft, 4_096) if soft != resource.RLIM_INFINITY else soft, hard),
    )
    log = tmp_path / "log"
    async with open_raw_upstream() as upstream:
        command = [
            sys.executable,
            "-m",
            "everthread",
            "serve",
            "--port",
            "0",
            "--json",
            "--upstream",
        ]
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                "sh",
                "-c",
                'ulimit -n 1024 && exec "$@"',
                "sh",
                *command,
                f"lab={upstream.url}",
                env={**os.environ, "EVERTHREAD_HOME": str(tmp_path)},
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        assert process.stdout is not None
        text = ""
        url = ""
        while not url:
            text += (await process.stdout.readline()).decode()
            with suppress(ValueError):
                url = json.loads(text)["url"]
        idle = [await connect(url) for _ in range(1_100)]
        try:
            for _ in range(5):
                response = await send_post(url, CHAT_PATH)
                assert response.status == 200
        finally:
            for _, writer in idle:
                writer.close()
            process.terminate()
            await process.communicate()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert log.stat().st_size < 100_000
