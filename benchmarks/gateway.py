"""What the gateway adds to a request: the same ones to an upstream directly, through it and through other proxies.

`python -m benchmarks.gateway quick`: fewer rounds, without the others.
The upstream answers at once, from a process of its own, so that what is measured is the way and nothing else. The
thread is known: each request extends the one before, as an agent's do. All ways are taken in turns in the same run, so
a machine that is busy with something else is so for all of them; "CPU" is what the process of that way used for a
request, all of its threads, and hardly depends on who else works.
The long conversation has six windows, before a simulated provider that refuses what does not fit.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from benchmarks.peers import PeerAbsentError
from benchmarks.peers.proxies import Server, headroom_proxy, litellm_proxy
from benchmarks.servers import (
    ANSWER,
    MODEL,
    ask,
    cpu_seconds,
    history_body,
    process,
    resident,
    serve_answer,
    serve_gateway,
)
from benchmarks.table import Row, markdown

SIZES = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000}
CONNECTIONS = (1, 16, 64)
IDLE_THREADS = 500
OURS, UNMANAGED, LITELLM, HEADROOM = "managed", "off", "LiteLLM", "Headroom"
ADDED_MS = {"100 KB": 2.0, "1 MB": 5.0}
LITELLM_TIMES, THROUGHPUT_SHARE, OTHERS_TIMES = 8.0, 0.70, 2.0
WINDOW, TURNS = 8_000, 70
HEADERS = ("host", "user-agent", "accept", "accept-encoding", "content-type", "content-length", "x-api-key",
           "anthropic-version", "anthropic-beta", "x-app")  # fmt: skip
SMALL_MODEL = "claude-haiku-4-5"
"""Its window is small enough for a history that is made here to need a compaction."""


@dataclass(frozen=True)
class Effort:
    """How long it is measured."""

    rounds: int = 60
    seconds: float = 2.0
    peers: bool = True


def run(effort: Effort | None = None) -> list[Row]:
    chosen = effort or Effort()
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct = stack.enter_context(process(serve_answer))
        ways: dict[str, Server] = {}
        for mode in (UNMANAGED, OURS):
            ways[mode] = stack.enter_context(process(serve_gateway, direct.url, str(folder / f"{mode}.db"), mode))
        others: dict[str, Any] = {}
        if chosen.peers:
            others = {LITELLM: lambda url: litellm_proxy(url, MODEL), HEADROOM: headroom_proxy}
        for name, start in others.items():
            try:
                ways[name] = stack.enter_context(start(direct.url))
            except PeerAbsentError as error:
                rows.append(Row(f"{name}'s proxy", f"absent: {error}"))
        rows += asyncio.run(_clients(direct, chosen))
        rows.append(asyncio.run(_entrance()))
        for name, size in SIZES.items():
            rows += asyncio.run(_latencies(direct, ways, name, size, chosen))
        rows += asyncio.run(_throughput(direct, ways, chosen))
    rows += _compactions(chosen)
    rows += asyncio.run(_long_conversations(chosen))
    rows.append(_memory())
    return rows


# What an HTTP client costs


async def _clients(direct: Server, effort: Effort) -> list[Row]:
    """What a request costs this process with each HTTP client, in CPU: why the gateway's is aiohttp."""
    from everthread.gateway.base import Limits  # noqa: PLC0415
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
                for client, asking in (("aiohttp", ask_ours), ("httpx2", ask_httpx2)):
                    started = time.process_time()
                    assert await asking(b"x" * size) == ANSWER
                    spent[client].append(time.process_time() - started)
            figures = {client: 1_000 * statistics.median(times) for client, times in spent.items()}
            figure = ", ".join(f"{client} {figure:.2f} ms" for client, figure in figures.items())
            rows.append(
                Row(f"CPU of a client for {name}", figure, "aiohttp less", figures["aiohttp"] < figures["httpx2"])
            )
    await ours.close()
    return rows


async def _entrance() -> Row:
    """What a request costs until it is at the proxy: why the checks are one application.

    Beside it Starlette's router with five layers of middleware that only pass on, which would come on top.
    """
    from everthread.gateway.app import GatewayApp  # noqa: PLC0415
    from everthread.gateway.base import Limits  # noqa: PLC0415
    from everthread.gateway.observability import Metrics  # noqa: PLC0415

    class Arrival:
        metrics, limits = Metrics(), Limits()

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            pass

    class Layer:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)

    arrival: Any = Arrival()
    paths = ("/healthz", "/readyz", "/metrics", "/v1/compact", "/api", "/{path:path}")
    routed = Starlette(routes=[Route(path, arrival) for path in paths], middleware=[Middleware(Layer)] * 5)
    headers = [(name.encode(), b"127.0.0.1:8484" if name == "host" else b"text") for name in HEADERS]
    scope = {
        "type": "http", "method": "POST", "path": "/v1/messages", "raw_path": b"/v1/messages", "query_string": b"",
        "root_path": "", "headers": headers, "client": ("127.0.0.1", 1),
    }  # fmt: skip
    nothing: Any = None
    apps: tuple[Any, ...] = (GatewayApp(arrival), routed)
    spent: dict[str, list[float]] = {"one application": [], "a router and five layers": []}
    for _ in range(20):
        for name, app in zip(spent, apps, strict=True):
            started = time.process_time()
            for _ in range(500):
                await app({**scope, "state": {}}, nothing, nothing)
            spent[name].append((time.process_time() - started) / 500)
    ours, theirs = (1e6 * statistics.median(times) for times in spent.values())
    figure = f"{ours:.0f} µs with all checks; Starlette's router and five layers alone {theirs:.0f} µs more"
    return Row("CPU until a request is at the proxy", figure)


# What a request costs


async def _latencies(direct: Server, ways: Mapping[str, Server], name: str, size: int, effort: Effort) -> list[Row]:
    times: dict[str, list[float]] = {way: [] for way in ("", *ways)}
    used: dict[str, float] = {}
    rounds = max(20, effort.rounds // 2) if size > 500_000 else effort.rounds
    async with httpx2.AsyncClient(timeout=120) as client:
        for number in range(-5, rounds):  # the first ones are not counted: caches, connections
            body = history_body(size, number + 5, name)
            if number == 0:
                used = {way: cpu_seconds(server.pid) or 0.0 for way, server in ways.items()}
            for way, found in times.items():
                server = ways[way] if way else direct
                started = time.perf_counter()
                await ask(client, server.url, body, exact=way in ("", UNMANAGED, OURS))
                if number >= 0:
                    found.append(time.perf_counter() - started)
    added = {way: 1_000 * (statistics.median(times[way]) - statistics.median(times[""])) for way in ways}
    rows = []
    for way, figure in added.items():
        most = ADDED_MS.get(name) if way == OURS else None
        spent = 1_000 * ((cpu_seconds(ways[way].pid) or 0.0) - used[way]) / rounds
        rows.append(
            Row(
                f"added with a history of {name}, {way}, median",
                f"{figure:.2f} ms; CPU {spent:.2f} ms",
                f"≤ {most:g} ms" if most else "",
                figure <= most if most else None,
            )
        )
    slowest = ", ".join(f"{way or 'directly'} {1_000 * _share(found, 99):.1f} ms" for way, found in times.items())
    rows.append(Row(f"99 of 100 requests of {name} answered within", slowest))
    for way, least in ((LITELLM, LITELLM_TIMES), (HEADROOM, 1.0)):
        if way in added:
            times_more = added[way] / max(added[OURS], 0.001)
            is_goal = name == "100 KB" or way == HEADROOM
            goal = f"≥ {least:g}" if is_goal and name != "1 KB" else ""
            what = f"{way} adds so many times as much with {name}, median"
            rows.append(Row(what, f"{times_more:.1f}", goal, times_more >= least if goal else None))
    return rows


def _share(times: list[float], share: int) -> float:
    return statistics.quantiles(times, n=100)[share - 1]


async def _throughput(direct: Server, ways: Mapping[str, Server], effort: Effort) -> list[Row]:
    rows = []
    for number in CONNECTIONS:
        rates: dict[str, list[float]] = {"directly": [], **{way: [] for way in ways}}
        for _ in range(3):
            for way, found in rates.items():
                server = direct if way == "directly" else ways[way]
                found.append(await _rate(server.url, number, effort.seconds / 3, exact=way not in (LITELLM, HEADROOM)))
        middle = {way: statistics.median(found) for way, found in rates.items()}
        share = statistics.median(ours / off for ours, off in zip(rates[OURS], rates[UNMANAGED], strict=True))
        figure = ", ".join(f"{way} {rate:,.0f} / s" for way, rate in middle.items())
        goal = f"≥ {THROUGHPUT_SHARE:.0%}" if number == max(CONNECTIONS) else ""
        rows.append(Row(f"requests of 1 KB over {number} connections", figure))
        rows.append(
            Row(f"  of them managed / off, {number} connections", f"{share:.0%}", goal,
                share >= THROUGHPUT_SHARE if goal else None)
        )  # fmt: skip
    return rows


async def _rate(url: str, connections: int, seconds: float, *, exact: bool) -> float:
    """Answers a second. One client process asks: with many connections its own work is part of the figure."""
    body = history_body(1_000, 1, "rate")

    async def one(client: httpx2.AsyncClient, ends: float) -> int:
        count = 0
        while time.perf_counter() < ends:
            await ask(client, url, body, exact=exact)
            count += 1
        return count

    async with httpx2.AsyncClient(timeout=60, limits=httpx2.Limits(max_connections=connections)) as client:
        await ask(client, url, body, exact=exact)
        begun = time.perf_counter()
        counts = await asyncio.gather(*(one(client, begun + seconds) for _ in range(connections)))
        return sum(counts) / (time.perf_counter() - begun)


# While a compaction is under way


def _compactions(effort: Effort) -> list[Row]:
    with (
        tempfile.TemporaryDirectory() as folder,
        process(serve_answer) as direct,
        process(serve_gateway, direct.url, str(Path(folder) / "busy.db"), OURS) as server,
    ):
        return asyncio.run(_beside_compactions(server, effort))


async def _beside_compactions(server: Server, effort: Effort) -> list[Row]:
    waits: dict[str, float] = {}
    number = 0
    scopes = ["first", "second", "third"]
    histories = {scope: [history_body(700_000, turn, scope, SMALL_MODEL) for turn in range(20)] for scope in scopes}
    """Made before anything is measured: one process asks for all, and would wait for itself."""

    async def small(client: httpx2.AsyncClient, until: Callable[[], bool]) -> list[float]:
        nonlocal number
        times = []
        while not until():
            number += 1
            started = time.perf_counter()
            await ask(client, server.url, history_body(1_000, number, "beside"))
            times.append(time.perf_counter() - started)
            await asyncio.sleep(0.005)
        return times

    async def large(client: httpx2.AsyncClient, scope: str) -> None:
        started = time.perf_counter()
        for body in histories[scope]:
            answer = await ask(client, server.url, body, exact=False)
            if int(answer.headers.get("x-everthread-compactions", "0")):
                break
        waits[scope] = time.perf_counter() - started

    async with httpx2.AsyncClient(timeout=120) as client:
        await asyncio.sleep(2)  # the process for compactions is started ahead
        await small(client, _after(0.5))
        quiet = await small(client, _after(max(2.0, effort.seconds)))
        work = asyncio.create_task(_each(large, client, scopes))
        busy = await small(client, work.done)
        await work
    before, during = _share(quiet, 99), _share(busy, 99)
    ratio = during / before
    return [
        Row(
            f"99 of 100 other requests while histories of 700 KB are compacted ({len(busy)}), and without",
            f"{1_000 * during:.1f} ms, {1_000 * before:.1f} ms: {ratio:.1f} ×", f"≤ {OTHERS_TIMES:g} ×",
            ratio <= OTHERS_TIMES,
        ),
        Row("until the first history is compacted, and the third", f"{waits['first']:.2f} s, {waits['third']:.2f} s"),
    ]  # fmt: skip


async def _each(work: Callable[[httpx2.AsyncClient, str], Awaitable[None]], client: Any, scopes: list[str]) -> None:
    for scope in scopes:
        await work(client, scope)


def _after(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end


# A conversation of six windows


async def _long_conversations(effort: Effort) -> list[Row]:
    from everthread.lab.provider import Provider, ServedModel  # noqa: PLC0415

    rows = []
    for way in (OURS, HEADROOM, LITELLM) if effort.peers else (OURS,):
        async with Provider([ServedModel(MODEL, WINDOW, shows="max_model_len", cache_minimum=256)]) as provider:
            with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
                try:
                    server = await asyncio.to_thread(stack.enter_context, _way_to(way, provider.url, folder))
                except PeerAbsentError as error:
                    rows.append(Row(f"a conversation of six windows through {way}", f"absent: {error}"))
                    continue
                refused = await _talk(server.url)
            taken = [record.canonical_usage for record in provider.log if record.status == 200 and record.usage]
            prompt = sum(usage.prompt_tokens for usage in taken[1:])
            cached = sum(usage.cache_read_tokens for usage in taken[1:]) / max(prompt, 1)
            figure = f"{refused} of {TURNS} refused; {cached:.0%} of what was sent came from the provider's cache"
            goal, met = ("0 refused", refused == 0) if way == OURS else ("", None)
            rows.append(Row(f"a conversation six windows long through {way}", figure, goal, met))
    return rows


def _way_to(way: str, upstream: str, folder: str) -> Any:
    if way == OURS:
        return process(serve_gateway, upstream, str(Path(folder) / "long.db"), OURS)
    return headroom_proxy(upstream) if way == HEADROOM else litellm_proxy(upstream, MODEL)


async def _talk(url: str) -> int:
    """How many turns of a client were refused that marks its last message, as agents do."""
    history: list[dict[str, Any]] = []
    refused = 0
    words = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "
    async with httpx2.AsyncClient(timeout=120) as client:
        for turn in range(TURNS):
            text = f"Turn {turn}: " + words * (6 * WINDOW // TURNS // 20)
            history.append({"role": "user", "content": text})
            marked = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
            body = {
                "model": MODEL, "max_tokens": 100, "messages": [*history[:-1], {"role": "user", "content": marked}],
            }  # fmt: skip
            answer = await client.post(
                f"{url}/v1/messages", content=json.dumps(body), headers={
                    "content-type": "application/json", "x-api-key": "any", "anthropic-version": "2023-06-01",
                },
            )  # fmt: skip
            refused += answer.status_code != 200
            said = answer.json()["content"][0]["text"] if answer.status_code == 200 else "It was refused."
            history.append({"role": "assistant", "content": said})
    return refused


# Memory


def _memory() -> Row:
    """What a process holds of threads nobody continues: two requests of 10 KB each."""
    what = f"memory at {IDLE_THREADS:,} idle threads of 10 KB"
    with (
        tempfile.TemporaryDirectory() as folder,
        process(serve_answer) as direct,
        process(serve_gateway, direct.url, str(Path(folder) / "idle.db"), OURS) as server,
    ):
        before, after = asyncio.run(_idle_threads(server))
    if before is None or after is None:
        return Row(what, "not known on this system")
    return Row(what, f"{before / 2**20:.0f} MB before, {(after - before) / 2**20:.1f} MB more after")


async def _idle_threads(server: Server) -> tuple[int | None, int | None]:
    async with httpx2.AsyncClient(timeout=60) as client:
        for number in range(20):
            await ask(client, server.url, history_body(10_000, number, "warm"))
        before = resident(server.pid)
        for thread in range(IDLE_THREADS):
            for number in (1, 2):
                await ask(client, server.url, history_body(10_000, number, f"thread {thread}"))
        return before, resident(server.pid)


if __name__ == "__main__":
    quick = "quick" in sys.argv[1:]
    print(markdown("gateway", run(Effort(20, 1.0, peers=False) if quick else None)))
