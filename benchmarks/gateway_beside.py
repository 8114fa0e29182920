"""Measure how long other requests wait while the gateway reads and compacts long histories.

Run this part alone with `python -m benchmarks.gateway_beside`.

A client sends small requests one after the other: alone, beside another client that sends histories of 900 messages
that the gateway has never seen and that need a compaction at once, and beside a program that does nothing but compute,
with the priority of the compactions. The last shows the machine's share of the wait: with two cores, requests wait for
a core beside any other work. Requests and upstream come from programs that do not share the gateway's interpreter. The
three take turns, so that other work on the machine raises all figures.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.load import send_requests, serve_at_once
from benchmarks.load.threads import make_growing_thread
from benchmarks.peers.proxies import Server
from benchmarks.servers import serve_gateway, start_process
from benchmarks.table import Row, format_section
from everthread.thread.engines.worker_processes import COMPACTION_NICENESS

SMALL_MODEL = "claude-haiku-4-5"
"""Its window is small enough for the long histories to need a compaction."""
LONG_BYTES = 700_000
LONG_MESSAGES = 901
SMALL_BYTES = 1_000
SMALL_CALLS = 250
PAUSE_MS = 5
MAX_TIMES = 1.5
START_SECONDS = 3.0
"""Time for the process for compactions to load its code."""


def run(turns: int = 4) -> list[Row]:
    alone: list[float] = []
    beside: list[float] = []
    beside_other: list[float] = []
    longs: list[float] = []
    numbers = itertools.count()
    with _gateway() as server:
        _send_small(server, next(numbers))
        for _ in range(turns):
            alone += _send_small(server, next(numbers))
            with _sending_long(server, numbers, longs):
                beside += _send_small(server, next(numbers))
            with _computing():
                beside_other += _send_small(server, next(numbers))
    before = _share(alone, 99)
    during = _share(beside, 99)
    times = during / before
    return [
        Row(
            "99 of 100 small requests, alone and beside compactions",
            f"{before:.1f} and {during:.1f} ms; medians {statistics.median(alone):.1f} and "
            f"{statistics.median(beside):.1f} ms",
        ),
        Row(
            "  beside / alone",
            f"{times:.1f} ×",
            f"≤ {MAX_TIMES:g} ×",
            times <= MAX_TIMES,
        ),
        Row(
            "  beside a program that only computes / alone",
            f"{_share(beside_other, 99) / before:.1f} ×",
        ),
        Row(
            f"  compactions of {LONG_MESSAGES - 1} messages meanwhile",
            f"{len(longs)}, each answered in {statistics.median(longs):.0f} ms",
        ),
    ]


@contextmanager
def _gateway() -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_at_once() as upstream,
        start_process(
            serve_gateway, upstream.url, str(Path(folder) / "beside.db"), "managed"
        ) as server,
    ):
        time.sleep(START_SECONDS)
        yield server


def _send_small(server: Server, number: int) -> list[float]:
    """Send the calls of a short thread; return how long each took."""
    bodies = make_growing_thread(f"small {number}", SMALL_BYTES, SMALL_CALLS, new_chars=40)
    result = send_requests({0: bodies}, [server], pause_ms=PAUSE_MS)
    return [answer.last_byte for answer in result.answers[0]]


@contextmanager
def _sending_long(server: Server, numbers: Iterator[int], longs: list[float]) -> Iterator[None]:
    """Send long histories of new threads, one after the other, until the block ends."""
    ended = threading.Event()
    made = [_make_long(next(numbers)) for _ in range(12)]

    def send() -> None:
        for body in itertools.takewhile(_until(ended), made):
            [[answer]] = send_requests({0: [body]}, [server]).answers
            longs.append(answer.last_byte)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        ended.set()
        sending.join()


@contextmanager
def _computing() -> Iterator[None]:
    """Let a process compute with the priority of the processes for compactions until the block ends."""
    program = f"import os\nos.nice({COMPACTION_NICENESS})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program]) as started:  # noqa: S603 - our own program
        try:
            yield
        finally:
            started.terminate()


def _until(ended: threading.Event) -> Callable[[bytes], bool]:
    return lambda _: not ended.is_set()


def _make_long(number: int) -> bytes:
    [body] = make_growing_thread(
        f"long {number}", LONG_BYTES, 1, messages=LONG_MESSAGES, model=SMALL_MODEL
    )
    return body


def _share(times: list[float], share: int) -> float:
    return statistics.quantiles(times, n=100)[share - 1]


if __name__ == "__main__":
    sys.stdout.write(format_section("gateway_beside", run()))
