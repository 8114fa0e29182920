"""Measure the CPU of a compaction without a model, against counting the same messages' tokens once, cold.

Every figure is taken in its own process, which has loaded its code and tables with other messages: nothing of the
measured session is cached. "The next compaction": the engine compacted the first half before, as in a conversation, and
now compacts the summary, the kept messages and the second half, all of which it reads anew. `python -m
benchmarks.compress PROBE SESSION` is one such process.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import pstats
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from benchmarks.retained.generated_sessions import generate_session
from benchmarks.retained.recordings import ASIDE, CODING, load_recording, load_thread
from benchmarks.shared import find_shared
from benchmarks.table import Row, make_absent_row
from everthread import ContextCompressor, TokenCounter, compress
from everthread.compaction.engine import Services
from everthread.compaction.summarizers.summarizer import JOURNAL_AUTHOR
from everthread.core.messages import Message
from everthread.core.tokens.budget import Budget
from everthread.factory.compression import find_summarizer
from examples.long_session import Session

MODEL = "gpt-4o"
WINDOW = 200_000
ROUNDS = 15
FIRST_GOAL = 3.0
NEXT_GOAL = 3.0
GROWTH_GOAL = 1.5
SIZES = (100, 1_000, 10_000)
SHIPPED = "the shipped session"
LONG = "a real session of 900 messages"
AGENT_LOGS = "real agent logs, kept aside"


def run() -> list[Row]:
    rows: list[Row] = []
    for name in (LONG, AGENT_LOGS, SHIPPED):
        if name != SHIPPED and find_shared("transcripts") is None:
            rows.append(make_absent_row(name))
        else:
            rows += _measure_ratios(name)
    return [*rows, _measure_growth()]


def _measure_ratios(name: str) -> list[Row]:
    """Return the least of several processes, run in turns, because other load only adds time."""
    samples: dict[str, list[float]] = {probe: [] for probe in ("count", "first", "next")}
    for _ in range(ROUNDS):
        for probe, seconds in samples.items():
            seconds.append(float(_run_probe(probe, name)))
    count, first, following = map(min, samples.values())
    figures = f"{first / count:.1f} × ({1000 * first:.0f} ms against {1000 * count:.0f} ms)"
    return [
        Row(
            f"{name}, never seen before",
            figures,
            f"≤ {FIRST_GOAL:g} ×",
            first <= FIRST_GOAL * count,
        ),
        Row(
            f"{name}, the next compaction after one at half of it",
            f"{following / count:.1f} × ({1000 * following:.0f} ms)",
            f"≤ {NEXT_GOAL:g} ×",
            following <= NEXT_GOAL * count,
        ),
        Row(f"{name}, where the time goes", _run_probe("profile", name)),
    ]


def _measure_growth() -> Row:
    """Measure the CPU per message at 10,000 messages against that at 1,000, in a continued shipped session."""
    costs = {}
    for size in SIZES:
        costs[size] = min(float(_run_probe("first", str(size))) for _ in range(3)) / size
    each = ", ".join(f"{1e6 * cost:.0f} µs at {size:,}" for size, cost in costs.items())
    ratio = costs[SIZES[-1]] / costs[SIZES[-2]]
    return Row(
        "CPU a message from 1,000 to 10,000 messages",
        f"{ratio:.2f} × ({each})",
        f"≤ {GROWTH_GOAL} ×",
        ratio <= GROWTH_GOAL,
    )


def _run_probe(probe: str, session: str) -> str:
    command = [sys.executable, "-m", "benchmarks.compress", probe, session]
    return subprocess.run(  # noqa: S603
        command, check=True, capture_output=True, text=True
    ).stdout.strip()


# --- in the process that is measured ----------------------------------------------------------------------------------


def _messages(session: str) -> list[Message]:
    if session == SHIPPED:
        path = Path(__file__).parents[1] / "examples" / "long_session.json"
        found: list[Message] = json.loads(path.read_text("utf-8"))["messages"]
        return found
    if session == LONG:
        return [message for message in load_recording("coding-long-claude") if message is not None]
    if session == AGENT_LOGS:
        return [
            one.message
            for one in takewhile(lambda one: one.number >= 0, load_thread(CODING, ASIDE))
        ]
    grown = Session()
    number = 0
    while len(grown.messages) < int(session):
        grown.episode(number % 34)
        number += 1
    messages: list[Any] = grown.messages
    return messages[: int(session)]


def _first(messages: list[Message]) -> Any:
    return compress(messages, window=WINDOW, model=MODEL, summarizer="journal", force=True)


def _next(messages: list[Message]) -> Callable[[], Any]:
    counter = TokenCounter(MODEL)
    services = Services(
        find_summarizer("journal", counter),
        counter,
        Budget.for_window(WINDOW),
        time.monotonic,
    )
    engine = ContextCompressor(services)
    loop = asyncio.Runner()  # a conversation that goes on has one
    half = len(messages) // 2
    compaction = loop.run(engine.compress(messages[:half]))
    engine.on_compacted(compaction)
    context = [*compaction.messages, *messages[half:]]
    return lambda: loop.run(engine.compress(context))


def _probe(probe: str, session: str) -> str:
    other = list(islice(generate_session(1), 300))
    if (
        compress(other, window=WINDOW // 8, model=MODEL, summarizer="journal", force=True).author
        != JOURNAL_AUTHOR
    ):
        raise RuntimeError(
            "the compaction before wrote no journal: its code and tables were not loaded"
        )
    TokenCounter(MODEL).request(other)
    messages = _messages(session)
    if probe == "profile":
        profile = cProfile.Profile()
        profile.runcall(_first, messages)
        return _list_busiest_modules(profile)
    work: dict[str, Callable[[], Callable[[], Any]]] = {
        "count": lambda: lambda: TokenCounter(MODEL).request(messages),
        "first": lambda: lambda: _first(messages),
        "next": lambda: _next(messages),
    }
    measured = work[probe]()
    gc.collect()  # garbage of the loading is not the work's
    started = time.process_time()
    measured()
    return str(time.process_time() - started)


def _list_busiest_modules(profile: cProfile.Profile) -> str:
    """Return the modules with the most time of their own, calls into C included."""
    spent: Counter[str] = Counter()
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined] # not in the stub
    for (file, _, _), (_, _, own, _, callers) in stats.items():
        if "everthread" in file:
            spent[_room(file)] += own
        for (caller, _, _), (_, _, within, _) in (
            callers.items() if file == "~" or "everthread" not in file else ()
        ):
            if "everthread" in caller:
                spent[_room(caller)] += within
    total = sum(spent.values())
    return ", ".join(f"{name} {share / total:.0%}" for name, share in spent.most_common(6))


def _room(file: str) -> str:
    return file.rpartition("everthread/")[2].removesuffix(".py")


if __name__ == "__main__":
    sys.stdout.write(_probe(*sys.argv[1:]))
