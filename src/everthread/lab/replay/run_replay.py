"""Replay a recorded conversation with Everthread and with its baselines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from everthread.compaction.registry import create_engine
from everthread.config import Config, home_directory
from everthread.core.messages import Message
from everthread.factory.compression import run_sync
from everthread.factory.conversations import make_session_options
from everthread.lab.importers.log import CLIENT_NAMES, Log, LoggedMessage
from everthread.lab.replay.baselines import play_baselines
from everthread.lab.replay.cache_lifetime import find_cache_seconds
from everthread.lab.replay.conversation_player import (
    CompactBefore,
    ConversationPlayer,
)
from everthread.lab.replay.recorded_strategy import (
    list_recorded_strategy,
    measure_agreement,
    price_recorded_calls,
)
from everthread.lab.replay.recording import find_first_call_after
from everthread.lab.replay.replay_inputs import (
    DEFAULT_MODEL,
    ReplayInputs,
    prepare_inputs,
)
from everthread.lab.replay.replay_plan import (
    ASSUMED_USER_PAUSE_SECONDS,
    STEP_SECONDS,
    ReplayPlan,
    plan_replay,
)
from everthread.lab.replay.result import Agreement, LogFigures, Replay, StrategyResult
from everthread.lab.replay.tracked_facts import collect_facts, locate_facts
from everthread.thread.options import SessionOptions

EVERTHREAD = "everthread"
ReportSteps = Callable[[int, int], None]
"""Called with the number of finished steps and the number of all steps."""


async def areplay(  # noqa: PLR0913 - the options of a replay
    conversation: Log | Sequence[Message],
    *,
    model: str | None = None,
    window: int | None = None,
    options: SessionOptions | None = None,
    engine: str = "compressor",
    engine_options: dict[str, Any] | None = None,
    times: Sequence[float] | None = None,
    pause: float = ASSUMED_USER_PAUSE_SECONDS,
    step: float = STEP_SECONDS,
    compact: CompactBefore = (),
    with_baselines: bool = True,
    with_facts: bool | None = None,
    progress: ReportSteps | None = None,
    ttl: str | None = None,
) -> Replay:
    """Replay a conversation in simulated time. Summaries are journals, and nothing is sent anywhere.

    - `model`, `window`: default to the model of each call in the log, and to its window.
    - `times`: the time of each call, in seconds. Default: the times of the log; calls without a time are assumed
      `pause` seconds apart before a message of the user, and `step` seconds before a tool result.
    - `compact`: the calls before which to compact, or a function `(call, conversation) -> bool`.
    - `with_facts`: also look for the facts at the end. Default: if the baselines are played too.
    - `ttl`: lifetime of Claude's cache. Default: as recorded in the log, or as in `options`.

    The usage in a log gives the size of system prompt and tools, the calls that missed the cache, and its lifetime.
    """
    started_at = time.perf_counter()
    log = conversation
    if not isinstance(log, Log):
        log = Log("messages", "core", [LoggedMessage(message) for message in log])
    settings = replace(options or make_session_options(Config()), background=False)
    lifetime = find_cache_seconds(model or log.model or DEFAULT_MODEL, ttl or settings.cache_ttl)
    plan = plan_replay(log, times=times, pause=pause, step=step, ttl=lifetime)
    inputs = prepare_inputs(
        log,
        plan,
        model=model,
        window=window,
        ttl=ttl or settings.cache_ttl,
        is_ttl_given=ttl is not None,
        report_step=_make_step_reporter(progress, len(plan.calls) * (3 if with_baselines else 1)),
    )
    player = ConversationPlayer(
        inputs,
        replace(settings, cache_ttl=inputs.ttl),
        lambda services: create_engine(
            engine, services, dict(engine_options or {}), home=home_directory()
        ),
        compact,
    )
    replay = await _play_strategies(
        log,
        plan,
        player,
        with_baselines=with_baselines,
        with_facts=with_baselines if with_facts is None else with_facts,
    )
    return replace(replay, engine=engine, seconds=time.perf_counter() - started_at)


async def _play_strategies(
    log: Log,
    plan: ReplayPlan,
    player: ConversationPlayer,
    *,
    with_baselines: bool,
    with_facts: bool,
) -> Replay:
    inputs = player.inputs
    stated_facts = collect_facts(plan.messages) if with_baselines or with_facts else []
    async with player.play() as conversation:
        threshold = conversation.threshold
        facts = await locate_facts(stated_facts, conversation) if with_facts else None
    calls = player.call_recorder.calls
    strategies = [StrategyResult(EVERTHREAD, "Everthread", calls, player.refused_call, facts)]
    agreement: Agreement | None = None
    if with_baselines:
        baselines = play_baselines(inputs, stated_facts)
        recorded_calls = price_recorded_calls(inputs)
        strategies += [*baselines, *list_recorded_strategy(recorded_calls)]
        call_count = _count_calls_before_compaction(log, inputs)
        agreement = measure_agreement(baselines[1].calls, recorded_calls, call_count=call_count)
    return Replay(
        log.source,
        ", ".join(dict.fromkeys(call.model for call in inputs.calls)),
        inputs.window,
        threshold=threshold,
        times_from=plan.times_from,
        strategies=strategies,
        compactions=player.compactions,
        notes=[*log.warnings, *plan.notes, *player.notes.values()],
        recorded_cost=_sum_recorded_cost(inputs),
        log=_describe_log(log),
        agreement=agreement,
    )


def replay(conversation: Log | Sequence[Message], **arguments: Any) -> Replay:
    """Run `areplay` from a script or from inside a running event loop."""
    return run_sync(areplay(conversation, **arguments))


def _make_step_reporter(progress: ReportSteps | None, step_count: int) -> Callable[[], None]:
    step_numbers = count(1)
    return lambda: progress(next(step_numbers), step_count) if progress is not None else None


def _sum_recorded_cost(inputs: ReplayInputs) -> float | None:
    """Return the recorded cost of all calls; None if the cost of any call is unknown."""
    costs = [call.cost for call in inputs.calls if call.cost is not None]
    return sum(costs) if len(costs) == len(inputs.calls) else None


def _count_calls_before_compaction(log: Log, inputs: ReplayInputs) -> int:
    """Return the number of calls before the client's first own compaction."""
    if not log.compactions:
        return len(inputs.calls)
    return find_first_call_after(inputs.calls, log.compactions[0])


def _describe_log(log: Log) -> LogFigures | None:
    if log.kind not in CLIENT_NAMES:
        return None
    times = [entry.timestamp for entry in log.entries if entry.timestamp is not None]
    return LogFigures(
        CLIENT_NAMES[log.kind],
        began=min(times, default=None),
        ended=max(times, default=None),
        own_compactions=len(log.compactions),
        has_readable_summaries=any(
            compaction.summary is not None for compaction in log.compactions
        ),
    )
