"""Find the best compaction threshold for each model: replay a user's own sessions at several thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from everthread.lab.importers.log import Log
from everthread.lab.replay import Replay, replay
from everthread.lab.replay.result import sum_costs
from everthread.thread.options import SessionOptions

TRIED_SHARES = (0.2, 0.3, 0.4, 0.5, 0.7)
"""Thresholds that are tried, as parts of the window."""
MIN_KEPT_FACTS_SHARE = 0.9
"""A proposed threshold keeps at least this share of the facts that the current one keeps in the context."""
MAX_RAISE_FACTOR = 1.05
"""Drop a result whose threshold was raised by more than this factor to leave room for system prompt and tools."""
ReportLine = Callable[[str], None]


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
    """The thresholds tried for one model. `proposed`: the threshold to set, None if no price is known."""

    model: str
    window: int
    sessions: int
    calls: int
    tried: list[TriedThreshold]
    proposed: TriedThreshold | None

    @property
    def current(self) -> TriedThreshold:
        return next(trial for trial in self.tried if trial.is_current)


def tune_thresholds(
    logs: Sequence[Log], options: SessionOptions, *, progress: ReportLine | None = None
) -> list[Tuning]:
    """Replay the logs of each model at several thresholds."""
    by_model: dict[str, list[Log]] = {}
    for log in logs:
        by_model.setdefault(log.model, []).append(log)
    return [
        _tune_model(model, model_logs, options, progress)
        for model, model_logs in sorted(by_model.items())
        if model
    ]


def _tune_model(
    model: str, logs: Sequence[Log], options: SessionOptions, progress: ReportLine | None
) -> Tuning:
    replays = [_replay_log(log, options, progress) for log in logs]
    window = max(replay_at_share.window for replay_at_share in replays)
    current_trial = _sum_replays(replays, replays[0].threshold / replays[0].window, is_current=True)
    tried = [current_trial]
    for share in TRIED_SHARES:
        if abs(share - current_trial.share) < 0.01:
            continue
        trial_options = replace(options, threshold=share, threshold_tokens=None, models={})
        trial = _sum_replays([_replay_log(log, trial_options, progress) for log in logs], share)
        if trial.tokens <= share * window * MAX_RAISE_FACTOR:
            tried.append(trial)
    tried.sort(key=lambda replay_at_share: replay_at_share.share)
    calls = sum(len(replay_at_share.everthread.calls) for replay_at_share in replays)
    return Tuning(
        model,
        window,
        len(logs),
        calls=calls,
        tried=tried,
        proposed=_choose_threshold(tried, current_trial),
    )


def _replay_log(log: Log, options: SessionOptions, progress: ReportLine | None) -> Replay:
    if progress is not None:
        progress(log.source)
    return replay(log, options=options, with_baselines=False, with_facts=True)


def _sum_replays(
    replays: Sequence[Replay], share: float, *, is_current: bool = False
) -> TriedThreshold:
    prompts = [call.use.prompt for replayed in replays for call in replayed.everthread.calls]
    facts = [
        replayed.everthread.facts for replayed in replays if replayed.everthread.facts is not None
    ]
    fact_count = sum(counts.total for counts in facts)
    return TriedThreshold(
        share,
        max(replayed.threshold for replayed in replays),
        dollars=sum_costs(replayed.everthread.cost for replayed in replays),
        mean_context=round(sum(prompts) / max(len(prompts), 1)),
        compactions=sum(len(replayed.compactions) for replayed in replays),
        in_context=sum(counts.retained for counts in facts) / fact_count if fact_count else 1.0,
        is_current=is_current,
    )


def _choose_threshold(
    tried: Sequence[TriedThreshold], current_trial: TriedThreshold
) -> TriedThreshold | None:
    """Return the cheapest threshold that keeps nearly as much in the context as the current one."""
    candidates = [
        trial
        for trial in tried
        if trial.dollars is not None
        and trial.in_context >= MIN_KEPT_FACTS_SHARE * current_trial.in_context
    ]
    return min(candidates, key=lambda trial: trial.dollars or Decimal(0), default=None)
