"""Dollars with the planner, against a fixed threshold, caching alone, and somebody who knows the future.

The conversations are played through `Conversation` and the simulator's cache rules; summaries are extracts, so a
compaction costs what it does to the cache. The real transcript has its pauses from the recorded cache misses, the
generated ones from a seed: turns of a few calls, and now and then a pause that outlives the cache.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from benchmarks.shared import shared
from benchmarks.table import Row, absent
from everthread.conversation.options import SessionOptions
from everthread.core.caching import CACHE_SECONDS
from everthread.core.messages import FunctionCall, Message
from everthread.lab.importers.log import Log
from everthread.lab.importers.reader import read_log
from everthread.lab.replay import Replay, replay

MODEL, WINDOW = "claude-sonnet-4-5", 200_000
THRESHOLD, LIMIT = 0.5, 0.85
ROUNDS = 3
"""What a compaction leaves depends on when it is made, and is learnt from the plans that were played before."""
READ, WRITE = 0.3, 3.75
"""Dollars for a million tokens of the model's cache: what the one who knows the future reckons with."""


def run() -> list[Row]:
    rows: list[Row] = []
    path = shared("transcripts", "coding-long-claude.json")
    if path is None:
        rows.append(absent("the long transcript"))
    else:
        rows += _compared("long transcript", read_log(str(path)), None, goal=True)
    for pauses in (0.0, 0.3):
        log, times = _generated(pauses)
        told = f"generated, {pauses:.0%} of the turns after a long pause"
        rows += _compared(told, log, times, goal=False)
    return rows


def _compared(name: str, log: Log | Sequence[Message], times: Sequence[float] | None, *, goal: bool) -> list[Row]:
    def played(*, economics: bool = False, threshold: float = THRESHOLD, compact: Sequence[int] = ()) -> Replay:
        options = SessionOptions(background=False, economics=economics, threshold=threshold)
        return replay(log, model=MODEL, window=WINDOW, options=options, times=times, compact=compact, compared=False)

    fixed, planned, alone = played(), played(economics=True), played(threshold=1.0)
    known = [fixed, planned]
    for _ in range(ROUNDS):
        known.append(played(threshold=1.0, compact=_oracle(alone, _left(known))))
    foreseen = min(known, key=_cost)
    base = _cost(fixed)
    spared = 1 - float(_cost(planned) / base)
    over = max((call.use.prompt for call in planned.ours.calls), default=0) / WINDOW
    rows = [
        Row(f"{name}: fixed threshold of 50 %", _told(fixed, base)),
        Row(f"{name}: caching without compaction", _told(alone, base)),
        Row(f"{name}: the cheapest plan found with the future known", _told(foreseen, base)),
    ]
    wanted = ("≥ 25 % below the fixed threshold", spared >= 0.25) if goal else ("", None)
    rows.append(Row(f"{name}: planner", _told(planned, base), *wanted))
    rows.append(Row(f"{name}: fullest prompt with the planner", f"{over:.0%} of the window", "≤ 85 %", over <= LIMIT))
    return rows


def _told(found: Replay, base: Decimal) -> str:
    cost = _cost(found)
    return f"${cost:.2f}, {float(cost / base) - 1:+.0%}, {len(found.compactions)} compactions"


def _cost(found: Replay) -> Decimal:
    cost = found.ours.cost
    if cost is None:
        raise AssertionError(f"{MODEL} has prices")
    return cost


def _left(played: Sequence[Replay]) -> Callable[[int], float]:
    """From a prompt's size to what a compaction leaves of it: a line through what was seen."""
    pairs = [(made.tokens_before, made.tokens_after) for found in played for made in found.compactions]
    if len({before for before, _ in pairs}) < 2:
        return float
    slope, offset = statistics.linear_regression(*zip(*pairs, strict=True))
    return lambda size: min(float(size), max(slope * size + offset, 1.0))


@dataclass(frozen=True, slots=True)
class _Step:
    """A call: what came with it, and whether the cache had forgotten the rest."""

    grown: int
    cold: bool


def _oracle(alone: Replay, left: Callable[[int], float]) -> list[int]:
    """The calls to compact before, with every later call known: the cheapest path through them.

    It may compact whenever it likes, so it is a bound, not a rule that could be followed.
    """
    steps, sizes, before, at = [], [0], 0, float("-inf")
    for call in alone.ours.calls:
        steps.append(_Step(max(0, call.use.prompt - before), call.at - at >= CACHE_SECONDS["5m"]))
        before, at = call.use.prompt, call.at
        sizes.append(before)
    count = len(steps)
    best: list[float] = [0.0] * (count + 1)
    choice = [count] * (count + 1)
    for start in range(count - 1, -1, -1):
        best[start] = float("inf")
        size = left(min(sizes[start + 1], WINDOW)) if start else 0.0
        spent = size * WRITE
        for end in range(start, count):
            step = steps[end]
            if end > start or not start:
                spent += (size + step.grown) * WRITE if step.cold else size * READ + step.grown * WRITE
                size += step.grown
            if size > LIMIT * WINDOW:
                break
            if spent + best[end + 1] < best[start]:
                best[start], choice[start] = spent + best[end + 1], end + 1
    points, start = [], choice[0]
    while start < count:
        points.append(start)
        start = choice[start]
    return points


def _generated(pauses: float, turns: int = 70) -> tuple[list[Message], list[float]]:
    """A session with tools of about the same shape as the long one, and when each of its calls is made."""
    dice = random.Random(f"economics {pauses}")  # noqa: S311 - reproducible, not secret
    messages: list[Message] = []
    times: list[float] = []
    now = 0.0
    for turn in range(turns):
        now += dice.uniform(400, 4_000) if dice.random() < pauses else dice.uniform(20, 200)
        messages.append(
            {"role": "user", "content": f"Task {turn}: repair module_{turn}.py and tell me what was wrong."}
        )
        for number in range(dice.randint(1, 7)):
            times.append(now)
            now += dice.uniform(5, 40)
            called = f"call_{turn}_{number}"
            function: FunctionCall = {
                "name": "terminal",
                "arguments": f'{{"command": "pytest tests/test_{turn}_{number}.py"}}',
            }
            messages.append(
                {"role": "assistant", "content": None,
                 "tool_calls": [{"id": called, "type": "function", "function": function}]}
            )  # fmt: skip
            lines = (
                f"line {line}: value {dice.randint(0, 99_999)} of module_{turn}" for line in range(dice.randint(5, 90))
            )
            messages.append({"role": "tool", "tool_call_id": called, "content": "\n".join(lines)})
        times.append(now)
        now += dice.uniform(5, 40)
        messages.append({"role": "assistant", "content": f"module_{turn}.py had a wrong sign in line {turn}; mended."})
    return messages, times
