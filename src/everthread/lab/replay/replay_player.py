"""Replay a conversation through `Conversation`, with its baselines; `run_trial`: a stored thread with new settings."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.registry import create_engine
from everthread.config import Config, home_directory, load_config
from everthread.conversation.conversation import Conversation
from everthread.conversation.requests import PreparedRequest
from everthread.core.messages import Message
from everthread.core.types import Reply
from everthread.errors import ContextOverflowError, ModelError
from everthread.factory.compression import run_sync
from everthread.factory.conversations import make_session_options
from everthread.factory.stores import open_store
from everthread.gateway.dashboard.trials import (
    TrialRequest,
    TrialResult,
    TrialRun,
)
from everthread.lab.importers.log import CLIENT_NAMES, Log, LoggedMessage
from everthread.lab.provider.prompt_blocks import Prompt
from everthread.lab.provider.served_models import PROTOCOLS
from everthread.lab.replay import baselines, result
from everthread.lab.replay import tracked_facts as facts
from everthread.lab.replay.baselines import (
    CallRecorder,
    ReplayCaches,
    ReplayInputs,
)
from everthread.lab.replay.cache_lifetime import (
    caches_by_marks,
    find_cache_seconds,
)
from everthread.lab.replay.recording import find_first_call_after, measure_agreement
from everthread.lab.replay.replay_inputs import DEFAULT_MODEL, prepare_inputs
from everthread.lab.replay.replay_plan import (
    PAUSE_SECONDS,
    STEP_SECONDS,
    ReplayPlan,
    plan_replay,
)
from everthread.lab.replay.result import (
    Agreement,
    LogFigures,
    PlayedCompaction,
    Replay,
    StrategyResult,
)
from everthread.testing import SteppedClock
from everthread.thread.events import (
    CompactionDone,
    CompactionFailed,
    CompactionStarted,
    Event,
    Notice,
)
from everthread.thread.options import Route, SessionOptions, Setup

CompactBefore = Callable[[int, Conversation], bool] | Collection[int]
"""Calls before which to compact regardless of size: their indices, or a function."""

_USAGE_FORMATTERS = {protocol.api: protocol.make_usage for protocol in PROTOCOLS}


def make_route(model: str, window: int) -> Route:
    """Return a route to Anthropic for Claude, and to a chat model with an automatic cache for any other."""
    if caches_by_marks(model):
        return Route(model, "anthropic", window, provider="anthropic")
    return Route(model, "openai_chat", window)


def find_ram_folder() -> str | None:
    """Return a folder in memory if the system has one: the store of a replay is temporary."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - its folder has a random name  # nosec B108


class SimulatedTimer:
    """The idle timer of a replay, which fires in simulated time."""

    def __init__(self, clock: SteppedClock) -> None:
        self._clock = clock
        self._due_time = 0.0
        self._callback: Callable[[], None] | None = None

    def schedule(self, seconds: float, callback: Callable[[], None]) -> SimulatedTimer:
        """Schedule a call; it replaces an earlier one."""
        self._due_time = self._clock.now + seconds
        self._callback = callback
        return self

    def cancel(self) -> None:
        self._callback = None

    def fire_before(self, moment: float) -> bool:
        """Make the scheduled call if it is due before this moment. Return whether the call was made."""
        callback = self._callback
        if callback is None or self._due_time > moment:
            return False
        self._callback = None
        self._clock.now = self._due_time
        callback()
        return True


class ReplayPlayer:
    """Replays one conversation."""

    def __init__(
        self,
        inputs: ReplayInputs,
        options: SessionOptions,
        engine: Callable[[Services], ContextEngine],
        compact: CompactBefore,
    ) -> None:
        self.inputs = inputs
        self._options = options
        self._engine = engine
        self._compact = compact
        self._clock = SteppedClock(0.0)
        self.call_recorder = CallRecorder(inputs.ttl, inputs.started_at)
        self.compactions: list[PlayedCompaction] = []
        self.notes: dict[str, str] = {}
        """Notes by their text without figures. Of notes that differ only in figures, the last is kept."""
        self.refused_call: int | None = None
        self._compaction_started = 0.0
        """The start of the last compaction, by a real clock."""
        self._timer = SimulatedTimer(self._clock)

    @asynccontextmanager
    async def play(self) -> AsyncIterator[Conversation]:
        """Replay all calls; yield the conversation at its end. Its store is removed afterwards."""
        inputs = self.inputs
        with tempfile.TemporaryDirectory(
            prefix="everthread-replay-", dir=find_ram_folder()
        ) as folder:
            store = open_store(Path(folder) / "replay.db")
            try:
                setup = Setup(
                    store,
                    make_route(inputs.calls[0].model, inputs.window),
                    engine=self._engine,
                    summarizer=lambda context: JournalWriter(context.counter),
                    options=self._options,
                    system=inputs.system,
                    listener=self._on_event,
                    clock=self._clock,
                    wall_clock=lambda: inputs.started_at + self._clock.now,
                    timer=self._timer.schedule,
                )
                async with await Conversation.open(
                    setup, tools=inputs.tools
                ) as conversation:
                    await self._play_calls(conversation)
                    yield conversation
            finally:
                await store.close()

    def _on_event(self, event: Event) -> None:
        number = len(self.call_recorder.calls)
        if isinstance(event, CompactionStarted):
            self._compaction_started = time.perf_counter()
        elif isinstance(event, CompactionDone):
            self.compactions.append(
                PlayedCompaction(
                    number,
                    event.reason,
                    tokens_before=event.tokens_before,
                    tokens_after=event.tokens_after,
                    messages_before=event.messages_before,
                    messages_after=event.messages_after,
                    author=event.author,
                    seconds=time.perf_counter() - self._compaction_started,
                )
            )
        elif isinstance(event, CompactionFailed):
            self._add_note(
                f"a compaction failed before call {number + 1:,}: {event.error}"
            )
        elif isinstance(event, Notice):
            self._add_note(event.text)

    def _add_note(self, text: str) -> None:
        self.notes[re.sub(r"[\d,.]+", "#", text)] = text

    async def _play_calls(self, conversation: Conversation) -> None:
        inputs = self.inputs
        caches = ReplayCaches(self._clock, inputs.recording)
        compactions = 0
        for number, call in enumerate(inputs.calls):
            if self._timer.fire_before(call.sent_at):
                await conversation.wait_for_idle_compaction()
            self._clock.now = call.sent_at
            if call.model != conversation.route.name:
                await conversation.use_model(make_route(call.model, inputs.window))
            try:
                prepared, prompt = await self._prepare_call(conversation, number)
            except ContextOverflowError as error:
                self._add_note(str(error))
                self.refused_call = number
                return
            request = prepared.request
            use = caches.use(number, request.model, prompt)
            rewrite_cause = (
                result.COMPACTION_CAUSE if len(self.compactions) > compactions else ""
            )
            compactions = len(self.compactions)
            self.call_recorder.record_call(
                request,
                use,
                call.output_tokens,
                call.sent_at,
                rewrite_cause=rewrite_cause,
            )
            usage = _USAGE_FORMATTERS[prepared.api](use, call.output_tokens, 0)
            await conversation.record(
                Reply(call.answer, usage=usage, model=request.model)
            )
            inputs.step()

    async def _prepare_call(
        self, conversation: Conversation, number: int
    ) -> tuple[PreparedRequest, Prompt]:
        """Prepare the request of a call. A request over the window is refused and recovered until it fits."""
        messages = list(self.inputs.calls[number].inputs)
        compact = self._compact
        if messages and compact:
            await conversation.add(messages)
            messages = []
            if (
                compact(number, conversation)
                if callable(compact)
                else number in compact
            ):
                compaction = await conversation.compress()
                if not compaction.changed:
                    self._add_note(
                        f"nothing was compacted before call {number + 1:,}: {compaction.reason}"
                    )
        prepared = await conversation.prepare(messages or None)
        while (
            prompt := self.inputs.prompts.read(prepared.request)
        ).tokens > self.inputs.window:
            refusal = f"prompt is too long: {prompt.tokens} tokens > {self.inputs.window} maximum"
            prepared = await conversation.recover(ModelError(refusal, status=400))
        return prepared, prompt


EVERTHREAD = "everthread"
Progress = Callable[[int, int], None]
"""Called with the number of finished steps and of all steps."""


async def areplay(  # noqa: PLR0913 - the options of a replay
    conversation: Log | Sequence[Message],
    *,
    model: str | None = None,
    window: int | None = None,
    options: SessionOptions | None = None,
    engine: str = "compressor",
    engine_options: dict[str, Any] | None = None,
    times: Sequence[float] | None = None,
    pause: float = PAUSE_SECONDS,
    step: float = STEP_SECONDS,
    compact: CompactBefore = (),
    with_baselines: bool = True,
    with_facts: bool | None = None,
    progress: Progress | None = None,
    ttl: str | None = None,
) -> Replay:
    """Replay a conversation in simulated time. Summaries are journals; nothing is sent anywhere.

    - `model`, `window`: default to the model of each call in the log, and to its window.
    - `times`: the time of each call, in seconds. Default: the times of the log; calls without a time are assumed
      `pause` seconds apart before a message of the user, and `step` seconds before a tool result.
    - `compact`: the calls before which to compact, or a function `(call, conversation) -> bool`.
    - `with_facts`: also look for the facts at the end. Default: if the baselines are played too.
    - `ttl`: lifetime of Claude's cache. Default: as recorded in the log, or as in `options`.

    The usage in a log gives the size of system prompt and tools, the calls that missed the cache, and its lifetime.
    """
    started_at = time.perf_counter()
    log = conversation if isinstance(conversation, Log) else _make_log(conversation)
    settings = replace(options or make_session_options(Config()), background=False)
    lifetime = find_cache_seconds(
        model or log.model or DEFAULT_MODEL, ttl or settings.cache_ttl
    )
    plan = plan_replay(log, times=times, pause=pause, step=step, ttl=lifetime)
    inputs = prepare_inputs(
        log,
        plan,
        model=model,
        window=window,
        ttl=ttl or settings.cache_ttl,
        is_ttl_given=ttl is not None,
        step=_count_steps(progress, len(plan.calls) * (3 if with_baselines else 1)),
    )
    player = ReplayPlayer(
        inputs,
        replace(settings, cache_ttl=inputs.ttl),
        _make_engine_factory(engine, dict(engine_options or {})),
        compact,
    )
    with_facts = with_baselines if with_facts is None else with_facts
    needs_facts = with_baselines or with_facts
    stated_facts = facts.collect_facts(plan.messages) if needs_facts else []
    facts_to_find = stated_facts if with_facts else None
    everthread_replay = await _play_with_everthread(player, facts_to_find)
    other_strategies = OtherStrategies()
    if with_baselines:
        other_strategies = _play_other_strategies(log, inputs, stated_facts)
    replayed = _make_replay(log, plan, inputs, everthread_replay, other_strategies)
    return replace(replayed, engine=engine, seconds=time.perf_counter() - started_at)


def _make_log(messages: Sequence[Message]) -> Log:
    return Log("messages", "core", [LoggedMessage(message) for message in messages])


def _make_engine_factory(
    name: str, options: dict[str, Any]
) -> Callable[[Services], ContextEngine]:
    return lambda services: create_engine(
        name, services, options, home=home_directory()
    )


@dataclass(frozen=True, slots=True)
class EverthreadReplay:
    """The session replayed with Everthread."""

    strategy: StrategyResult
    threshold: int
    compactions: list[PlayedCompaction]
    notes: list[str]


@dataclass(frozen=True, slots=True)
class OtherStrategies:
    """The results of the baselines and of the recorded session, and how well the prediction fits the record."""

    strategies: list[StrategyResult] = field(default_factory=list)
    agreement: Agreement | None = None


def _make_replay(
    log: Log,
    plan: ReplayPlan,
    inputs: ReplayInputs,
    everthread_replay: EverthreadReplay,
    other_strategies: OtherStrategies,
) -> Replay:
    return Replay(
        log.source,
        ", ".join(dict.fromkeys(call.model for call in inputs.calls)),
        inputs.window,
        threshold=everthread_replay.threshold,
        time_source=plan.time_source,
        strategies=[everthread_replay.strategy, *other_strategies.strategies],
        compactions=everthread_replay.compactions,
        notes=[*log.warnings, *plan.notes, *everthread_replay.notes],
        recorded_cost=_sum_recorded_cost(inputs),
        log=_describe_log(log),
        agreement=other_strategies.agreement,
    )


async def _play_with_everthread(
    player: ReplayPlayer, facts_to_find: Sequence[facts.StatedFact] | None
) -> EverthreadReplay:
    """Play the session with Everthread. `facts_to_find`: the facts to look for at its end."""
    async with player.play() as replayed:
        fact_counts = (
            None
            if facts_to_find is None
            else await facts.locate_facts(facts_to_find, replayed)
        )
        threshold = replayed.threshold
        compactions = await _add_summaries(player.compactions, replayed)
    strategy = StrategyResult(
        EVERTHREAD,
        "Everthread",
        player.call_recorder.calls,
        player.refused_call,
        fact_counts,
    )
    return EverthreadReplay(
        strategy, threshold, compactions, list(player.notes.values())
    )


def _sum_recorded_cost(inputs: ReplayInputs) -> float | None:
    """Return the recorded cost of all calls; None if the cost of any call is unknown."""
    costs = [call.cost for call in inputs.calls if call.cost is not None]
    return sum(costs) if len(costs) == len(inputs.calls) else None


async def _add_summaries(
    compactions: Sequence[PlayedCompaction], conversation: Conversation
) -> list[PlayedCompaction]:
    """Return the compactions with the summaries that were stored."""
    records = await conversation.store.compactions(conversation.id)
    texts = [record.record.summary for record in records]
    return [
        replace(compaction, summary=text or "")
        for compaction, text in zip_longest(compactions, texts)
        if compaction is not None
    ]


def _play_other_strategies(
    log: Log, inputs: ReplayInputs, facts_to_find: Sequence[facts.StatedFact]
) -> OtherStrategies:
    recorded = baselines.price_recorded_calls(inputs)
    uncached, cached, truncated, messages = baselines.play_baselines(inputs)
    kept_facts = facts.locate_facts_in_messages(facts_to_find, messages)
    strategies = [uncached, cached, replace(truncated, facts=kept_facts)]
    known_calls = [call for call in recorded if call is not None]
    if len(known_calls) == len(recorded):
        name = baselines.RECORDED_STRATEGY
        strategies.append(
            StrategyResult(name, baselines.BASELINE_LABELS[name], known_calls)
        )
    agreement = measure_agreement(
        cached.calls, recorded, call_count=_count_calls_before_compaction(log, inputs)
    )
    return OtherStrategies(strategies, agreement)


def _count_calls_before_compaction(log: Log, inputs: ReplayInputs) -> int:
    """Return the number of calls before the client's first own compaction."""
    return (
        find_first_call_after(inputs.calls, log.compactions[0])
        if log.compactions
        else len(inputs.calls)
    )


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


def replay(conversation: Log | Sequence[Message], **arguments: Any) -> Replay:
    """Like `areplay`, from a script or from inside a running event loop."""
    return run_sync(areplay(conversation, **arguments))


def _count_steps(progress: Progress | None, steps: int) -> Callable[[], None]:
    step_numbers = count(1)
    return lambda: progress(next(step_numbers), steps) if progress is not None else None


async def run_trial(request: TrialRequest) -> TrialResult:
    """Replay a thread with other settings, in a process that ends with the replay: it may grow large."""
    loop = asyncio.get_running_loop()
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        return await loop.run_in_executor(pool, replay_with_trial_settings, request)
    finally:
        for process in list(getattr(pool, "_processes", {}).values()):
            process.terminate()  # cancelled, or done
        pool.shutdown(wait=False, cancel_futures=True)


def replay_with_trial_settings(request: TrialRequest) -> TrialResult:
    """Replay a thread as configured, with the settings to try, and without compaction."""
    messages = [
        LoggedMessage(message, timestamp, model=request.model)
        for message, timestamp in request.messages
    ]
    log = Log(
        f"thread {request.source[:12]}",
        "core",
        entries=messages,
        system=request.system,
        tools=[],
        model=request.model,
    )
    options = make_session_options(load_config())
    trial_options = replace(
        options,
        threshold=request.threshold,
        threshold_tokens=None,
        target_ratio=request.ratio,
    )
    configured_replay = replay(
        log,
        window=request.window,
        options=options,
        with_baselines=False,
        with_facts=True,
    )
    trial_replay = replay(log, window=request.window, options=trial_options)
    runs = [
        _make_trial_run("as configured", configured_replay),
        _make_trial_run("with these settings", trial_replay),
        _make_trial_run("without compaction", trial_replay, "cached"),
    ]
    return TrialResult(runs, trial_replay.notes)


def _make_trial_run(
    name: str, replayed: Replay, strategy_name: str = "everthread"
) -> TrialRun:
    strategy = replayed.strategy(strategy_name)
    facts = strategy.facts
    return TrialRun(
        name,
        [call.use.prompt for call in strategy.calls],
        compactions=[compaction.call for compaction in replayed.compactions]
        if strategy_name == "everthread"
        else [],
        cost=None if strategy.cost is None else float(strategy.cost),
        facts=(facts.retained, facts.recoverable, facts.lost)
        if facts is not None
        else None,
        refused=strategy.refused_call is not None,
    )
