"""Replays a conversation through `Conversation`, with its baselines; `run_trial`: a stored thread with new settings."""

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
from pathlib import Path
from typing import Any

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.journal import JournalWriter
from everthread.compaction.registry import create_engine
from everthread.config import Config, home_directory, load_config
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import CompactionDone, CompactionFailed, CompactionStarted, Event, Notice
from everthread.conversation.options import Route, SessionOptions, Setup
from everthread.conversation.requests import PreparedRequest
from everthread.core.messages import Message, calls_of, text_of
from everthread.core.tokens import TokenCounter
from everthread.core.types import Reply, System
from everthread.errors import ContextOverflowError, ModelError
from everthread.factory.conversation import session_options
from everthread.factory.models import run_sync
from everthread.factory.store import open_store
from everthread.gateway.dashboard.reader import TrialRequest, TrialResult, TrialRun
from everthread.lab.importers.log import Log, LoggedMessage
from everthread.lab.provider.cache import Prompt
from everthread.lab.provider.models import PROTOCOLS
from everthread.lab.replay import baselines, facts, result
from everthread.lab.replay.baselines import Cache, CallLedger, Prompts, ReplaySetting, cache_seconds, caches_by_marks
from everthread.lab.replay.plan import PAUSE, STEP, PlannedCall, ReplayPlan, plan_replay
from everthread.lab.replay.result import PlayedCall, PlayedCompaction, Replay, ReplayWay
from everthread.providers.catalog import catalogue_window
from everthread.testing import SteppedClock

Compact = Callable[[int, Conversation], bool] | Collection[int]
"""The calls before which to compact, whatever the size: their indices, or a function."""

_USAGE = {protocol.api: protocol.usage for protocol in PROTOCOLS}


def route_for(model: str, window: int) -> Route:
    """Claude at Anthropic, any other as a chat model with an automatic cache."""
    if caches_by_marks(model):
        return Route(model, "anthropic", window, provider="anthropic")
    return Route(model, "openai_chat", window)


def fast_folder() -> str | None:
    """A folder in memory, where the system has one: the store of a replay is temporary."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - its folder has a random name  # nosec B108


@dataclass
class Player:
    """Replays one conversation."""

    setting: ReplaySetting
    options: SessionOptions
    engine: Callable[[Services], ContextEngine]
    compact: Compact = ()
    clock: SteppedClock = field(default_factory=lambda: SteppedClock(0.0))
    played: list[PlayedCall] = field(default_factory=list)
    compactions: list[PlayedCompaction] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: int | None = None
    _noted: set[str] = field(default_factory=set)
    _started: float = 0.0
    """The start of the last compaction, by a real clock."""
    _counted_compactions: int = 0
    """Compactions that the ledger has seen."""

    @asynccontextmanager
    async def play(self) -> AsyncIterator[Conversation]:
        """Replay all calls; yield the conversation at its end. Its store is removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="everthread-replay-", dir=fast_folder()) as folder:
            store = open_store(Path(folder) / "replay.db")
            try:
                setting = self.setting
                setup = Setup(
                    store, route_for(setting.models[0], setting.window), self.engine,
                    lambda context: JournalWriter(context.counter), self.options, setting.system, self._on_event,
                    clock=self.clock, wall=lambda: setting.began + self.clock.now,
                )  # fmt: skip
                async with await Conversation.open(setup, tools=setting.tools) as conversation:
                    await self._play_calls(conversation)
                    yield conversation
            finally:
                await store.close()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, CompactionStarted):
            self._started = time.perf_counter()
        elif isinstance(event, CompactionDone):
            self.compactions.append(
                PlayedCompaction(
                    len(self.played), event.reason, event.tokens_before, event.tokens_after, event.messages_before,
                    event.messages_after, event.author, time.perf_counter() - self._started,
                )
            )  # fmt: skip
        elif isinstance(event, CompactionFailed):
            self._note(f"a compaction failed before call {len(self.played) + 1:,}: {event.error}")
        elif isinstance(event, Notice):
            self._note(event.text)

    def _note(self, text: str) -> None:
        """Add a note once, whatever its figures."""
        words = re.sub(r"[\d,.]+", "#", text)
        if words not in self._noted:
            self._noted.add(words)
            self.notes.append(text)

    async def _play_calls(self, conversation: Conversation) -> None:
        setting = self.setting
        cache, ledger = Cache(self.clock), CallLedger(setting.ttl, setting.began)
        for number, call in enumerate(setting.calls):
            self.clock.now = call.at
            if setting.models[number] != conversation.route.name:
                await conversation.use_model(route_for(setting.models[number], setting.window))
            try:
                prepared_call = await self._prepare_call(conversation, number)
            except ContextOverflowError as error:
                self._note(str(error))
                self.refused = number
                return
            prepared, prompt = prepared_call
            request = prepared.request
            use = cache.use(request.model, prompt)
            reshaped = result.COMPACTED if len(self.compactions) > self._counted_compactions else ""
            self._counted_compactions = len(self.compactions)
            output = setting.outputs[number]
            self.played.append(ledger.record_call(request, use, output, call.at, reshaped=reshaped))
            await conversation.record(
                Reply(call.answer, usage=_USAGE[prepared.api](use, output, 0), model=request.model)
            )
            setting.step()

    async def _prepare_call(self, conversation: Conversation, number: int) -> tuple[PreparedRequest, Prompt]:
        """Prepare a request that the provider accepts: one over the window is refused and recovered."""
        messages = list(self.setting.calls[number].inputs)
        if messages and self.compact:
            await conversation.add(messages)
            if self._is_forced(number, conversation):
                compaction = await conversation.compress()
                if not compaction.changed:
                    self._note(f"nothing was compacted before call {number + 1:,}: {compaction.reason}")
            messages = []
        prepared = await conversation.prepare(messages or None)
        while (prompt := self.setting.prompts.read(prepared.request)).tokens > self.setting.window:
            refusal = f"prompt is too long: {prompt.tokens} tokens > {self.setting.window} maximum"
            prepared = await conversation.recover(ModelError(refusal, status=400))
        return prepared, prompt

    def _is_forced(self, number: int, conversation: Conversation) -> bool:
        return self.compact(number, conversation) if callable(self.compact) else number in self.compact


DEFAULT_MODEL = "claude-sonnet-4-5"
OURS = "everthread"
Progress = Callable[[int, int], None]
"""Called with the number of finished steps and of all steps."""
_CALL_TOKENS = 10
"""Tokens of a call besides its name and arguments."""


async def areplay(  # noqa: PLR0913 - what a replay may be told, one by one
    conversation: Log | Sequence[Message],
    *,
    model: str | None = None,
    window: int | None = None,
    system: System = None,
    tools: Sequence[dict[str, Any]] = (),
    options: SessionOptions | None = None,
    engine: str | Callable[[Services], ContextEngine] = "compressor",
    engine_options: dict[str, Any] | None = None,
    times: Sequence[float] | None = None,
    pause: float = PAUSE,
    step: float = STEP,
    compact: Compact = (),
    compared: bool = True,
    judged: bool | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Replay a conversation in simulated time. Summaries are journals; nothing is sent anywhere.

    `model`: its name; None: the log's, call by call. `window`: None is the model's own. `options`: the settings of the
    conversation. `times`: the time of each call in seconds; else the log's, else assumed with `pause` and `step`.
    `compact`: calls to compact before, or a function `(call, conversation) -> bool`. `compared`: also the baselines.
    `judged`: also the facts; None: as `compared`.
    """
    started = time.perf_counter()
    log = (
        conversation
        if isinstance(conversation, Log)
        else Log("messages", "core", [LoggedMessage(m) for m in conversation])
    )
    log = replace(log, system=log.system if system is None else system, tools=list(tools) or log.tools)
    settings = replace(options or session_options(Config()), background=False)
    default_model = model or log.model or DEFAULT_MODEL
    plan = plan_replay(log, times=times, pause=pause, step=step, ttl=cache_seconds(default_model, settings.cache_ttl))
    models = tuple(model or call.model or default_model for call in plan.calls)
    size = window or catalogue_window(models[0]).tokens
    prompts = Prompts()
    outputs = tuple(_output_tokens(call, prompts.counter(name)) for call, name in zip(plan.calls, models, strict=True))
    setting = baselines.ReplaySetting(
        plan.calls, models, outputs, size, settings.cache_ttl, time.time() if plan.began is None else plan.began,
        log.system, log.tools, prompts, _count_steps(progress, len(plan.calls) * (3 if compared else 1)),
    )  # fmt: skip
    player = Player(setting, settings, _make_engine(engine, engine_options), compact)
    is_judged = compared if judged is None else judged
    facts_stated = facts.collect_facts(plan.messages) if compared or is_judged else []
    async with player.play() as replayed:
        fact_counts = await facts.judge_facts(facts_stated, replayed) if is_judged else None
        threshold = replayed.threshold
        texts = [record.record.summary for record in await replayed.store.compactions(replayed.id)]
    texts += [""] * len(player.compactions)
    compactions = [replace(one, summary=text) for one, text in zip(player.compactions, texts, strict=False)]
    ways = [ReplayWay(OURS, "Everthread", player.played, player.refused, fact_counts)]
    if compared:
        ways += _play_baselines(setting, facts_stated)
    name = engine if isinstance(engine, str) else "given"
    return Replay(
        log.source, ", ".join(dict.fromkeys(models)), size, threshold, name, plan.timed, ways, compactions,
        [*log.warnings, *plan.notes, *player.notes], _recorded_cost(plan), time.perf_counter() - started,
    )  # fmt: skip


def replay(conversation: Log | Sequence[Message], **arguments: Any) -> Replay:
    """Like `areplay`, from a script or from inside a running event loop."""
    return run_sync(areplay(conversation, **arguments))


def _play_baselines(setting: baselines.ReplaySetting, facts_stated: Sequence[facts.StatedFact]) -> list[ReplayWay]:
    uncached, cached = baselines.play_unmanaged(setting)
    truncated, messages = baselines.play_truncated(setting, cached)
    return [uncached, cached, replace(truncated, facts=facts.judge_messages(facts_stated, messages))]


def _make_engine(
    engine: str | Callable[[Services], ContextEngine], options: dict[str, Any] | None
) -> Callable[[Services], ContextEngine]:
    if not isinstance(engine, str):
        return engine
    name = engine
    return lambda services: create_engine(name, services, dict(options or {}), home=home_directory())


def _output_tokens(call: PlannedCall, counter: TokenCounter) -> int:
    """Tokens of the answer: as reported, else counted."""
    if call.usage is not None and call.usage.output_tokens:
        return call.usage.output_tokens
    calls = sum(counter.text(one.name) + counter.text(one.arguments) + _CALL_TOKENS for one in calls_of(call.answer))
    return counter.text(text_of(call.answer)) + counter.text(call.answer.get("reasoning_content") or "") + calls


def _recorded_cost(plan: ReplayPlan) -> float | None:
    costs = [call.cost for call in plan.calls]
    stated = [cost for cost in costs if cost is not None]
    return sum(stated) if len(stated) == len(costs) else None


def _count_steps(progress: Progress | None, steps: int) -> Callable[[], None]:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, steps)

    return step


async def run_trial(request: TrialRequest) -> TrialResult:
    """Replay a thread with other settings, in a process that ends with the replay: it may grow large."""
    loop = asyncio.get_running_loop()
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        return await loop.run_in_executor(pool, replay_twice, request)
    finally:
        for process in list(getattr(pool, "_processes", {}).values()):
            process.terminate()  # cancelled, or done
        pool.shutdown(wait=False, cancel_futures=True)


def replay_twice(request: TrialRequest) -> TrialResult:
    """Replay a thread as configured, with the settings to try, and without compaction."""
    messages = [LoggedMessage(message, at, model=request.model) for message, at in request.said]
    log = Log(f"thread {request.source[:12]}", "core", messages, request.system, [], request.model)
    options = session_options(load_config())
    tried = replace(options, threshold=request.threshold, threshold_tokens=None, target_ratio=request.ratio)
    now = replay(log, window=request.window, options=options, compared=False, judged=True)
    then = replay(log, window=request.window, options=tried)
    runs = [
        _trial_run("as configured", now),
        _trial_run("with these settings", then),
        _trial_run("without compaction", then, "cached"),
    ]
    return TrialResult(runs, then.notes)


def _trial_run(name: str, replayed: Replay, way: str = "everthread") -> TrialRun:
    played_way = replayed.way(way)
    facts = played_way.facts
    return TrialRun(
        name,
        [call.use.prompt for call in played_way.calls],
        [compaction.call for compaction in replayed.compactions] if way == "everthread" else [],
        None if played_way.cost is None else float(played_way.cost),
        (facts.retained, facts.recoverable, facts.lost) if facts is not None else None,
        played_way.refused is not None,
    )
