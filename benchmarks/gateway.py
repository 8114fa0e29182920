"""What the gateway adds to a request: the same requests to an upstream directly and through it, in turns.

The upstream answers at once, from a process of its own, so that what is measured is the way and nothing else. The
thread is known: each request extends the one before, as an agent's do.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.table import Row

SIZES = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000}
ROUNDS = 150
CONNECTIONS = (1, 16, 64)
SECONDS = 3.0
ANSWER = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [{"type": "text", "text": "Fine."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 2},
    }
).encode()


def run() -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, _process(_upstream) as direct:
        for mode in ("off", "managed"):
            with _process(_gateway, direct, folder, mode) as through:
                rows += asyncio.run(_latencies(direct, through, mode))
                if mode == "managed":
                    rows += asyncio.run(_throughput(direct, through))
    return rows


async def _latencies(direct: str, through: str, mode: str) -> list[Row]:
    rows = []
    for name, size in SIZES.items():
        ways: dict[str, list[float]] = {direct: [], through: []}
        async with httpx2.AsyncClient(timeout=60) as client:
            for number in range(ROUNDS):
                body = _body(size, number, f"{mode} {name}")
                for url, times in ways.items():
                    started = time.perf_counter()
                    await _ask(client, url, body)
                    times.append(time.perf_counter() - started)
        added = {share: _share(ways[through], share) - _share(ways[direct], share) for share in (50, 99)}
        met = 1_000 * added[50] <= 3 if name == "100 KB" else None
        figure = f"p50 {1_000 * added[50]:.2f} ms, p99 {1_000 * added[99]:.2f} ms"
        rows.append(
            Row(f"added with a history of {name}, {mode}", figure, "p50 ≤ 3 ms" if met is not None else "", met)
        )
    return rows


async def _throughput(direct: str, through: str) -> list[Row]:
    rows = []
    for number in CONNECTIONS:
        rates = [await _rate(url, number) for url in (direct, through)]
        figure = f"{rates[1]:,.0f} / s through, {rates[0]:,.0f} / s directly"
        rows.append(Row(f"requests of 1 KB over {number} connections", figure))
    return rows


async def _rate(url: str, connections: int) -> float:
    """Answers a second. One client process asks: with many connections its own work is part of the figure."""
    ends = time.perf_counter() + SECONDS
    body = _body(1_000, 1, "rate")

    async def one(client: httpx2.AsyncClient) -> int:
        count = 0
        while time.perf_counter() < ends:
            await _ask(client, url, body)
            count += 1
        return count

    async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=connections)) as client:
        return sum(await asyncio.gather(*(one(client) for _ in range(connections)))) / SECONDS


async def _ask(client: httpx2.AsyncClient, url: str, body: bytes) -> None:
    headers = {"content-type": "application/json", "x-api-key": "any"}
    answer = await client.post(f"{url}/v1/messages", content=body, headers=headers)
    assert answer.content == ANSWER


def _body(size: int, number: int, scope: str) -> bytes:
    """A history of about this size to which a short exchange is added each time."""
    text = f"Entry of {scope}: the books are settled and compared. " * 20
    count = max(1, size // (2 * len(text)))
    messages: list[Any] = []
    for index in range(count):
        messages.append({"role": "user", "content": f"{index} {text}"})
        messages.append({"role": "assistant", "content": f"{text} {index}"})
    for index in range(number):
        messages.append({"role": "user", "content": f"Next {index}?"})
        messages.append({"role": "assistant", "content": "Fine."})
    messages.append({"role": "user", "content": f"Next {number}?"})
    return json.dumps({"model": "claude-sonnet-5", "max_tokens": 100, "messages": messages}).encode()


def _share(times: list[float], share: int) -> float:
    return statistics.quantiles(times[10:], n=100)[share - 1]


@contextmanager
def _process(target: Any, *given: Any) -> Iterator[str]:
    """A server in a process of its own: its address."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *given), daemon=True)
    process.start()
    there.close()  # so that a process that ends is heard
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


def _upstream(told: Connection) -> None:
    asyncio.run(_answer_at_once(told))


async def _answer_at_once(told: Connection) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = lines.partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or b"0"))
                writer.write(head + ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    told.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


def _gateway(told: Connection, upstream: str, folder: str, mode: str) -> None:
    asyncio.run(_served(told, upstream, Path(folder) / f"{mode}.db", mode))


async def _served(told: Connection, upstream: str, store: Path, mode: str) -> None:
    from everthread.compose.gateway import open_gateway  # noqa: PLC0415  in the process it runs in
    from everthread.config import parse_config  # noqa: PLC0415

    upstreams = f"[{{name: direct, url: '{upstream}', mode: {mode}}}]"
    text = f"gateway: {{port: 0, upstreams: {upstreams}}}\nstore: {{url: 'sqlite:///{store}'}}"
    async with open_gateway(parse_config(text)) as gateway:
        told.send(gateway.url)
        await asyncio.Event().wait()
