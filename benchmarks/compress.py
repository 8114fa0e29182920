"""How long a compaction takes without a model, what dominates, and how that grows with the history."""

from __future__ import annotations

import asyncio
import cProfile
import json
import pstats
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.shared import shared
from benchmarks.table import Row, absent, markdown
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import Services
from everthread.compaction.summarizers.extractive import ExtractiveSummarizer
from everthread.core.budget import Budget
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from examples.long_session import Session

PHASES = {
    "reading facts and rules": "reading.py",
    "cutting and pruning": "cutting.py",
    "the extractive summary": "extractive.py",
    "verifying and writing": "writing.py",
}


def run() -> list[Row]:
    rows = []
    real = shared("transcripts", "coding-long-claude.json")
    if real is None:
        rows.append(absent("real session, 900 messages"))
    else:
        messages = json.loads(real.read_text("utf-8"))["messages"]
        rows += _one("real session, 900 messages", messages)
    rows += _one("shipped session", json.loads(Path("examples/long_session.json").read_text("utf-8"))["messages"])
    rows.append(_growth())
    return rows


def _engine(window: int) -> ContextCompressor:
    counter = TokenCounter("gpt-4o")
    return ContextCompressor(
        Services(ExtractiveSummarizer(counter), counter, Budget.for_window(window), time.monotonic)
    )


def _timed(engine: ContextCompressor, messages: list[Message]) -> float:
    started = time.perf_counter()
    asyncio.run(engine.compress(messages))
    return time.perf_counter() - started


def _one(name: str, messages: list[Message]) -> list[Row]:
    """First time: everything is read and counted. Again: as in a conversation that is compacted as it grows."""
    _timed(_engine(200_000), messages[:40])  # load tables and tokenizers
    engine = _engine(200_000)
    first = _timed(engine, messages)
    again = statistics.median(_timed(engine, messages) for _ in range(5))
    profile = cProfile.Profile()
    profile.runcall(_timed, _engine(200_000), messages)
    return [
        Row(f"{name}, never seen before", f"{first * 1000:.0f} ms"),
        Row(f"{name}, known messages", f"{again * 1000:.0f} ms", "well under 100 ms", again < 0.1),
        Row(f"{name}, what dominates", _dominant(profile)),
    ]


def _dominant(profile: cProfile.Profile) -> str:
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined] # not in the stub
    total = max(entry[3] for entry in stats.values())
    found = {}
    for what, file in PHASES.items():
        found[what] = max((entry[3] for key, entry in stats.items() if key[0].endswith(file)), default=0.0)
    return ", ".join(f"{what} {seconds / total:.0%}" for what, seconds in sorted(found.items(), key=lambda e: -e[1]))


def _growth() -> Row:
    """Time a message at 10,000 messages against at 100, each in a fresh engine."""
    session = Session()
    told: list[Any] = session.messages
    number = 0
    while len(session.messages) < 10_000:
        session.episode(number % 34)
        number += 1
    costs = {}
    for size in (100, 1_000, 10_000):
        messages = told[:size]
        costs[size] = min(_timed(_engine(64_000), messages) for _ in range(3)) / size
    each = ", ".join(f"{cost * 1e6:.0f} µs at {size:,}" for size, cost in costs.items())
    ratio = costs[10_000] / costs[1_000]
    return Row("time a message from 1,000 to 10,000 messages", f"{ratio:.2f} × ({each})", "≤ 1.5 ×", ratio <= 1.5)


if __name__ == "__main__":
    print(markdown("compress", run()))
