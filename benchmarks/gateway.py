"""What the gateway adds to a request: the same ones to an upstream directly, through it and through LiteLLM's proxy.

`python -m benchmarks.gateway quick`: fewer rounds, without LiteLLM.
The upstream answers at once, from a process of its own, so that what is measured is the way and nothing else. The
thread is known: each request extends the one before, as an agent's do. All ways are taken in turns in the same run, so
a machine that is busy with something else is so for all of them.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.peers import PeerAbsentError
from benchmarks.peers.litellm_proxy import litellm_proxy
from benchmarks.table import Row, markdown

SIZES = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000}
CONNECTIONS = (1, 16, 64)
IDLE_THREADS = 1_000
MODEL = "claude-sonnet-5"
OURS, PEER = "managed", "LiteLLM"
ADDED_MS, TIMES_LESS = 3.0, 5.0
ANSWER = json.dumps(
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Fine."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 2},
    }
).encode()


@dataclass(frozen=True)
class Effort:
    """How long it is measured."""

    rounds: int = 150
    seconds: float = 3.0
    peer: bool = True


@dataclass(frozen=True)
class Server:
    """A server in a process of its own."""

    url: str
    pid: int = 0


def run(effort: Effort | None = None) -> list[Row]:
    chosen = effort or Effort()
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        direct = stack.enter_context(_process(_upstream))
        ways = {mode: stack.enter_context(_process(_gateway, direct.url, folder, mode)) for mode in ("off", OURS)}
        if chosen.peer:
            try:
                ways[PEER] = Server(stack.enter_context(litellm_proxy(direct.url, MODEL)))
            except PeerAbsentError as error:
                rows.append(Row("LiteLLM's proxy", f"absent: {error}"))
        rows += asyncio.run(_clients(direct, chosen))
        rows += asyncio.run(_latencies(direct, ways, chosen))
        rows += asyncio.run(_throughput(direct, ways, chosen))
        rows.append(asyncio.run(_memory(direct, folder)))
    return rows


async def _clients(direct: Server, effort: Effort) -> list[Row]:
    """What a request costs this process with each HTTP client, in CPU: why the gateway's is aiohttp."""
    from everthread.gateway.limits import Limits  # noqa: PLC0415
    from everthread.gateway.router import Upstream  # noqa: PLC0415
    from everthread.gateway.upstream import UpstreamClient  # noqa: PLC0415

    ours, upstream = UpstreamClient(Limits()), Upstream("direct", direct.url)
    headers = [(b"content-type", b"application/json"), (b"x-api-key", b"any")]

    async def ask_ours(body: bytes) -> bytes:
        answer = await ours.send(upstream, "POST", b"/v1/messages", headers, body)
        return b"".join([piece async for piece in answer.aiter_raw()])

    rows = []
    async with httpx2.AsyncClient(timeout=60) as other:

        async def ask_httpx2(body: bytes) -> bytes:
            request = httpx2.Request("POST", f"{direct.url}/v1/messages", headers=headers, content=body)
            answer = await other.send(request, stream=True)
            whole = b"".join([piece async for piece in answer.aiter_raw()])
            await answer.aclose()
            return whole

        for name, size in SIZES.items():
            spent: dict[str, list[float]] = {"aiohttp": [], "httpx2": []}
            for _ in range(effort.rounds):
                for client, ask in (("aiohttp", ask_ours), ("httpx2", ask_httpx2)):
                    started = time.process_time()
                    assert await ask(b"x" * size) == ANSWER
                    spent[client].append(time.process_time() - started)
            figures = {client: 1_000 * statistics.median(times) for client, times in spent.items()}
            figure = ", ".join(f"{client} {figure:.2f} ms" for client, figure in figures.items())
            rows.append(
                Row(f"CPU of a client for {name}", figure, "aiohttp less", figures["aiohttp"] < figures["httpx2"])
            )
    await ours.close()
    return rows


async def _latencies(direct: Server, ways: Mapping[str, Server], effort: Effort) -> list[Row]:
    rows = []
    for name, size in SIZES.items():
        times: dict[str, list[float]] = {way: [] for way in ("", *ways)}
        async with httpx2.AsyncClient(timeout=60) as client:
            for number in range(effort.rounds):
                body = _body(size, number, name)
                for way, found in times.items():
                    server = ways[way] if way else direct
                    started = time.perf_counter()
                    await _ask(client, server.url, body, exact=way != PEER)
                    found.append(time.perf_counter() - started)
        added = {way: 1_000 * (_share(times[way], 50) - _share(times[""], 50)) for way in ways}
        slowest = {way: 1_000 * _share(times[way], 99) for way in times}
        rows += [_added(name, way, figure) for way, figure in added.items()]
        whole = ", ".join(f"{way or 'directly'} {figure:.1f} ms" for way, figure in slowest.items())
        rows.append(Row(f"99 of 100 requests of {name} answered within", whole))
        if PEER in added:
            less = added[PEER] / max(added[OURS], 0.001)
            goal = f"≥ {TIMES_LESS:g}" if name == "100 KB" else ""
            rows.append(
                Row(
                    f"LiteLLM adds so many times as much with {name}, p50",
                    f"{less:.1f}",
                    goal,
                    _met(goal, less >= TIMES_LESS),
                )
            )
    return rows


def _added(size: str, way: str, median: float) -> Row:
    goal = f"≤ {ADDED_MS:g} ms" if (size, way) == ("100 KB", OURS) else ""
    return Row(
        f"added with a history of {size}, {way}, median", f"{median:.2f} ms", goal, _met(goal, median <= ADDED_MS)
    )


def _met(goal: str, reached: bool) -> bool | None:  # noqa: FBT001 - what was reached
    return reached if goal else None


async def _throughput(direct: Server, ways: Mapping[str, Server], effort: Effort) -> list[Row]:
    rows = []
    for number in CONNECTIONS:
        rates = {"directly": await _rate(direct.url, number, effort.seconds, exact=True)}
        for way, server in ways.items():
            rates[way] = await _rate(server.url, number, effort.seconds, exact=way != PEER)
        figure = ", ".join(f"{way} {rate:,.0f} / s" for way, rate in rates.items())
        rows.append(Row(f"requests of 1 KB over {number} connections", figure))
    return rows


async def _rate(url: str, connections: int, seconds: float, *, exact: bool) -> float:
    """Answers a second. One client process asks: with many connections its own work is part of the figure."""
    ends = time.perf_counter() + seconds
    body = _body(1_000, 1, "rate")

    async def one(client: httpx2.AsyncClient) -> int:
        count = 0
        while time.perf_counter() < ends:
            await _ask(client, url, body, exact=exact)
            count += 1
        return count

    async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=connections)) as client:
        return sum(await asyncio.gather(*(one(client) for _ in range(connections)))) / seconds


async def _memory(direct: Server, folder: str) -> Row:
    """What a process holds of threads nobody continues: two requests of 10 KB each."""
    with _process(_gateway, direct.url, folder, OURS, "idle.db") as server:
        async with httpx2.AsyncClient(timeout=60) as client:
            for number in range(20):
                await _ask(client, server.url, _body(10_000, number, "warm"))
            before = _resident(server.pid)
            for thread in range(IDLE_THREADS):
                for number in (1, 2):
                    await _ask(client, server.url, _body(10_000, number, f"thread {thread}"))
            after = _resident(server.pid)
    if before is None or after is None:
        return Row(f"memory at {IDLE_THREADS:,} idle threads", "not known on this system")
    grown = (after - before) / 2**20
    figure = f"{before / 2**20:.0f} MB before, {grown:.1f} MB more after"
    return Row(f"memory at {IDLE_THREADS:,} idle threads of 10 KB", figure)


def _resident(pid: int) -> int | None:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    lines = status.read_text("ascii").split("VmRSS:")
    return int(lines[1].split()[0]) * 1024 if len(lines) > 1 else None


async def _ask(client: httpx2.AsyncClient, url: str, body: bytes, *, exact: bool = True) -> None:
    headers = {"content-type": "application/json", "x-api-key": "any"}
    answer = await client.post(f"{url}/v1/messages", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert not exact or answer.content == ANSWER


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
    return json.dumps({"model": MODEL, "max_tokens": 100, "messages": messages}).encode()


def _share(times: list[float], share: int) -> float:
    return statistics.quantiles(times[10:], n=100)[share - 1]


@contextmanager
def _process(target: Any, *given: Any) -> Iterator[Server]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *given), daemon=True)
    process.start()
    there.close()  # so that a process that ends is heard
    try:
        yield Server(here.recv(), process.pid or 0)
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


def _gateway(told: Connection, upstream: str, folder: str, mode: str, store: str = "") -> None:
    asyncio.run(_served(told, upstream, Path(folder) / (store or f"{mode}.db"), mode))


async def _served(told: Connection, upstream: str, store: Path, mode: str) -> None:
    from everthread.config import parse_config  # noqa: PLC0415
    from everthread.factory.gateway import open_gateway  # noqa: PLC0415  in the process it runs in

    upstreams = f"[{{name: direct, url: '{upstream}', mode: {mode}}}]"
    text = f"gateway: {{port: 0, upstreams: {upstreams}}}\nstore: {{url: 'sqlite:///{store}'}}"
    async with open_gateway(parse_config(text)) as gateway:
        told.send(gateway.url)
        await asyncio.Event().wait()


if __name__ == "__main__":
    quick = "quick" in sys.argv[1:]
    print(markdown("gateway", run(Effort(40, 1.0, peer=False) if quick else None)))
