"""Replay logs, with a verdict on each and, on request, also with idle compaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from everthread.cli.progress import show_progress

if TYPE_CHECKING:
    from everthread.lab.importers.log import Log
    from everthread.lab.replay.result import Replay
    from everthread.thread.options import SessionOptions


@dataclass(frozen=True, slots=True)
class PlayedLog:
    """The replay of a log, its verdict, and on request the replay with idle compaction."""

    replay: Replay
    verdict: list[str]
    idle_replay: Replay | None

    def as_dict(self) -> dict[str, Any]:
        values = self.replay.as_dict() | {"verdict": self.verdict}
        if self.idle_replay is not None:
            values["idle"] = compare_idle_compaction(self.replay, self.idle_replay)
        return values


def play_logs(
    logs: Sequence[Log], options: SessionOptions, *, with_idle: bool, **arguments: Any
) -> list[PlayedLog]:
    """Replay each log, also with idle compaction if `with_idle` is set. Pass the `arguments` to `lab.replay.replay`."""
    from everthread.lab.replay import replay as play

    idle_options = replace(options, compact_when_idle=True)
    played_logs = []
    with show_progress(len(logs)) as start_piece:
        for number, log in enumerate(logs):
            report_step = start_piece(number, log.source)
            replay = play(log, options=options, progress=report_step, **arguments)
            idle_replay = None
            if with_idle:
                idle_replay = play(log, options=idle_options, with_baselines=False, **arguments)
            played_logs.append(PlayedLog(replay, _make_verdict(log, replay), idle_replay))
    return played_logs


def compare_idle_compaction(without_idle: Replay, with_idle: Replay) -> dict[str, Any]:
    """Return the figures of a replay with idle compaction beside the figures without it."""
    cost_without = _round_cost(without_idle)
    cost_with = _round_cost(with_idle)
    saved_dollars = None
    if cost_without is not None and cost_with is not None:
        saved_dollars = round(cost_without - cost_with, 4)
    return {
        "dollars_without": cost_without,
        "dollars": cost_with,
        "saved": saved_dollars,
        "idle_compactions": sum(
            compaction.reason == "idle" for compaction in with_idle.compactions
        ),
        "mean_context_without": round(without_idle.everthread.mean_prompt_tokens),
        "mean_context": round(with_idle.everthread.mean_prompt_tokens),
    }


def _round_cost(replay: Replay) -> float | None:
    cost = replay.everthread.cost
    return None if cost is None else round(float(cost), 4)


def _make_verdict(log: Log, replay: Replay) -> list[str]:
    from everthread.lab.replay.verdict import describe_replay
    from everthread.lab.summary_comparison import compare_log

    is_readable = any(compaction.summary is not None for compaction in log.compactions)
    return describe_replay(replay, compare_log(log) if is_readable else None)
