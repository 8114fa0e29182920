"""One conversation, replayed: ours, and the ways it is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.registry import create_engine
from everthread.config import Config, home_directory
from everthread.conversation.options import SessionOptions
from everthread.core.exchange import System
from everthread.core.messages import Message, calls_of, text_of
from everthread.core.tokens import TokenCounter
from everthread.factory.compaction import run_sync
from everthread.factory.conversations import session_options
from everthread.lab.logs.base import Log, Said
from everthread.lab.replay import facts, others
from everthread.lab.replay.plan import PAUSE, STEP, Plan, Planned, planned
from everthread.lab.replay.player import Compact, Player
from everthread.lab.replay.result import Replay, Way
from everthread.lab.replay.simulator import Prompts, remembered
from everthread.providers.window import catalogue_window

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
    log = conversation if isinstance(conversation, Log) else Log("messages", "core", [Said(m) for m in conversation])
    log = replace(log, system=log.system if system is None else system, tools=list(tools) or log.tools)
    chosen = replace(options or session_options(Config()), background=False)
    asked = model or log.model or DEFAULT_MODEL
    plan = planned(log, times=times, pause=pause, step=step, ttl=remembered(asked, chosen.cache_ttl))
    models = tuple(model or call.model or asked for call in plan.calls)
    size = window or catalogue_window(models[0]).tokens
    prompts = Prompts()
    outputs = tuple(_output(call, prompts.counter(name)) for call, name in zip(plan.calls, models, strict=True))
    setting = others.Setting(
        plan.calls, models, outputs, size, chosen.cache_ttl, time.time() if plan.began is None else plan.began,
        log.system, log.tools, prompts, _counted(progress, len(plan.calls) * (3 if compared else 1)),
    )  # fmt: skip
    player = Player(setting, chosen, _engine(engine, engine_options), compact)
    asking = compared if judged is None else judged
    told = facts.stated(plan.messages) if compared or asking else []
    async with player.play() as held:
        known = await facts.judged(told, held) if asking else None
        threshold = held.threshold
    ways = [Way(OURS, "Everthread", player.played, player.refused, known)]
    if compared:
        ways += _compared(setting, told)
    name = engine if isinstance(engine, str) else "given"
    return Replay(
        log.source, ", ".join(dict.fromkeys(models)), size, threshold, name, plan.timed, ways, player.compactions,
        [*log.warnings, *plan.notes, *player.notes], _recorded(plan), time.perf_counter() - started,
    )  # fmt: skip


def replay(conversation: Log | Sequence[Message], **how: Any) -> Replay:
    """Like `areplay`, from a script or from inside a running event loop."""
    return run_sync(areplay(conversation, **how))


def _compared(setting: others.Setting, told: Sequence[facts.Stated]) -> list[Way]:
    uncached, cached = others.unmanaged(setting)
    dropped, left = others.truncated(setting, cached)
    return [uncached, cached, replace(dropped, facts=facts.judged_alone(told, left))]


def _engine(
    engine: str | Callable[[Services], ContextEngine], options: dict[str, Any] | None
) -> Callable[[Services], ContextEngine]:
    if not isinstance(engine, str):
        return engine
    name = engine
    return lambda services: create_engine(name, services, dict(options or {}), home=home_directory())


def _output(call: Planned, counter: TokenCounter) -> int:
    """Tokens of the answer: as they were reported, else as they are counted."""
    if call.usage is not None and call.usage.output_tokens:
        return call.usage.output_tokens
    calls = sum(counter.text(made.name) + counter.text(made.arguments) + _CALL for made in calls_of(call.answer))
    return counter.text(text_of(call.answer)) + counter.text(call.answer.get("reasoning_content") or "") + calls


def _recorded(plan: Plan) -> float | None:
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
