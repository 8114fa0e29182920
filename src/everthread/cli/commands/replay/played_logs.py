"""Replay logs, each with its verdict and, if asked for, with idle compaction."""

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
    """The replay of a log, its verdict, and the replay with idle compaction if one was asked for."""

    replay: Replay
    verdict: list[str]
    with_idle: Replay | None

    def as_dict(self) -> dict[str, Any]:
        values = self.replay.as_dict() | {"verdict": self.verdict}
        if self.with_idle is not None:
            values["idle"] = compare_idle_compaction(self.replay, self.with_idle)
        return values


def play_logs(
    logs: Sequence[Log], options: SessionOptions, *, idle: bool, **arguments: Any
) -> list[PlayedLog]:
    from everthread.lab.replay import replay as play

    idle_options = replace(options, idle=True)
    played_logs = []
    with show_progress(len(logs)) as progress:
        for number, log in enumerate(logs):
            replayed = play(
                log, options=options, progress=progress(number, log.source), **arguments
            )
            with_idle = (
                play(log, options=idle_options, with_baselines=False, **arguments) if idle else None
            )
            played_logs.append(PlayedLog(replayed, _write_verdict(log, replayed), with_idle))
    return played_logs


def compare_idle_compaction(without_idle: Replay, with_idle: Replay) -> dict[str, Any]:
    """Return the figures of a replay with idle compaction beside those without."""
    costs = [replayed.everthread.cost for replayed in (without_idle, with_idle)]
    cost_without, cost_with = (None if cost is None else round(float(cost), 4) for cost in costs)
    return {
        "dollars_without": cost_without,
        "dollars": cost_with,
        "saved": None
        if cost_without is None or cost_with is None
        else round(cost_without - cost_with, 4),
        "idle_compactions": sum(replayed.reason == "idle" for replayed in with_idle.compactions),
        "mean_context_without": round(without_idle.everthread.mean),
        "mean_context": round(with_idle.everthread.mean),
    }


def _write_verdict(log: Log, replayed: Replay) -> list[str]:
    from everthread.lab.replay.verdict import describe_replay
    from everthread.lab.summary_comparison import compare_log

    is_readable = any(compaction.summary is not None for compaction in log.compactions)
    return describe_replay(replayed, compare_log(log) if is_readable else None)
