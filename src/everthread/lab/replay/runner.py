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
from dataclasses import replace
from itertools import count, zip_longest
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
from everthread.core.messages import Message
from everthread.core.types import Reply
from everthread.errors import ContextOverflowError, ModelError
from everthread.factory.conversation import session_options
from everthread.factory.models import run_sync
from everthread.factory.store import open_store
from everthread.gateway.dashboard.reader import TrialRequest, TrialResult, TrialRun
from everthread.lab.importers.log import Log, LoggedMessage
from everthread.lab.provider.cache import Prompt, ProviderCaches
from everthread.lab.provider.models import PROTOCOLS
from everthread.lab.provider.script import count_answer
from everthread.lab.replay import baselines, facts, result
from everthread.lab.replay.baselines import (
    CallLedger,
    Prompts,
    ReplaySetting,
    cache_seconds,
    caches_by_marks,
    read_cache,
)
from everthread.lab.replay.plan import PAUSE, STEP, PlannedCall, plan_replay
from everthread.lab.replay.result import PlayedCompaction, Replay, ReplayWay
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


class Player:
    """Replays one conversation."""

    def __init__(
        self,
        setting: ReplaySetting,
        options: SessionOptions,
        engine: Callable[[Services], ContextEngine],
        compact: Compact,
    ) -> None:
        self.setting = setting
        self._options = options
        self._engine = engine
        self._compact = compact
        self._clock = SteppedClock(0.0)
        self.ledger = CallLedger(setting.ttl, setting.began)
        self.compactions: list[PlayedCompaction] = []
        self.notes: dict[str, str] = {}
        """Notes by their words without figures: each is given once."""
        self.refused: int | None = None
        self._started = 0.0
        """The start of the last compaction, by a real clock."""

    @asynccontextmanager
    async def play(self) -> AsyncIterator[Conversation]:
        """Replay all calls; yield the conversation at its end. Its store is removed afterwards."""
        setting = self.setting
        with tempfile.TemporaryDirectory(prefix="everthread-replay-", dir=fast_folder()) as folder:
            store = open_store(Path(folder) / "replay.db")
            try:
                setup = Setup(
                    store, route_for(setting.calls[0].model, setting.window), self._engine,
                    lambda context: JournalWriter(context.counter), self._options, setting.system, self._on_event,
                    clock=self._clock, wall=lambda: setting.began + self._clock.now,
                )  # fmt: skip
                async with await Conversation.open(setup, tools=setting.tools) as conversation:
                    await self._play_calls(conversation)
                    yield conversation
            finally:
                await store.close()

    def _on_event(self, event: Event) -> None:
        number = len(self.ledger.calls)
        if isinstance(event, CompactionStarted):
            self._started = time.perf_counter()
        elif isinstance(event, CompactionDone):
            self.compactions.append(
                PlayedCompaction(
                    number, event.reason, event.tokens_before, event.tokens_after, event.messages_before,
                    event.messages_after, event.author, time.perf_counter() - self._started,
                )
            )  # fmt: skip
        elif isinstance(event, CompactionFailed):
            self._note(f"a compaction failed before call {number + 1:,}: {event.error}")
        elif isinstance(event, Notice):
            self._note(event.text)

    def _note(self, text: str) -> None:
        self.notes.setdefault(re.sub(r"[\d,.]+", "#", text), text)

    async def _play_calls(self, conversation: Conversation) -> None:
        setting, caches, compactions = self.setting, ProviderCaches(self._clock), 0
        for number, call in enumerate(setting.calls):
            self._clock.now = call.at
            if call.model != conversation.route.name:
                await conversation.use_model(route_for(call.model, setting.window))
            try:
                prepared, prompt = await self._prepare_call(conversation, number)
            except ContextOverflowError as error:
                self._note(str(error))
                self.refused = number
                return
            request = prepared.request
            use = read_cache(caches, request.model, prompt)
            reshaped = result.COMPACTED if len(self.compactions) > compactions else ""
            compactions = len(self.compactions)
            self.ledger.record_call(request, use, call.output, call.at, reshaped=reshaped)
            usage = _USAGE[prepared.api](use, call.output, 0)
            await conversation.record(Reply(call.answer, usage=usage, model=request.model))
            setting.step()

    async def _prepare_call(self, conversation: Conversation, number: int) -> tuple[PreparedRequest, Prompt]:
        """Prepare a request that the provider accepts: one over the window is refused and recovered."""
        messages, compact = list(self.setting.calls[number].inputs), self._compact
        if messages and compact:
            await conversation.add(messages)
            messages = []
            if compact(number, conversation) if callable(compact) else number in compact:
                compaction = await conversation.compress()
                if not compaction.changed:
                    self._note(f"nothing was compacted before call {number + 1:,}: {compaction.reason}")
        prepared = await conversation.prepare(messages or None)
        while (prompt := self.setting.prompts.read(prepared.request)).tokens > self.setting.window:
            refusal = f"prompt is too long: {prompt.tokens} tokens > {self.setting.window} maximum"
            prepared = await conversation.recover(ModelError(refusal, status=400))
        return prepared, prompt


DEFAULT_MODEL = "claude-sonnet-4-5"
OURS = "everthread"
Progress = Callable[[int, int], None]
"""Called with the number of finished steps and of all steps."""


async def areplay(  # noqa: PLR0913 - what a replay may be told, one by one
    conversation: Log | Sequence[Message],
    *,
    model: str | None = None,
    window: int | None = None,
    options: SessionOptions | None = None,
    engine: str = "compressor",
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
    log = conversation
    if not isinstance(log, Log):
        log = Log("messages", "core", [LoggedMessage(message) for message in log])
    settings = replace(options or session_options(Config()), background=False)
    default_model = model or log.model or DEFAULT_MODEL
    plan = plan_replay(log, times=times, pause=pause, step=step, ttl=cache_seconds(default_model, settings.cache_ttl))
    prompts = Prompts()
    calls = tuple(_complete_call(call, model or call.model or default_model, prompts) for call in plan.calls)
    size = window or catalogue_window(calls[0].model).tokens
    setting = baselines.ReplaySetting(
        calls, size, settings.cache_ttl, time.time() if plan.began is None else plan.began,
        log.system, log.tools, prompts, _count_steps(progress, len(calls) * (3 if compared else 1)),
    )  # fmt: skip

    def make_engine(services: Services) -> ContextEngine:
        return create_engine(engine, services, dict(engine_options or {}), home=home_directory())

    player = Player(setting, settings, make_engine, compact)
    is_judged = compared if judged is None else judged
    facts_stated = facts.collect_facts(plan.messages) if compared or is_judged else []
    async with player.play() as replayed:
        fact_counts = await facts.judge_facts(facts_stated, replayed) if is_judged else None
        threshold = replayed.threshold
        texts = [record.record.summary for record in await replayed.store.compactions(replayed.id)]
    compactions = [
        replace(one, summary=text or "") for one, text in zip_longest(player.compactions, texts) if one is not None
    ]
    ways = [ReplayWay(OURS, "Everthread", player.ledger.calls, player.refused, fact_counts)]
    if compared:
        uncached, cached, truncated, messages = baselines.play_baselines(setting)
        ways += [uncached, cached, replace(truncated, facts=facts.judge_messages(facts_stated, messages))]
    costs = [call.cost for call in calls if call.cost is not None]
    return Replay(
        log.source, ", ".join(dict.fromkeys(call.model for call in calls)), size, threshold, engine, plan.timed,
        ways, compactions, [*log.warnings, *plan.notes, *player.notes.values()],
        sum(costs) if len(costs) == len(calls) else None, time.perf_counter() - started,
    )  # fmt: skip


def replay(conversation: Log | Sequence[Message], **arguments: Any) -> Replay:
    """Like `areplay`, from a script or from inside a running event loop."""
    return run_sync(areplay(conversation, **arguments))


def _complete_call(call: PlannedCall, model: str, prompts: Prompts) -> PlannedCall:
    """The call with its model and the tokens of its answer: as reported, else counted."""
    counter, reported = prompts.counter(model), call.usage.output_tokens if call.usage is not None else 0
    thoughts = call.answer.get("reasoning_content") or ""
    return replace(call, model=model, output=reported or count_answer(call.answer, counter) + counter.text(thoughts))


def _count_steps(progress: Progress | None, steps: int) -> Callable[[], None]:
    done = count(1)
    return lambda: progress(next(done), steps) if progress is not None else None


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
