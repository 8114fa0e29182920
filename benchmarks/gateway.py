"""Measure the time that the gateway adds to an agent's requests, compared with direct sending and other proxies.

`python -m benchmarks.gateway quick`: fewer rounds, without the other proxies.

Each request extends the one before by two messages, has UTF-8 text, and moves its cache marks
(`benchmarks/load/threads.py`). The upstream answers immediately. Requests and upstream come from programs that do not
share the gateway's interpreter; the first row says which. All ways take turns in one run; "range" is that of the
medians of the rounds. "CPU" is the time of all processes of a way for each request, until they were quiet again with an
empty index: it hardly depends on other work on the machine. The model has a window of a million tokens and the
threshold is raised to 90 % of it, so that a megabyte is far below the threshold, like 100 KB with the defaults. The
rows about compactions come from a gateway with the defaults (`benchmarks/gateway_beside.py`).
"""

from __future__ import annotations

import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import gateway_beside
from benchmarks.load import LoadResult, describe_load, send_requests, serve_at_once
from benchmarks.load.threads import MODEL, make_growing_thread
from benchmarks.peers import PeerAbsentError
from benchmarks.peers.proxies import Server, start_headroom, start_litellm
from benchmarks.servers import (
    list_process_family,
    read_cpu_seconds,
    serve_gateway,
    start_process,
)
from benchmarks.table import Row, format_section

OFF = "off"
MANAGED = "managed"
LITELLM = "LiteLLM"
HEADROOM = "Headroom"
DIRECT = "directly"
SIZES = {"100 KB": 100_000, "1 MB": 1_000_000}
MAX_ADDED_OVER_OFF_MS = {"100 KB": 0.5, "1 MB": 1.5}
MAX_CPU_TIMES_OFF = 3.0
MIN_RATE_SHARE = 0.5
MAX_GROWTH = 1.3
CONNECTIONS = 64
LENGTHS = (11, 9_001)
"""Messages in the same megabyte."""
WARM_CALLS = 3
"""Number of a thread's first calls, which are not counted because they are new or open connections."""
PAUSE_MS = 40
"""Pause between two requests, so that work after an answer is not measured with the next way."""
QUIET_SECONDS = 1.0
MAX_QUIET_SHARE = 0.03
"""A server is quiet once its processes use less of a core than this."""
MAX_SETTLE_SECONDS = 600
MORE_CONFIG = "compression: {threshold: 0.9, threshold_tokens: null}\n"


@dataclass(frozen=True)
class Effort:
    """The extent of a measurement."""

    rounds: int = 5
    calls: int = 12
    """Counted calls of a thread in one round."""
    has_peers: bool = True


@dataclass(frozen=True)
class Ways:
    """The upstream and the servers in front of it."""

    direct: Server
    servers: Mapping[str, Server]
    stores: Mapping[str, Path]
    """The database of each way that has one."""

    @property
    def all(self) -> dict[str, Server]:
        return {DIRECT: self.direct, **self.servers}


def run(effort: Effort | None = None) -> list[Row]:
    chosen = effort or Effort()
    rows = [Row("requests and upstream", describe_load()), _load_row("begin")]
    with ExitStack() as stack:
        ways, absent = _start_ways(stack, has_peers=chosen.has_peers)
        rows += absent
        _warm_up(ways)
        for name, size in SIZES.items():
            for streams in (False, True):
                rows += _latency_rows(ways, name, size, chosen, streams=streams)
        rows += _throughput_rows(ways, chosen)
        rows += _growth_rows(ways, chosen)
    rows += gateway_beside.run(turns=max(2, chosen.rounds))
    rows.append(_load_row("end"))
    return rows


def _load_row(moment: str) -> Row:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    figure = f"{load:.1f} on {os.cpu_count()} cores"
    return Row(f"load of the machine at the {moment}", figure)


def _start_ways(stack: ExitStack, *, has_peers: bool) -> tuple[Ways, list[Row]]:
    """Start every way; return a row for each that is not available here."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    direct = stack.enter_context(serve_at_once())
    servers: dict[str, Server] = {}
    stores = {mode: folder / f"{mode}.db" for mode in (OFF, MANAGED)}
    for mode, store in stores.items():
        gateway = start_process(serve_gateway, direct.url, str(store), mode, MORE_CONFIG)
        servers[mode] = stack.enter_context(gateway)
    absent = []
    peers: dict[str, Callable[[str], Any]] = {
        LITELLM: lambda url: start_litellm(url, MODEL),
        HEADROOM: start_headroom,
    }
    for name, start in peers.items() if has_peers else ():
        try:
            servers[name] = stack.enter_context(start(direct.url))
        except PeerAbsentError as error:
            absent.append(Row(f"{name}'s proxy", f"absent: {error}"))
    return Ways(direct, servers, stores), absent


def _warm_up(ways: Ways) -> None:
    """Send some requests, so that no start of a process or first use of a tokenizer is measured."""
    bodies = make_growing_thread("warm-up", 100_000, WARM_CALLS)
    send_requests({0: bodies}, list(ways.servers.values()), pause_ms=PAUSE_MS)
    for way, server in ways.servers.items():
        _wait_until_quiet(server, ways.stores.get(way))


# One request at a time


def _latency_rows(ways: Ways, name: str, size: int, effort: Effort, *, streams: bool) -> list[Row]:
    """Return rows of the time that each way adds to the median, until a stream's first byte or an answer's last."""
    servers = ways.all
    added: dict[str, list[float]] = {way: [] for way in ways.servers}
    for number in range(effort.rounds):
        thread = f"{name} {number} {streams}"
        bodies = make_growing_thread(thread, size, WARM_CALLS + effort.calls, streams=streams)
        result = send_requests({0: bodies}, list(servers.values()), pause_ms=PAUSE_MS)
        medians = dict(zip(servers, _medians(result, streams=streams), strict=True))
        for way, found in added.items():
            found.append(medians[way] - medians[DIRECT])
    what = "first byte of a stream" if streams else "answer"
    rows = [
        Row(f"added to the {what}, {name}, {way}", _range(found, "ms"))
        for way, found in added.items()
    ]
    more = statistics.median(
        ours - off for ours, off in zip(added[MANAGED], added[OFF], strict=True)
    )
    most = MAX_ADDED_OVER_OFF_MS[name]
    rows.append(
        Row(
            f"  managed above off, {what}, {name}",
            f"{more:.2f} ms",
            f"≤ {most:g} ms",
            more <= most,
        )
    )
    return rows + _peer_rows(added, f"{what}, {name}")


def _medians(result: LoadResult, *, streams: bool) -> Iterator[float]:
    for answers in result.answers:
        counted = answers[WARM_CALLS:]
        yield statistics.median(
            answer.first_byte if streams else answer.last_byte for answer in counted
        )


def _peer_rows(added: Mapping[str, Sequence[float]], what: str) -> list[Row]:
    """Return rows that compare the time added by other proxies with ours."""
    ours = statistics.median(added[MANAGED])
    return [
        Row(
            f"  {peer} adds, {what}",
            f"{statistics.median(added[peer]) / max(ours, 0.001):.1f} × managed",
        )
        for peer in (LITELLM, HEADROOM)
        if peer in added
    ]


def _range(found: Sequence[float], unit: str) -> str:
    return f"{min(found):.2f}–{max(found):.2f} {unit}"


# Many at once


def _throughput_rows(ways: Ways, effort: Effort) -> list[Row]:
    """Return rows of requests per second and CPU per request, over many connections with a thread each."""
    rates: dict[str, list[float]] = {way: [] for way in ways.servers}
    cpu: dict[str, list[float]] = {way: [] for way in ways.servers}
    for number in range(max(2, effort.rounds // 2)):
        for way, server in ways.servers.items():
            calls = 3 if way in (LITELLM, HEADROOM) else effort.calls // 2
            threads = {
                connection: make_growing_thread(
                    f"{number} {connection}", 100_000, WARM_CALLS + calls
                )
                for connection in range(CONNECTIONS)
            }
            warm = {one: bodies[:WARM_CALLS] for one, bodies in threads.items()}
            send_requests(warm, [server])
            counted = {one: bodies[WARM_CALLS:] for one, bodies in threads.items()}
            with measured_cpu(server, ways.stores.get(way)) as spent:
                result = send_requests(counted, [server])
            rates[way].append(CONNECTIONS * calls / result.seconds)
            cpu[way].append(1_000 * spent[0] / (CONNECTIONS * calls))
    rows = []
    for way in ways.servers:
        of_way = f"{CONNECTIONS} connections, 100 KB, {way}"
        rows.append(Row(f"requests a second, {of_way}", _range(rates[way], "/ s")))
        rows.append(Row(f"CPU of a request, {of_way}", _range(cpu[way], "ms")))
    share = _ratio(rates[MANAGED], rates[OFF])
    times = _ratio(cpu[MANAGED], cpu[OFF])
    return [
        *rows,
        Row(
            "  requests a second, managed / off",
            f"{share:.2f} ×",
            f"≥ {MIN_RATE_SHARE:g} ×",
            share >= MIN_RATE_SHARE,
        ),
        Row(
            "  CPU of a request, managed / off",
            f"{times:.1f} ×",
            f"≤ {MAX_CPU_TIMES_OFF:g} ×",
            times <= MAX_CPU_TIMES_OFF,
        ),
    ]


def _ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


@contextmanager
def measured_cpu(server: Server, store: Path | None) -> Iterator[list[float]]:
    """Put the CPU seconds of a server and its children into the list, once they are quiet and the index is empty."""
    _wait_until_quiet(server, store)
    before = _cpu_of(server)
    spent: list[float] = []
    yield spent
    _wait_until_quiet(server, store)
    spent.append(_cpu_of(server) - before)


def _wait_until_quiet(server: Server, store: Path | None) -> None:
    until = time.monotonic() + MAX_SETTLE_SECONDS
    used = _cpu_of(server)
    while time.monotonic() < until:
        time.sleep(QUIET_SECONDS)
        before = used
        used = _cpu_of(server)
        is_quiet = used - before <= MAX_QUIET_SHARE * QUIET_SECONDS
        if is_quiet and (store is None or not _count_unindexed(store)):
            return
    raise RuntimeError(f"a server still worked after {MAX_SETTLE_SECONDS} seconds")


def _count_unindexed(store: Path) -> int:
    """Count the messages that a store has not indexed yet."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as database:
        [count] = database.execute("SELECT count(*) FROM unindexed").fetchone()
    return int(count)


def _cpu_of(server: Server) -> float:
    return read_cpu_seconds(*list_process_family(server.pid)) or 0.0


# Short and long threads


def _growth_rows(ways: Ways, effort: Effort) -> list[Row]:
    """Return rows of the CPU and time of a request whose megabyte is in few messages, and in many."""
    server = ways.servers[MANAGED]
    cpu: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for number in range(max(2, effort.rounds // 2)):
        for length in LENGTHS:
            bodies = make_growing_thread(
                f"{number} {length}",
                1_000_000,
                WARM_CALLS + effort.calls,
                messages=length,
            )
            send_requests({0: bodies[:WARM_CALLS]}, [server], pause_ms=PAUSE_MS)
            with measured_cpu(server, ways.stores[MANAGED]) as spent:
                send_requests({0: bodies[WARM_CALLS:]}, [server], pause_ms=PAUSE_MS)
            cpu[length].append(1_000 * spent[0] / effort.calls)
    rows = [
        Row(
            f"CPU of a managed request, 1 MB in {length:,} messages",
            _range(found, "ms"),
        )
        for length, found in cpu.items()
    ]
    few, many = LENGTHS
    growth = _ratio(cpu[many], cpu[few])
    return [
        *rows,
        Row(
            "  many messages / few",
            f"{growth:.2f} ×",
            f"≤ {MAX_GROWTH:g} ×",
            growth <= MAX_GROWTH,
        ),
    ]


if __name__ == "__main__":
    quick = "quick" in sys.argv[1:]
    effort = Effort(rounds=2, calls=8, has_peers=False) if quick else None
    sys.stdout.write(format_section("gateway", run(effort)))
