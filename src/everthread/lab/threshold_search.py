"""Finds the threshold to set: replays a person's own sessions at several thresholds, model by model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from everthread.lab.importers.log import Log
from everthread.lab.replay import Replay, replay
from everthread.lab.replay.result import total
from everthread.thread.options import SessionOptions

SHARES = (0.2, 0.3, 0.4, 0.5, 0.7)
"""Thresholds that are tried, as parts of the window."""
MIN_KEPT = 0.9
"""A threshold is proposed only if this part of the facts stays in the context that stays at the current one."""
MAX_RAISED = 1.05
"""A threshold that system prompt and tools alone reach is raised, and then not that of its share of the window."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TriedThreshold:
    """The sessions of one model at one threshold."""

    share: float
    tokens: int
    dollars: Decimal | None
    """None if the model has no price."""
    mean_context: int
    compactions: int
    in_context: float
    """Share of the user's messages, files, commands, errors and ids that are in the context at the end."""
    is_current: bool = False


@dataclass(frozen=True, slots=True)
class Tuning:
    """The thresholds tried for one model, and the one to set; None if no price is known."""

    model: str
    window: int
    sessions: int
    calls: int
    tried: list[TriedThreshold]
    proposed: TriedThreshold | None

    @property
    def current(self) -> TriedThreshold:
        return next(one for one in self.tried if one.is_current)


def tune_thresholds(
    logs: Sequence[Log], options: SessionOptions, *, progress: Progress | None = None
) -> list[Tuning]:
    """Replay the logs of each model at several thresholds."""
    by_model: dict[str, list[Log]] = {}
    for log in logs:
        by_model.setdefault(log.model, []).append(log)
    return [
        _tune_model(model, own, options, progress)
        for model, own in sorted(by_model.items())
        if model
    ]


def _tune_model(
    model: str, logs: Sequence[Log], options: SessionOptions, progress: Progress | None
) -> Tuning:
    played = [_play(log, options, progress) for log in logs]
    window = max(one.window for one in played)
    current = _sum_up(played, played[0].threshold / played[0].window, is_current=True)
    tried = [current]
    for share in SHARES:
        if abs(share - current.share) < 0.01:
            continue
        changed = replace(options, threshold=share, threshold_tokens=None, models={})
        at_share = _sum_up([_play(log, changed, progress) for log in logs], share)
        if at_share.tokens <= share * window * MAX_RAISED:
            tried.append(at_share)
    tried.sort(key=lambda one: one.share)
    calls = sum(len(one.ours.calls) for one in played)
    return Tuning(
        model,
        window,
        len(logs),
        calls=calls,
        tried=tried,
        proposed=_choose(tried, current),
    )


def _play(log: Log, options: SessionOptions, progress: Progress | None) -> Replay:
    if progress is not None:
        progress(log.source)
    return replay(log, options=options, compared=False, judged=True)


def _sum_up(
    played: Sequence[Replay], share: float, *, is_current: bool = False
) -> TriedThreshold:
    prompts = [call.use.prompt for one in played for call in one.ours.calls]
    facts = [one.ours.facts for one in played if one.ours.facts is not None]
    stated = sum(counts.total for counts in facts)
    return TriedThreshold(
        share,
        max(one.threshold for one in played),
        dollars=total(one.ours.cost for one in played),
        mean_context=round(sum(prompts) / max(len(prompts), 1)),
        compactions=sum(len(one.compactions) for one in played),
        in_context=sum(counts.retained for counts in facts) / stated if stated else 1.0,
        is_current=is_current,
    )


def _choose(
    tried: Sequence[TriedThreshold], current: TriedThreshold
) -> TriedThreshold | None:
    """Return the cheapest threshold that keeps nearly as much in the context as the current one."""
    priced = [
        one
        for one in tried
        if one.dollars is not None and one.in_context >= MIN_KEPT * current.in_context
    ]
    return min(priced, key=lambda one: one.dollars or Decimal(0), default=None)
