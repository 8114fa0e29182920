"""Measure how the gateway grows: with workers on one port, with gateways on one PostgreSQL, with stored threads.

Requests per CPU-second: answered requests by the CPU of all processes of the gateway (supervisor, workers, compaction
processes), so the figure hardly depends on other work on the machine or on the client. Each connection has its own
conversation, which grows by an exchange with each request. "Simulated" is a queue before a database with this many
cores, with the costs that were measured in this run: how many
gateways, each of one core and 70 % busy, it serves before one request in a hundred waits 50 ms for it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import httpx2
import psycopg

from benchmarks.load import describe_load, send_requests, serve_at_once
from benchmarks.load.threads import make_growing_thread
from benchmarks.peers.proxies import Server
from benchmarks.servers import (
    ask,
    list_process_family,
    make_history_body,
    read_cpu_seconds,
    serve_answer,
    start_process,
    start_serve_command,
)
from benchmarks.table import Row
from tests.store.postgres_server import NoServerError, make_server
from tests.store.postgres_server import Server as PostgresServer

CONNECTIONS = 64
REQUESTS = 6
ROUNDS = 3
"""Requests of each connection in a round."""
WORKERS_TIMES = 1.7
"""Required speed of two workers, as a multiple of one, on two idle cores."""
WORKER_BYTES = 20_000
WARM_REQUESTS = 2
WORKER_REQUESTS = 16
"""Requests of each connection. The first may be new to its worker, as after a reconnect."""
SETTLE_SECONDS = 5.0
"""Time for storing and indexing after the first requests."""
GATEWAYS_SHARE = 0.85
THREADS_TIMES = 1.2
GATEWAY_COUNTS = (1, 2, 4)
DATABASE_CORES = (4, 16, 64)
BUSY_SHARE = 0.7
WAIT_SECONDS = 0.05
STORED_THREADS = 1_500
"""Number of other threads in a store."""
_NAMES = itertools.count()


def run() -> list[Row]:
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        direct = stack.enter_context(start_process(serve_answer))
        rows += _measure_workers(folder)
        rows += _measure_stored_threads(folder, direct.url)
        try:
            server = make_server()
        except NoServerError as error:
            return [*rows, Row("PostgreSQL", str(error))]
        stack.callback(server.stop)
        rows += _measure_gateways(folder, direct.url, server)
    return rows


def _config(upstream: str, store: str = "", mode: str = "managed") -> str:
    store_line = f"store: {{url: '{store}'}}\n" if store else ""
    upstreams = f"[{{name: direct, url: '{upstream}', mode: {mode}}}]"
    return f"{store_line}gateway: {{native: {{enabled: false}}, upstreams: {upstreams}}}\n"


def _measure_workers(folder: Path) -> list[Row]:
    """Return the requests a second of one and two workers on SQLite, managed and off, in turns.

    Off shows what the machine allows: its cores also serve the load and the upstream.
    """
    setups = list(itertools.product(("off", "managed"), (1, 2)))
    rates: dict[tuple[str, int], list[float]] = {setup: [] for setup in setups}
    with ExitStack() as stack:
        upstream = stack.enter_context(serve_at_once())
        servers = {
            (mode, count): stack.enter_context(
                start_serve_command(
                    folder / f"{mode}-{count}",
                    _config(upstream.url, mode=mode),
                    "--workers",
                    str(count),
                )
            )
            for mode, count in setups
        }
        for number in range(ROUNDS):
            for setup, server in servers.items():
                rates[setup].append(_worker_rate(server, f"{setup} {number}"))
    rows = [
        Row(
            f"requests a second, {count} worker{'s' if count > 1 else ''} on SQLite, {mode}",
            f"{min(found):,.0f}–{max(found):,.0f} / s",
        )
        for (mode, count), found in rates.items()
    ]
    times = {
        mode: statistics.median(
            double_rate / single_rate
            for single_rate, double_rate in zip(rates[mode, 1], rates[mode, 2], strict=True)
        )
        for mode in ("off", "managed")
    }
    name = f"two workers / one, {CONNECTIONS} connections from {describe_load()}"
    rows.append(Row(f"  {name}, off", f"{times['off']:.2f} ×"))
    rows.append(
        Row(
            f"  {name}, managed",
            f"{times['managed']:.2f} ×",
            f"≥ {WORKERS_TIMES:g} ×",
            times["managed"] >= WORKERS_TIMES,
        )
    )
    return rows


def _worker_rate(server: Server, name: str) -> float:
    """Return the requests a second of known threads, one a connection."""
    threads = {
        connection: make_growing_thread(
            f"{name} {connection}", WORKER_BYTES, WARM_REQUESTS + WORKER_REQUESTS
        )
        for connection in range(CONNECTIONS)
    }
    warm_bodies = {connection: bodies[:WARM_REQUESTS] for connection, bodies in threads.items()}
    send_requests(warm_bodies, [server])
    time.sleep(SETTLE_SECONDS)
    measured_bodies = {connection: bodies[WARM_REQUESTS:] for connection, bodies in threads.items()}
    result = send_requests(measured_bodies, [server])
    return CONNECTIONS * WORKER_REQUESTS / result.seconds


def _measure_stored_threads(folder: Path, upstream: str) -> list[Row]:
    """Measure the cost of a request in an empty store, and beside the threads of others."""
    with start_serve_command(folder / "threads", _config(upstream)) as server:
        _measure_load([server])  # code and tables are loaded once
        rate_before = _measure_load([server])[1]
        asyncio.run(_fill(server))
        rate_after = _measure_load([server])[1]
    ratio = rate_before / rate_after
    figure = f"{1_000 / rate_before:.2f} ms CPU, then {1_000 / rate_after:.2f} ms: {ratio:.2f} ×"
    name = f"a request before and after {STORED_THREADS:,} threads of others were stored"
    return [Row(name, figure, f"≤ {THREADS_TIMES:g} ×", ratio <= THREADS_TIMES)]


def _measure_gateways(folder: Path, upstream: str, server: PostgresServer) -> list[Row]:
    """Measure the CPU of several gateways on one PostgreSQL, and of the database; each count starts empty."""
    rows = []
    first_rate = 0.0
    share = 1.0
    rate_per_cpu = 1.0
    database_ms = 1.0
    postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
    for count in GATEWAY_COUNTS:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE gateways{count}".encode())
        database = server.url(f"gateways{count}")
        with ExitStack() as stack:
            servers = [
                stack.enter_context(
                    start_serve_command(folder / f"{count}-{number}", _config(upstream, database))
                )
                for number in range(count)
            ]
            _measure_load(servers)
            used_before = read_cpu_seconds(*list_process_family(postmaster)) or 0.0
            rates = [_measure_load(servers) for _ in range(2)]
            spent = (read_cpu_seconds(*list_process_family(postmaster)) or 0.0) - used_before
        requests = len(rates) * CONNECTIONS * REQUESTS
        rate_per_cpu = statistics.median(per for _, per in rates)
        first_rate = first_rate or rate_per_cpu
        share = rate_per_cpu / first_rate
        database_ms = 1_000 * spent / max(requests, 1)
        figure = (
            f"{statistics.median(rate for rate, _ in rates):,.0f} requests / s, {rate_per_cpu:,.0f} / CPU-second "
            f"of the gateways; the database {database_ms:.2f} ms CPU a request"
        )
        rows.append(Row(f"{count} gateway{'s' if count > 1 else ''} on one PostgreSQL", figure))
    name = f"requests per CPU-second, {GATEWAY_COUNTS[-1]} gateways against one"
    rows.append(Row(name, f"{share:.2f} ×", f"≥ {GATEWAYS_SHARE:g} ×", share >= GATEWAYS_SHARE))
    for cores in DATABASE_CORES:
        gateway_count = count_gateways_served(rate_per_cpu, database_ms / 1_000, cores)
        name = f"simulated: a database of {cores} cores serves so many gateways"
        rows.append(
            Row(
                name,
                f"{gateway_count:,}: {gateway_count * BUSY_SHARE * rate_per_cpu:,.0f} requests / s",
            )
        )
    return rows


def count_gateways_served(rate: float, service: float, cores: int) -> int:
    """Return how many gateways, each with this rate when fully busy, the database can serve."""
    gateway_count = 0
    step = 1
    while step:  # doubling, then halving back
        if (
            _simulate_wait(BUSY_SHARE * rate * (gateway_count + step), service, cores)
            <= WAIT_SECONDS
        ):
            gateway_count += step
            step *= 2
        else:
            step //= 2
    return gateway_count


def _simulate_wait(arrivals: float, service: float, cores: int, count: int = 20_000) -> float:
    """Simulate a queue before `cores` servers; return the 99th percentile of the waits, always with the same seed."""
    if arrivals * service >= cores:
        return float("inf")
    rng = random.Random(1)  # noqa: S311 - chance, not secrecy
    free_times = [0.0] * cores
    now = 0.0
    waits = []
    for _ in range(count):
        now += rng.expovariate(arrivals)
        start = max(now, heapq.heappop(free_times))
        waits.append(start - now)
        heapq.heappush(free_times, start + rng.expovariate(1 / service))
    return sorted(waits)[int(0.99 * count)]


def _measure_load(servers: Sequence[Server]) -> tuple[float, float]:
    """Return the requests per second, and per CPU-second of the servers."""
    pids = [pid for server in servers for pid in list_process_family(server.pid)]
    seconds_before = read_cpu_seconds(*pids) or 0.0
    seconds = asyncio.run(_ask_all(servers))
    time.sleep(0.5)  # storing and indexing after the answer are included
    spent = (read_cpu_seconds(*pids) or 0.0) - seconds_before
    return CONNECTIONS * REQUESTS / seconds, CONNECTIONS * REQUESTS / max(spent, 0.01)


async def _ask_all(servers: Sequence[Server]) -> float:
    """Return the seconds for all requests of all connections."""

    async def send_conversation(client: httpx2.AsyncClient, url: str) -> None:
        scope = f"conversation {next(_NAMES)}"
        for turn in range(REQUESTS):
            await ask(client, url, make_history_body(4_000, turn, scope))

    async with AsyncExitStack() as stack:
        single_connection = httpx2.Limits(max_connections=1)
        clients = [
            await stack.enter_async_context(
                httpx2.AsyncClient(timeout=300, verify=False, limits=single_connection)
            )
            for _ in range(CONNECTIONS)
        ]
        started_at = time.perf_counter()
        await asyncio.gather(
            *(send_conversation(*pair) for pair in zip(clients, _spread(servers), strict=True))
        )
        return time.perf_counter() - started_at


def _spread(servers: Sequence[Server]) -> Iterator[str]:
    return (servers[number % len(servers)].url for number in range(CONNECTIONS))


async def _fill(server: Server) -> None:
    names = iter(range(STORED_THREADS))

    async def some(client: httpx2.AsyncClient) -> None:
        for name in names:
            await ask(client, server.url, make_history_body(4_000, 1, f"of others {name}"))

    async with httpx2.AsyncClient(timeout=300) as client:
        await asyncio.gather(*(some(client) for _ in range(16)))
