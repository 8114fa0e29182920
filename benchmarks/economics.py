"""Dollars at different thresholds, fixed and timed by the cache, and without any compaction.

The conversations are played through `Conversation` and the simulator's cache rules; summaries need no model, so a
compaction costs what it does to the cache. The recorded session has its pauses from the recorded cache misses, the
generated ones from a seed: turns of a few calls, and now and then a pause that outlives the cache. Differences are
against a fixed threshold of 50 %: what compacting earlier saves, and what its timing adds to that.

The logs of real sessions are played with their own models, times, cache misses and lifetimes of the cache. Each timed
one is compared with a fixed threshold of the same mean context, between 30 % and 60 % of the window. They are in two
halves by their names: the limit of the wait for the end of a turn was chosen on one, the other is only measured.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from benchmarks.shared import HALVES, half_of, shared
from benchmarks.table import Row, absent
from everthread.core.messages import FunctionCall, Message
from everthread.lab.importers.log import Log
from everthread.lab.importers.read_logs import read_log
from everthread.lab.replay import Replay, replay
from everthread.thread.options import SessionOptions

MODEL = "claude-sonnet-4-5"
WINDOW = 200_000
LIMIT = 0.85
DEFAULT = 0.50
THRESHOLDS = (0.15, 0.25, 0.30, 0.40, DEFAULT)
TIMED = (0.30, DEFAULT)
LOG_THRESHOLDS = (0.30, 0.40, DEFAULT, 0.60)


def run() -> list[Row]:
    rows: list[Row] = []
    path = shared("transcripts", "coding-long-claude.json")
    if path is None:
        rows.append(absent("the long transcript"))
    else:
        rows += _compared(
            "a recorded session of 900 messages", read_log(str(path)), None
        )
    rows += _logs()
    for pauses in (0.0, 0.3):
        log, times = _generated(pauses)
        rows += _compared(
            f"generated, {pauses:.0%} of the turns after a long pause", log, times
        )
    return rows


@dataclass(frozen=True, slots=True)
class _TimedLog:
    """Dollars of one log."""

    half: str
    timed: float
    fixed: float
    """At the same threshold."""
    same_context: float
    """At the fixed threshold of the same mean context."""


def _logs() -> list[Row]:
    """Compare on the logs: dollars at the same threshold, and at the same mean context."""
    folder = shared("logs")
    if folder is None:
        return [absent("the logs of real sessions")]
    found: dict[float, list[_TimedLog]] = {threshold: [] for threshold in TIMED}
    for path in sorted(folder.glob("*.gz")):
        log = read_log(str(path))
        fixed = {share: _play_log(log, share) for share in LOG_THRESHOLDS}
        if any(one.everthread.cost is None for one in fixed.values()):
            continue
        for share in TIMED:
            timed = _play_log(log, share, economics=True)
            found[share].append(
                _TimedLog(
                    half_of(path.name),
                    float(_cost(timed)),
                    fixed=float(_cost(fixed[share])),
                    same_context=_same_context(timed, fixed.values()),
                )
            )
    return [
        _log_row(share, half, [one for one in logs if one.half == half])
        for share, logs in found.items()
        for half in HALVES
    ]


def _log_row(threshold: float, half: str, logs: Sequence[_TimedLog]) -> Row:
    timed = sum(one.timed for one in logs)
    fixed = sum(one.fixed for one in logs)
    same_context = sum(one.same_context for one in logs)
    ratios = [one.timed / one.same_context for one in logs]
    cheaper = sum(ratio < 1 for ratio in ratios)
    text = (
        f"${timed:.2f}, fixed ${fixed:.2f}; fixed with the same mean context ${same_context:.2f}: "
        f"{timed / same_context - 1:+.1%}, median {statistics.median(ratios) - 1:+.1%}, cheaper in {cheaper}"
    )
    name = f"{len(logs)} recorded logs, {half}: timed by the cache, {threshold:.0%}"
    return Row(name, text, "cheaper", timed < same_context)


def _play_log(log: Log, threshold: float, *, economics: bool = False) -> Replay:
    options = SessionOptions(
        background=False,
        economics=economics,
        threshold=threshold,
        threshold_tokens=None,
    )
    return replay(log, options=options, with_baselines=False)


def _compared(
    name: str, log: Log | Sequence[Message], times: Sequence[float] | None
) -> list[Row]:
    def played(*, threshold: float, economics: bool = False) -> Replay:
        options = SessionOptions(
            background=False, economics=economics, threshold=threshold
        )
        return replay(
            log,
            model=MODEL,
            window=WINDOW,
            options=options,
            times=times,
            with_baselines=False,
        )

    fixed = {threshold: played(threshold=threshold) for threshold in THRESHOLDS}
    timed = {
        threshold: played(threshold=threshold, economics=True) for threshold in TIMED
    }
    alone = played(threshold=1.0)
    base = _cost(fixed[DEFAULT])
    fullest = (
        max(
            call.use.prompt
            for found in timed.values()
            for call in found.everthread.calls
        )
        / WINDOW
    )
    rows = [
        Row(f"{name}: fixed, {threshold:.0%}", _figures(found, base))
        for threshold, found in fixed.items()
    ]
    rows += [
        Row(
            f"{name}: timed by the cache, {threshold:.0%}",
            f"{_figures(found, base)}; {_worth(found, fixed.values())}",
        )
        for threshold, found in timed.items()
    ]
    rows.append(Row(f"{name}: cached, not compacted", _figures(alone, base)))
    rows.append(
        Row(
            f"{name}: fullest prompt when timed",
            f"{fullest:.0%} of the window",
            "≤ 85 %",
            fullest <= LIMIT,
        )
    )
    return rows


def _figures(found: Replay, base: Decimal) -> str:
    cost = _cost(found)
    context = _mean_context(found)
    count = len(found.compactions)
    return f"${cost:.2f}, {float(cost / base) - 1:+.0%}, mean context {context / 1000:.0f}K, {count} compactions"


def _worth(found: Replay, fixed: Iterable[Replay]) -> str:
    same = _same_context(found, fixed)
    return f"{float(_cost(found)) / same - 1:+.0%} against a fixed one with the same mean context"


def _same_context(found: Replay, fixed: Iterable[Replay]) -> float:
    """Return the dollars of a fixed threshold with the same mean context, interpolated."""
    points = sorted((_mean_context(one), float(_cost(one))) for one in fixed)
    context = min(max(_mean_context(found), points[0][0]), points[-1][0])
    place = max(
        1, next(place for place, (size, _) in enumerate(points) if size >= context)
    )
    (low, cheap), (high, dear) = points[place - 1 : place + 1]
    return cheap + (dear - cheap) * (context - low) / max(high - low, 1)


def _mean_context(found: Replay) -> float:
    return statistics.fmean(call.use.prompt for call in found.everthread.calls)


def _cost(found: Replay) -> Decimal:
    cost = found.everthread.cost
    if cost is None:
        raise AssertionError(f"{MODEL} has prices")
    return cost


def _generated(pauses: float, turns: int = 70) -> tuple[list[Message], list[float]]:
    """A session with tools of about the same shape as the long one, and when each of its calls is made."""
    dice = random.Random(f"economics {pauses}")  # noqa: S311 - reproducible, not secret
    messages: list[Message] = []
    times: list[float] = []
    now = 0.0
    for turn in range(turns):
        now += (
            dice.uniform(400, 4_000)
            if dice.random() < pauses
            else dice.uniform(20, 200)
        )
        messages.append(
            {
                "role": "user",
                "content": f"Task {turn}: repair module_{turn}.py and tell me what was wrong.",
            }
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
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": called, "type": "function", "function": function}
                    ],
                }
            )
            lines = (
                f"line {line}: value {dice.randint(0, 99_999)} of module_{turn}"
                for line in range(dice.randint(5, 90))
            )
            messages.append(
                {"role": "tool", "tool_call_id": called, "content": "\n".join(lines)}
            )
        times.append(now)
        now += dice.uniform(5, 40)
        messages.append(
            {
                "role": "assistant",
                "content": f"module_{turn}.py had a wrong sign in line {turn}; mended.",
            }
        )
    return messages, times
