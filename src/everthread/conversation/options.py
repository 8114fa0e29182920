"""The settings of a conversation, its model, and everything that is injected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from everthread.compaction.engine import ContextEngine, Events, Services
from everthread.compaction.summary import Summarizer
from everthread.context.policy import ContextOptions
from everthread.context.recovery import ModelLimits
from everthread.conversation.events import Event, Listener
from everthread.conversation.toolbox import TOOLS_SHARE
from everthread.core.cache_control import cache_route
from everthread.core.outputs import OutputLimits
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.types import Api, Request, StreamingModel, System
from everthread.store.store import Store

RecallScope = Literal["thread", "tenant"]
MAX_TOKENS = 800
"""About four excerpts. Nothing of it is cached, so that it is paid for in full with every call that has it."""
CLOSENESS = 0.5
EXCERPTS = 4
EXCERPT_CHARS = 600


@dataclass(frozen=True, slots=True)
class RecallOptions:
    enabled: bool = True
    scope: RecallScope = "thread"
    max_tokens: int = MAX_TOKENS
    closeness: float = CLOSENESS
    """Nothing is injected unless one place holds so much of what was asked, its rarest words counting most."""


@dataclass(frozen=True, slots=True)
class Route:
    """Which model is talked to, and by which way. Without `model` the caller does the sending."""

    name: str
    api: Api
    window: int
    source: str = "given"
    """Where the window is known from."""
    base_url: str = ""
    provider: str = "auto"
    headers: str = ""
    """Headers that change the window, in one text."""
    model: StreamingModel | None = None

    @property
    def caches_by_marks(self) -> bool:
        return cache_route(self.name, self.provider, self.base_url) is not None


@dataclass(frozen=True, slots=True)
class SessionOptions(ContextOptions):
    """Settings of a conversation, named as in the configuration."""

    tools_share: float = TOOLS_SHARE
    """Of the threshold; where tools take more, those that a thread does not use are left out."""
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    tables: bool = False
    """JSON lists of objects with the same keys are given as tables."""
    recall: RecallOptions = field(default_factory=RecallOptions)

    def output_limits(self, budget: Budget) -> OutputLimits:
        ceiling = 2 * budget.threshold
        per_tool = {tool: ceiling if limit is None else limit for tool, limit in self.per_tool.items()}
        return OutputLimits(budget.result_chars, budget.turn_chars, budget.preview_chars, ceiling, per_tool)


@dataclass(frozen=True, slots=True)
class SummarizerContext:
    """What a summariser may need of the conversation it works for."""

    route: Route
    counter: TokenCounter
    live: Callable[[], Request | None]
    """The last request that was sent: its prefix is warm."""
    events: Events
    lost: Callable[[Request], None]
    """Called with a request that was cancelled while it was under way."""
    warm: Callable[[], bool] = lambda: True
    """Whether the provider's cache may still hold the last request."""


class Hooks:
    """What memory and the like do around a compaction; here nothing."""

    async def before_compaction(self, session: str) -> None:
        """Called before the commit: save what must outlive the compaction."""

    async def after_compaction(self, session: str, previous: str) -> None:
        """Called after the commit; the session is the new one."""


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> object: ...


def _call_later(seconds: float, then: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, then)


def ignore_event(event: Event) -> None:
    """The default listener."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a conversation needs from outside."""

    store: Store
    route: Route
    engine: Callable[[Services], ContextEngine]
    summarizer: Callable[[SummarizerContext], Summarizer]
    options: SessionOptions = SessionOptions()
    system: System | Callable[[], System] = None
    """The system prompt, or who writes it: asked at a session's start only."""
    listener: Listener = ignore_event
    hooks: Hooks = field(default_factory=Hooks)
    clock: Callable[[], float] = time.monotonic
    """Seconds that only grow."""
    wall: Callable[[], float] = time.time
    timer: Callable[[float, Callable[[], None]], Timer] = _call_later
    """Schedules a call after so many seconds."""
    limits: ModelLimits | None = None
    """What providers taught, where conversations share it; None: this one's own."""
    closing: Sequence[Callable[[], Coroutine[Any, Any, Any]]] = ()
    """What is closed with the conversation."""
    summary_key: bytes = b""
    """The home's key: summaries carry a tag made with it."""

    def written_system(self) -> System:
        return self.system() if callable(self.system) else self.system
