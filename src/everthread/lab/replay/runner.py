"""One conversation played again through `Conversation`: ours, the ways it is compared with, other settings."""

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
from typing import TYPE_CHECKING, Any

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.journal import JournalWriter
from everthread.compaction.registry import create_engine
from everthread.config import Config, home_directory
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
from everthread.lab.replay.baselines import Cache, CallLedger, Prompts, Setting, by_marks, remembered
from everthread.lab.replay.plan import PAUSE, STEP, PlannedCall, ReplayPlan, planned
from everthread.lab.replay.result import Compacted, Played, Replay, Way
from everthread.providers.catalog import catalogue_window
from everthread.testing import SteppedClock

if TYPE_CHECKING:
    from everthread.lab.replay.result import Replay


Compact = Callable[[int, Conversation], bool] | Collection[int]
"""Which calls are compacted before, whatever the size: their indices, or who is asked before every call."""

_USAGE = {protocol.api: protocol.usage for protocol in PROTOCOLS}


def route_for(model: str, window: int) -> Route:
    """Claude at Anthropic, anything else as a chat model whose cache works by itself."""
    if by_marks(model):
        return Route(model, "anthropic", window, provider="anthropic")
    return Route(model, "openai_chat", window)


def fast_folder() -> str | None:
    """Where files are written to memory, on systems that have such a place: nothing here outlives the replay."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - its folder has a random name  # nosec B108


@dataclass
class Player:
    """One conversation under way."""

    setting: Setting
    options: SessionOptions
    engine: Callable[[Services], ContextEngine]
    compact: Compact = ()
    clock: SteppedClock = field(default_factory=lambda: SteppedClock(0.0))
    played: list[Played] = field(default_factory=list)
    compactions: list[Compacted] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: int | None = None
    _told: set[str] = field(default_factory=set)
    _started: float = 0.0
    """When the last compaction began, by a real clock."""
    _heard: int = 0
    """How many compactions the ledger knows of."""

    @asynccontextmanager
    async def play(self) -> AsyncIterator[Conversation]:
        """The conversation as it stands at its end; its store is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="everthread-replay-", dir=fast_folder()) as folder:
            store = open_store(Path(folder) / "replay.db")
            try:
                setting = self.setting
                setup = Setup(
                    store, route_for(setting.models[0], setting.window), self.engine,
                    lambda desk: JournalWriter(desk.counter), self.options, setting.system, self._hear,
                    clock=self.clock, wall=lambda: setting.began + self.clock.now,
                )  # fmt: skip
                async with await Conversation.open(setup, tools=setting.tools) as conversation:
                    await self._through(conversation)
                    yield conversation
            finally:
                await store.close()

    def _hear(self, event: Event) -> None:
        if isinstance(event, CompactionStarted):
            self._started = time.perf_counter()
        elif isinstance(event, CompactionDone):
            self.compactions.append(
                Compacted(
                    len(self.played), event.reason, event.tokens_before, event.tokens_after, event.messages_before,
                    event.messages_after, event.author, time.perf_counter() - self._started,
                )
            )  # fmt: skip
        elif isinstance(event, CompactionFailed):
            self._note(f"a compaction failed before call {len(self.played) + 1:,}: {event.error}")
        elif isinstance(event, Notice):
            self._note(event.text)

    def _note(self, text: str) -> None:
        """Once, whatever figures it is told with."""
        words = re.sub(r"[\d,.]+", "#", text)
        if words not in self._told:
            self._told.add(words)
            self.notes.append(text)

    async def _through(self, conversation: Conversation) -> None:
        setting = self.setting
        cache, ledger = Cache(self.clock), CallLedger(setting.ttl, setting.began)
        for number, call in enumerate(setting.calls):
            self.clock.now = call.at
            if setting.models[number] != conversation.route.name:
                await conversation.use_model(route_for(setting.models[number], setting.window))
            try:
                sent = await self._sent(conversation, number)
            except ContextOverflowError as error:
                self._note(str(error))
                self.refused = number
                return
            prepared, prompt = sent
            request = prepared.request
            use = cache.use(request.model, prompt)
            reshaped = result.COMPACTED if len(self.compactions) > self._heard else ""
            self._heard = len(self.compactions)
            output = setting.outputs[number]
            self.played.append(ledger.played(request, use, output, call.at, reshaped=reshaped))
            await conversation.record(
                Reply(call.answer, usage=_USAGE[prepared.api](use, output, 0), model=request.model)
            )
            setting.step()

    async def _sent(self, conversation: Conversation, number: int) -> tuple[PreparedRequest, Prompt]:
        """The request as the provider takes it: one that is too long is refused, as it would be."""
        given = list(self.setting.calls[number].given)
        if given and self.compact:
            await conversation.add(given)
            if self._wanted(number, conversation):
                made = await conversation.compress()
                if not made.changed:
                    self._note(f"nothing was compacted before call {number + 1:,}: {made.reason}")
            given = []
        prepared = await conversation.prepare(given or None)
        while (prompt := self.setting.prompts.read(prepared.request)).tokens > self.setting.window:
            words = f"prompt is too long: {prompt.tokens} tokens > {self.setting.window} maximum"
            prepared = await conversation.recover(ModelError(words, status=400))
        return prepared, prompt

    def _wanted(self, number: int, conversation: Conversation) -> bool:
        return self.compact(number, conversation) if callable(self.compact) else number in self.compact


DEFAULT_MODEL = "claude-sonnet-4-5"
OURS = "everthread"
Progress = Callable[[int, int], None]
"""Told how many of how many steps are done."""
_CALL = 10
"""Tokens an answer spends on a call besides its name and arguments."""


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
    """Play a conversation again, in simulated time.

    `model`: who is asked; None: whom the log names, call by call. `window`: None is the model's own. `options`: the
    settings of the conversation. `times`: when each call is sent, in seconds; else the log's, else assumed with
    `pause` and `step`. `compact`: calls to compact before, or a function `(call, conversation) -> bool` that is asked
    before every call, whatever the size. `compared`: also the other ways. `judged`: also the facts; None: as
    `compared`. Summaries are extracts; nothing is sent anywhere.
    """
    started = time.perf_counter()
    log = (
        conversation
        if isinstance(conversation, Log)
        else Log("messages", "core", [LoggedMessage(m) for m in conversation])
    )
    log = replace(log, system=log.system if system is None else system, tools=list(tools) or log.tools)
    chosen = replace(options or session_options(Config()), background=False)
    asked = model or log.model or DEFAULT_MODEL
    plan = planned(log, times=times, pause=pause, step=step, ttl=remembered(asked, chosen.cache_ttl))
    models = tuple(model or call.model or asked for call in plan.calls)
    size = window or catalogue_window(models[0]).tokens
    prompts = Prompts()
    outputs = tuple(_output(call, prompts.counter(name)) for call, name in zip(plan.calls, models, strict=True))
    setting = baselines.Setting(
        plan.calls, models, outputs, size, chosen.cache_ttl, time.time() if plan.began is None else plan.began,
        log.system, log.tools, prompts, _counted(progress, len(plan.calls) * (3 if compared else 1)),
    )  # fmt: skip
    player = Player(setting, chosen, _engine(engine, engine_options), compact)
    asking = compared if judged is None else judged
    told = facts.stated(plan.messages) if compared or asking else []
    async with player.play() as held:
        known = await facts.judged(told, held) if asking else None
        threshold = held.threshold
        texts = [record.record.summary for record in await held.store.compactions(held.id)]
    texts += [""] * len(player.compactions)
    made = [replace(one, summary=text) for one, text in zip(player.compactions, texts, strict=False)]
    ways = [Way(OURS, "Everthread", player.played, player.refused, known)]
    if compared:
        ways += _compared(setting, told)
    name = engine if isinstance(engine, str) else "given"
    return Replay(
        log.source, ", ".join(dict.fromkeys(models)), size, threshold, name, plan.timed, ways, made,
        [*log.warnings, *plan.notes, *player.notes], _recorded(plan), time.perf_counter() - started,
    )  # fmt: skip


def replay(conversation: Log | Sequence[Message], **how: Any) -> Replay:
    """Like `areplay`, from a script or from inside a running event loop."""
    return run_sync(areplay(conversation, **how))


def _compared(setting: baselines.Setting, told: Sequence[facts.Stated]) -> list[Way]:
    uncached, cached = baselines.unmanaged(setting)
    dropped, left = baselines.truncated(setting, cached)
    return [uncached, cached, replace(dropped, facts=facts.judged_alone(told, left))]


def _engine(
    engine: str | Callable[[Services], ContextEngine], options: dict[str, Any] | None
) -> Callable[[Services], ContextEngine]:
    if not isinstance(engine, str):
        return engine
    name = engine
    return lambda services: create_engine(name, services, dict(options or {}), home=home_directory())


def _output(call: PlannedCall, counter: TokenCounter) -> int:
    """Tokens of the answer: as they were reported, else as they are counted."""
    if call.usage is not None and call.usage.output_tokens:
        return call.usage.output_tokens
    calls = sum(counter.text(made.name) + counter.text(made.arguments) + _CALL for made in calls_of(call.answer))
    return counter.text(text_of(call.answer)) + counter.text(call.answer.get("reasoning_content") or "") + calls


def _recorded(plan: ReplayPlan) -> float | None:
    costs = [call.cost for call in plan.calls]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _counted(progress: Progress | None, steps: int) -> Callable[[], None]:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, steps)

    return step


class Trials:
    """Replays threads, one after the other. The process ends with each replay: it may have grown large."""

    async def run(self, request: TrialRequest) -> TrialResult:
        loop = asyncio.get_running_loop()
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        try:
            return await loop.run_in_executor(pool, replay_twice, request)
        finally:
            for process in list(getattr(pool, "_processes", {}).values()):
                process.terminate()  # given up, or done
            pool.shutdown(wait=False, cancel_futures=True)


def replay_twice(request: TrialRequest) -> TrialResult:
    """The thread as configured, with the settings tried, and without compaction."""
    from everthread.config import load_config  # noqa: PLC0415 - in the process that replays
    from everthread.factory.conversation import session_options  # noqa: PLC0415
    from everthread.lab.importers.log import Log, LoggedMessage  # noqa: PLC0415
    from everthread.lab.replay import replay  # noqa: PLC0415

    said = [LoggedMessage(message, at, model=request.model) for message, at in request.said]
    log = Log(f"thread {request.source[:12]}", "core", said, request.system, [], request.model)
    options = session_options(load_config())
    tried = replace(options, threshold=request.threshold, threshold_tokens=None, target_ratio=request.ratio)
    now = replay(log, window=request.window, options=options, compared=False, judged=True)
    then = replay(log, window=request.window, options=tried)
    runs = [_run("as configured", now), _run("with these settings", then), _run("without compaction", then, "cached")]
    return TrialResult(runs, then.notes)


def _run(name: str, found: Replay, way: str = "everthread") -> TrialRun:
    held = found.way(way)
    facts = held.facts
    return TrialRun(
        name,
        [call.use.prompt for call in held.calls],
        [made.call for made in found.compactions] if way == "everthread" else [],
        None if held.cost is None else float(held.cost),
        (facts.retained, facts.recoverable, facts.lost) if facts is not None else None,
        held.refused is not None,
    )
