"""Dollars at different thresholds, fixed and timed by the cache, and without any compaction.

The conversations are played through `Conversation` and the simulator's cache rules; summaries need no model, so a
compaction costs what it does to the cache. The recorded session has its pauses from the recorded cache misses, the
generated ones from a seed: turns of a few calls, and now and then a pause that outlives the cache. Differences are
against a fixed threshold of 50 %: the savings of compacting earlier, and the additional savings of its timing.

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

from benchmarks.shared import HALVES, find_shared, half_of
from benchmarks.table import Row, make_absent_row
from everthread.core.messages import FunctionCall, Message
from everthread.lab.importers.log import Log
from everthread.lab.importers.read_logs import read_log
from everthread.lab.replay import Replay, replay
from everthread.thread.options import SessionOptions

MODEL = "claude-sonnet-4-5"
WINDOW = 200_000
MAX_PROMPT_SHARE = 0.85
DEFAULT_THRESHOLD = 0.50
THRESHOLDS = (0.15, 0.25, 0.30, 0.40, DEFAULT_THRESHOLD)
TIMED_THRESHOLDS = (0.30, DEFAULT_THRESHOLD)
LOG_THRESHOLDS = (0.30, 0.40, DEFAULT_THRESHOLD, 0.60)


def run() -> list[Row]:
    rows: list[Row] = []
    path = find_shared("transcripts", "coding-long-claude.json")
    if path is None:
        rows.append(make_absent_row("the long transcript"))
    else:
        rows += _compare_thresholds("a recorded session of 900 messages", read_log(str(path)), None)
    rows += _measure_logs()
    for pauses in (0.0, 0.3):
        log, times = _generate_session(pauses)
        rows += _compare_thresholds(
            f"generated, {pauses:.0%} of the turns after a long pause", log, times
        )
    return rows


@dataclass(frozen=True, slots=True)
class _TimedLog:
    """Dollars of one log."""

    half: str
    timed: float
    fixed: float
    """Dollars of a fixed threshold, the same one."""
    same_context: float
    """Dollars of the fixed threshold with the same mean context."""


def _measure_logs() -> list[Row]:
    """Compare on the logs: dollars at the same threshold, and at the same mean context."""
    folder = find_shared("logs")
    if folder is None:
        return [make_absent_row("the logs of real sessions")]
    timed_logs: dict[float, list[_TimedLog]] = {threshold: [] for threshold in TIMED_THRESHOLDS}
    for path in sorted(folder.glob("*.gz")):
        log = read_log(str(path))
        fixed_replays = {share: _play_log(log, share) for share in LOG_THRESHOLDS}
        if any(replayed.everthread.cost is None for replayed in fixed_replays.values()):
            continue
        for share in TIMED_THRESHOLDS:
            timed = _play_log(log, share, economics=True)
            timed_logs[share].append(
                _TimedLog(
                    half_of(path.name),
                    float(_cost(timed)),
                    fixed=float(_cost(fixed_replays[share])),
                    same_context=_interpolate_cost(timed, fixed_replays.values()),
                )
            )
    return [
        _log_row(share, half, [replayed for replayed in logs if replayed.half == half])
        for share, logs in timed_logs.items()
        for half in HALVES
    ]


def _log_row(threshold: float, half: str, logs: Sequence[_TimedLog]) -> Row:
    timed_dollars = sum(log.timed for log in logs)
    fixed_dollars = sum(log.fixed for log in logs)
    same_context = sum(log.same_context for log in logs)
    ratios = [log.timed / log.same_context for log in logs]
    cheaper = sum(ratio < 1 for ratio in ratios)
    text = (
        f"${timed_dollars:.2f}, fixed ${fixed_dollars:.2f}; fixed with the same mean context ${same_context:.2f}: "
        f"{timed_dollars / same_context - 1:+.1%}, median {statistics.median(ratios) - 1:+.1%}, cheaper in {cheaper}"
    )
    name = f"{len(logs)} recorded logs, {half}: timed by the cache, {threshold:.0%}"
    return Row(name, text, "cheaper", timed_dollars < same_context)


def _play_log(log: Log, threshold: float, *, economics: bool = False) -> Replay:
    options = SessionOptions(
        background=False,
        economics=economics,
        threshold=threshold,
        threshold_tokens=None,
    )
    return replay(log, options=options, with_baselines=False)


def _compare_thresholds(
    name: str, log: Log | Sequence[Message], times: Sequence[float] | None
) -> list[Row]:
    def replay_with(*, threshold: float, economics: bool = False) -> Replay:
        options = SessionOptions(background=False, economics=economics, threshold=threshold)
        return replay(
            log,
            model=MODEL,
            window=WINDOW,
            options=options,
            times=times,
            with_baselines=False,
        )

    fixed_replays = {threshold: replay_with(threshold=threshold) for threshold in THRESHOLDS}
    timed_replays = {
        threshold: replay_with(threshold=threshold, economics=True)
        for threshold in TIMED_THRESHOLDS
    }
    uncompacted = replay_with(threshold=1.0)
    base_cost = _cost(fixed_replays[DEFAULT_THRESHOLD])
    fullest = (
        max(
            call.use.prompt
            for replayed in timed_replays.values()
            for call in replayed.everthread.calls
        )
        / WINDOW
    )
    rows = [
        Row(f"{name}: fixed, {threshold:.0%}", _figures(replayed, base_cost))
        for threshold, replayed in fixed_replays.items()
    ]
    rows += [
        Row(
            f"{name}: timed by the cache, {threshold:.0%}",
            f"{_figures(replayed, base_cost)}; {_compare_same_context(replayed, fixed_replays.values())}",
        )
        for threshold, replayed in timed_replays.items()
    ]
    rows.append(Row(f"{name}: cached, not compacted", _figures(uncompacted, base_cost)))
    rows.append(
        Row(
            f"{name}: fullest prompt when timed",
            f"{fullest:.0%} of the window",
            "≤ 85 %",
            fullest <= MAX_PROMPT_SHARE,
        )
    )
    return rows


def _figures(replayed: Replay, base_cost: Decimal) -> str:
    cost = _cost(replayed)
    context = _mean_context(replayed)
    count = len(replayed.compactions)
    return f"${cost:.2f}, {float(cost / base_cost) - 1:+.0%}, mean context {context / 1000:.0f}K, {count} compactions"


def _compare_same_context(replayed: Replay, fixed_replays: Iterable[Replay]) -> str:
    same_context_dollars = _interpolate_cost(replayed, fixed_replays)
    return f"{float(_cost(replayed)) / same_context_dollars - 1:+.0%} against a fixed one with the same mean context"


def _interpolate_cost(replayed: Replay, fixed_replays: Iterable[Replay]) -> float:
    """Return the dollars of a fixed threshold with the same mean context, interpolated."""
    points = sorted(
        (_mean_context(fixed_replay), float(_cost(fixed_replay))) for fixed_replay in fixed_replays
    )
    context = min(max(_mean_context(replayed), points[0][0]), points[-1][0])
    index = max(1, next(index for index, (size, _) in enumerate(points) if size >= context))
    (smaller_context, lower_cost), (larger_context, higher_cost) = points[index - 1 : index + 1]
    return lower_cost + (higher_cost - lower_cost) * (context - smaller_context) / max(
        larger_context - smaller_context, 1
    )


def _mean_context(replayed: Replay) -> float:
    return statistics.fmean(call.use.prompt for call in replayed.everthread.calls)


def _cost(replayed: Replay) -> Decimal:
    cost = replayed.everthread.cost
    if cost is None:
        raise AssertionError(f"{MODEL} has prices")
    return cost


def _generate_session(pauses: float, turns: int = 70) -> tuple[list[Message], list[float]]:
    """Return a session with tools, similar to the long recorded one, and the time of each of its calls."""
    rng = random.Random(f"economics {pauses}")  # noqa: S311 - reproducible, not secret
    messages: list[Message] = []
    times: list[float] = []
    now = 0.0
    for turn in range(turns):
        now += rng.uniform(400, 4_000) if rng.random() < pauses else rng.uniform(20, 200)
        messages.append(
            {
                "role": "user",
                "content": f"Task {turn}: repair module_{turn}.py and tell me what was wrong.",
            }
        )
        for number in range(rng.randint(1, 7)):
            times.append(now)
            now += rng.uniform(5, 40)
            call_id = f"call_{turn}_{number}"
            function: FunctionCall = {
                "name": "terminal",
                "arguments": f'{{"command": "pytest tests/test_{turn}_{number}.py"}}',
            }
            messages.append(
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": call_id, "type": "function", "function": function}],
                }
            )
            lines = (
                f"line {line}: value {rng.randint(0, 99_999)} of module_{turn}"
                for line in range(rng.randint(5, 90))
            )
            messages.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(lines)})
        times.append(now)
        now += rng.uniform(5, 40)
        messages.append(
            {
                "role": "assistant",
                "content": f"module_{turn}.py had a wrong sign in line {turn}; mended.",
            }
        )
    return messages, times
