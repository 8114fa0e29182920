"""Find the best compaction threshold for each model by replaying a user's own sessions at several thresholds."""

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
    """The thresholds tried for one model. `proposed` is the one to set, or None if no price is known."""

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
    logs_by_model: dict[str, list[Log]] = {}
    for log in logs:
        logs_by_model.setdefault(log.model, []).append(log)
    return [
        _tune_model(model, model_logs, options, progress)
        for model, model_logs in sorted(logs_by_model.items())
        if model
    ]


def _tune_model(
    model: str, logs: Sequence[Log], options: SessionOptions, progress: ReportLine | None
) -> Tuning:
    replays = [_replay_log(log, options, progress) for log in logs]
    window = max(replay_result.window for replay_result in replays)
    current_trial = _sum_replays(replays, replays[0].threshold / replays[0].window, is_current=True)
    trials = [current_trial]
    for share in TRIED_SHARES:
        if abs(share - current_trial.share) < 0.01:
            continue
        trial_options = replace(options, threshold=share, threshold_tokens=None, models={})
        trial = _sum_replays([_replay_log(log, trial_options, progress) for log in logs], share)
        if trial.tokens <= share * window * MAX_RAISE_FACTOR:
            trials.append(trial)
    trials.sort(key=lambda trial: trial.share)
    call_count = sum(len(replay_result.everthread.calls) for replay_result in replays)
    return Tuning(
        model,
        window,
        len(logs),
        calls=call_count,
        tried=trials,
        proposed=_choose_threshold(trials, current_trial),
    )


def _replay_log(log: Log, options: SessionOptions, progress: ReportLine | None) -> Replay:
    if progress is not None:
        progress(log.source)
    return replay(log, options=options, with_baselines=False, with_facts=True)


def _sum_replays(
    replays: Sequence[Replay], share: float, *, is_current: bool = False
) -> TriedThreshold:
    prompt_sizes = [
        call.use.prompt for replay_result in replays for call in replay_result.everthread.calls
    ]
    fact_counts = [
        replay_result.everthread.facts
        for replay_result in replays
        if replay_result.everthread.facts is not None
    ]
    fact_count = sum(counts.total for counts in fact_counts)
    in_context = 1.0
    if fact_count:
        in_context = sum(counts.retained for counts in fact_counts) / fact_count
    return TriedThreshold(
        share,
        max(replay_result.threshold for replay_result in replays),
        dollars=sum_costs(replay_result.everthread.cost for replay_result in replays),
        mean_context=round(sum(prompt_sizes) / max(len(prompt_sizes), 1)),
        compactions=sum(len(replay_result.compactions) for replay_result in replays),
        in_context=in_context,
        is_current=is_current,
    )


def _choose_threshold(
    trials: Sequence[TriedThreshold], current_trial: TriedThreshold
) -> TriedThreshold | None:
    """Return the cheapest threshold that keeps nearly as much in the context as the current one."""
    candidates = [
        trial
        for trial in trials
        if trial.dollars is not None
        and trial.in_context >= MIN_KEPT_FACTS_SHARE * current_trial.in_context
    ]
    return min(candidates, key=lambda trial: trial.dollars or Decimal(0), default=None)
