"""Measure parts of the gateway: HTTP client, checks before the proxy, garbage collection, long conversations, memory.

`python -m benchmarks.gateway_parts quick`: fewer rounds, without other proxies.
The long conversation has six windows, with a simulated provider that refuses prompts that do not fit.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from benchmarks.peers import PeerAbsentError
from benchmarks.peers.proxies import Server, start_headroom, start_litellm
from benchmarks.servers import (
    ANSWER,
    MODEL,
    ask,
    make_history_body,
    read_memory_bytes,
    serve_answer,
    serve_gateway,
    start_process,
)
from benchmarks.table import Row, format_section

SIZES = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000}
IDLE_THREADS = 500
OURS = "managed"
LITELLM = "LiteLLM"
HEADROOM = "Headroom"
WINDOW = 8_000
TURNS = 70
HEADERS = (
    "host",
    "user-agent",
    "accept",
    "accept-encoding",
    "content-type",
    "content-length",
    "x-api-key",
    "anthropic-version",
    "anthropic-beta",
    "x-app",
)


@dataclass(frozen=True)
class Effort:
    """The extent of a measurement."""

    rounds: int = 60
    peers: bool = True


def run(effort: Effort | None = None) -> list[Row]:
    chosen = effort or Effort()
    with start_process(serve_answer) as direct:
        rows = asyncio.run(_measure_http_clients(direct, chosen))
    rows.append(asyncio.run(_measure_checks()))
    rows.append(_measure_garbage_collection())
    rows += asyncio.run(_long_conversations(chosen))
    rows.append(_measure_memory())
    return rows


# What an HTTP client costs


async def _measure_http_clients(direct: Server, effort: Effort) -> list[Row]:
    """Measure the CPU of a request with each HTTP client: the reason for aiohttp in the gateway."""
    from everthread.gateway.contracts import GatewayLimits  # noqa: PLC0415
    from everthread.gateway.router import Upstream  # noqa: PLC0415
    from everthread.gateway.upstream import UpstreamClient  # noqa: PLC0415

    ours = UpstreamClient(GatewayLimits())
    upstream = Upstream("direct", direct.url)
    headers = [(b"content-type", b"application/json"), (b"x-api-key", b"any")]

    async def ask_ours(body: bytes) -> bytes:
        answer = await ours.send(upstream, "POST", b"/v1/messages", headers, body)
        return b"".join([piece async for piece in answer.pieces()])

    rows = []
    async with httpx2.AsyncClient(timeout=60) as other:

        async def ask_httpx2(body: bytes) -> bytes:
            request = httpx2.Request(
                "POST", f"{direct.url}/v1/messages", headers=headers, content=body
            )
            answer = await other.send(request, stream=True)
            whole = b"".join([piece async for piece in answer.aiter_raw()])
            await answer.aclose()
            return whole

        for name, size in SIZES.items():
            spent: dict[str, list[float]] = {"aiohttp": [], "httpx2": []}
            for _ in range(effort.rounds):
                for client, asking in (("aiohttp", ask_ours), ("httpx2", ask_httpx2)):
                    started = time.process_time()
                    assert await asking(b"x" * size) == ANSWER
                    spent[client].append(time.process_time() - started)
            figures = {client: 1_000 * statistics.median(times) for client, times in spent.items()}
            figure = ", ".join(f"{client} {figure:.2f} ms" for client, figure in figures.items())
            rows.append(
                Row(
                    f"CPU of a client for {name}",
                    figure,
                    "aiohttp less",
                    figures["aiohttp"] < figures["httpx2"],
                )
            )
    await ours.close()
    return rows


async def _measure_checks() -> Row:
    """Measure the CPU of a request until it reaches the proxy: the reason for one application with all checks.

    Compare Starlette's router with five layers of middleware that do nothing.

    """
    from everthread.gateway.app import GatewayApp  # noqa: PLC0415
    from everthread.gateway.contracts import GatewayLimits  # noqa: PLC0415
    from everthread.gateway.monitoring.metrics import Metrics  # noqa: PLC0415

    class Arrival:
        metrics = Metrics()
        limits = GatewayLimits()

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            pass

    class Layer:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)

    arrival: Any = Arrival()
    paths = ("/healthz", "/readyz", "/metrics", "/v1/compact", "/api", "/{path:path}")
    routed = Starlette(
        routes=[Route(path, arrival) for path in paths],
        middleware=[Middleware(Layer)] * 5,
    )
    headers = [
        (name.encode(), b"127.0.0.1:8484" if name == "host" else b"text") for name in HEADERS
    ]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/messages",
        "raw_path": b"/v1/messages",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
    }
    nothing: Any = None
    apps: tuple[Any, ...] = (GatewayApp(arrival), routed)
    spent: dict[str, list[float]] = {
        "one application": [],
        "a router and five layers": [],
    }
    for _ in range(20):
        for name, app in zip(spent, apps, strict=True):
            started = time.process_time()
            for _ in range(500):
                await app({**scope, "state": {}}, nothing, nothing)
            spent[name].append((time.process_time() - started) / 500)
    ours, theirs = (1e6 * statistics.median(times) for times in spent.values())
    figure = f"{ours:.0f} µs with all checks; Starlette's router and five layers alone {theirs:.0f} µs more"
    return Row("CPU until a request is at the proxy", figure)


def _measure_garbage_collection() -> Row:
    """Measure how long a full garbage collection stops a ready gateway: the reason to freeze its lasting objects."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        frozen, unfrozen = pool.submit(_time_collections).result()
    figure = f"{frozen:.0f} ms; without `gc.freeze` {unfrozen:.0f} ms"
    return Row(
        "CPU of a full garbage collection, which stops all requests",
        figure,
        "less",
        frozen < unfrozen,
    )


def _time_collections() -> tuple[float, float]:
    return asyncio.run(_time_collections_of_a_gateway())


async def _time_collections_of_a_gateway() -> tuple[float, float]:
    from everthread.config import parse_config  # noqa: PLC0415
    from everthread.factory.gateways import open_gateway, preload  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        config = parse_config(
            f"gateway: {{port: 0}}\nstore: {{url: 'sqlite:///{folder}/frozen.db'}}\n"
        )
        async with open_gateway(config):
            await preload()
            frozen = _time_collection()
            gc.unfreeze()
            return frozen, _time_collection()


def _time_collection() -> float:
    """Return the least of three collections, in milliseconds of CPU."""
    times = []
    for _ in range(3):
        started = time.thread_time()
        gc.collect()
        times.append(time.thread_time() - started)
    return 1_000 * min(times)


# A conversation of six windows


async def _long_conversations(effort: Effort) -> list[Row]:
    from everthread.lab.provider import Provider, ServedModel  # noqa: PLC0415

    rows = []
    for way in (OURS, HEADROOM, LITELLM) if effort.peers else (OURS,):
        async with Provider(
            [ServedModel(MODEL, WINDOW, shows="max_model_len", cache_minimum=256)]
        ) as provider:
            with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
                try:
                    server = await asyncio.to_thread(
                        stack.enter_context, _way_to(way, provider.url, folder)
                    )
                except PeerAbsentError as error:
                    rows.append(
                        Row(
                            f"a conversation of six windows through {way}",
                            f"absent: {error}",
                        )
                    )
                    continue
                refused = await _count_refused_turns(server.url)
            taken = [
                record.canonical_usage
                for record in provider.log
                if record.status == 200 and record.usage
            ]
            prompt = sum(usage.prompt_tokens for usage in taken[1:])
            cached = sum(usage.cache_read_tokens for usage in taken[1:]) / max(prompt, 1)
            figure = f"{refused} of {TURNS} refused; {cached:.0%} of what was sent came from the provider's cache"
            goal, met = ("0 refused", refused == 0) if way == OURS else ("", None)
            rows.append(Row(f"a conversation six windows long through {way}", figure, goal, met))
    return rows


def _way_to(way: str, upstream: str, folder: str) -> Any:
    if way == OURS:
        return start_process(serve_gateway, upstream, str(Path(folder) / "long.db"), OURS)
    return start_headroom(upstream) if way == HEADROOM else start_litellm(upstream, MODEL)


async def _count_refused_turns(url: str) -> int:
    """Count the refused turns of a client that marks its last message for the cache, as agents do."""
    history: list[dict[str, Any]] = []
    refused = 0
    words = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "
    async with httpx2.AsyncClient(timeout=120) as client:
        for turn in range(TURNS):
            text = f"Turn {turn}: " + words * (6 * WINDOW // TURNS // 20)
            history.append({"role": "user", "content": text})
            marked = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
            body = {
                "model": MODEL,
                "max_tokens": 100,
                "messages": [*history[:-1], {"role": "user", "content": marked}],
            }
            answer = await client.post(
                f"{url}/v1/messages",
                content=json.dumps(body),
                headers={
                    "content-type": "application/json",
                    "x-api-key": "any",
                    "anthropic-version": "2023-06-01",
                },
            )
            refused += answer.status_code != 200
            said = (
                answer.json()["content"][0]["text"]
                if answer.status_code == 200
                else "It was refused."
            )
            history.append({"role": "assistant", "content": said})
    return refused


# Memory


def _measure_memory() -> Row:
    """Measure the memory that threads keep in a process after their last request: two requests of 10 KB each."""
    what = f"memory at {IDLE_THREADS:,} idle threads of 10 KB"
    with (
        tempfile.TemporaryDirectory() as folder,
        start_process(serve_answer) as direct,
        start_process(serve_gateway, direct.url, str(Path(folder) / "idle.db"), OURS) as server,
    ):
        before, after = asyncio.run(_idle_threads(server))
    if before is None or after is None:
        return Row(what, "not known on this system")
    return Row(
        what,
        f"{before / 2**20:.0f} MB before, {(after - before) / 2**20:.1f} MB more after",
    )


async def _idle_threads(server: Server) -> tuple[int | None, int | None]:
    async with httpx2.AsyncClient(timeout=60) as client:
        for number in range(20):
            await ask(client, server.url, make_history_body(10_000, number, "warm"))
        before = read_memory_bytes(server.pid)
        for thread in range(IDLE_THREADS):
            for number in (1, 2):
                await ask(
                    client,
                    server.url,
                    make_history_body(10_000, number, f"thread {thread}"),
                )
        return before, read_memory_bytes(server.pid)


if __name__ == "__main__":
    quick = "quick" in sys.argv[1:]
    print(format_section("gateway_parts", run(Effort(20, peers=False) if quick else None)))
