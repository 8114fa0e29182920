"""Places: nobody keeps the others out, with slow bodies, many requests or many connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from everthread.gateway.app import GatewayApp
from everthread.gateway.errors import Refused
from everthread.gateway.limits import Limits
from everthread.gateway.middleware import Admission
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway
from tests.gateway.raw import JSON, Plain, ask, connect, gateway, post, raw_upstream, say

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("path", [CHAT, "/v1/files"])
async def test_slow_bodies_take_no_places(path: str) -> None:
    limits = Limits(concurrent=3)
    async with raw_upstream(say(200, JSON, b"{}")) as upstream, gateway(upstream.url, limits=limits) as (url, _):
        slow = [await connect(url) for _ in range(6)]
        for _, writer in slow:
            writer.write(b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            await writer.drain()
        for _ in range(3):
            assert (await ask(url, post(CHAT, b"{}"))).status == 200
        for _, writer in slow:
            writer.close()


def test_one_key_has_half_of_the_places() -> None:
    admission = Admission(4)
    with admission.enter("a"), admission.enter("a"):
        with pytest.raises(Refused, match="This key"), admission.enter("a"):
            pass
        with (
            admission.enter("b"),
            admission.enter("b"),
            pytest.raises(Refused, match="busy"),
            admission.enter("c"),
        ):
            pass
    with admission.enter(), admission.enter(), admission.enter(), admission.enter():
        assert admission.inside == 4
    assert admission.inside == 0


async def test_idle_connections_give_way_to_new_ones() -> None:
    async with raw_upstream(say(200, JSON, b"{}")) as upstream:
        proxy = Proxy(Routes([Upstream("only", upstream.url)]), Plain())
        async with Gateway(GatewayApp(proxy), patience=1.0, connections=8) as running:
            idle = [await connect(running.url) for _ in range(30)]
            for _ in range(5):
                assert (await ask(running.url, post(CHAT, b"{}"))).status == 200
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
async def test_a_body_that_is_too_large_gets_an_answer_and_no_reset(header: bytes, piece: bytes) -> None:
    """The client is still sending when the refusal comes, and reads it afterwards."""

    def send(url: str) -> bytes:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n")
            for _ in range(90):
                client.sendall(piece)
            return client.recv(65_536)

    limits = Limits(body_bytes=10_000)
    async with raw_upstream(say(200, JSON, b"{}")) as upstream, gateway(upstream.url, limits=limits) as (url, _):
        answer = await asyncio.to_thread(send, url)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"gateway.limits" in answer


@pytest.mark.skipif(sys.platform == "win32", reason="there is no limit of open files to lower")
async def test_more_idle_connections_than_files(tmp_path: Path) -> None:
    """A process with 1,024 files and 1,100 idle clients goes on answering, and its log stays short."""
    import resource  # noqa: PLC0415  not on every system

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4_096:
        pytest.skip("this process itself may not open so many connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_096) if soft != resource.RLIM_INFINITY else soft, hard))
    log = tmp_path / "log"
    async with raw_upstream(say(200, JSON, b"{}")) as upstream:
        command = [sys.executable, "-m", "everthread", "serve", "--port", "0", "--json", "--upstream"]
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                "sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh", *command, f"lab={upstream.url}",
                env={**os.environ, "EVERTHREAD_HOME": str(tmp_path)}, stdout=asyncio.subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        assert process.stdout is not None
        text, url = "", ""
        while not url:
            text += (await process.stdout.readline()).decode()
            with suppress(ValueError):
                url = json.loads(text)["url"]
        idle = [await connect(url) for _ in range(1_100)]
        try:
            for _ in range(5):
                assert (await ask(url, post(CHAT, b"{}"))).status == 200
        finally:
            for _, writer in idle:
                writer.close()
            process.terminate()
            await process.communicate()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert log.stat().st_size < 100_000
