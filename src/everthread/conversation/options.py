"""What a conversation is made of: its settings, its model, and all that is given from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol

from everthread.compaction.engine import ContextEngine, Events, Services
from everthread.conversation.events import Event, Listener
from everthread.core import budget as defaults
from everthread.core import toolchoice
from everthread.core.budget import Budget
from everthread.core.caching import cache_route
from everthread.core.exchange import Api, Request, StreamingModel, System
from everthread.core.outputs import OutputLimits
from everthread.core.summary import Summarizer
from everthread.core.tokens import TokenCounter
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
class SessionOptions:
    """Settings of a conversation, named as in the configuration."""

    enabled: bool = True
    background: bool = True
    threshold: float = defaults.THRESHOLD
    target_ratio: float = defaults.TARGET_RATIO
    protect_last_n: int = defaults.PROTECT_LAST_N
    threshold_tokens: int | None = None
    user_words: float = defaults.USER_WORDS
    tools_share: float = toolchoice.SHARE
    """Of the threshold; where tools take more, those that a thread does not use are left out."""
    result_chars: int = defaults.RESULT_CHARS
    turn_chars: int = defaults.TURN_CHARS
    preview_chars: int = defaults.PREVIEW_CHARS
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    cache_ttl: str = "5m"
    economics: bool = True
    """Weigh in dollars when to compact, where prices are known."""
    max_tokens: int | None = None
    recall: RecallOptions = field(default_factory=RecallOptions)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`threshold`, `threshold_tokens` and `target_ratio` of single models, by name or glob."""

    def for_model(self, name: str) -> SessionOptions:
        """The settings that hold for a model: its own name counts first, then the longest glob that fits."""
        fitting = [pattern for pattern in self.models if fnmatchcase(name, pattern)]
        chosen = name if name in self.models else max(fitting, key=len, default=None)
        return self if chosen is None else replace(self, models={}, **self.models[chosen])

    def budget(self, window: int) -> Budget:
        cap = self.max_tokens if self.max_tokens is not None and self.max_tokens < window else None
        return Budget.for_window(
            window,
            threshold=self.threshold,
            target_ratio=self.target_ratio,
            protect_last_n=self.protect_last_n,
            threshold_tokens=self.threshold_tokens,
            max_output=cap,
            result_chars=self.result_chars,
            turn_chars=self.turn_chars,
            preview_chars=self.preview_chars,
            user_words=self.user_words,
        )

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
    """To be told of a request that was given up while it was under way."""
    warm: Callable[[], bool] = lambda: True
    """Whether the provider's cache may still hold it."""


class Hooks(Protocol):
    """Who wants to be told around a compaction: memory, for one."""

    async def before_compaction(self, session: str) -> None:
        """The compaction is about to be committed: what must outlive it is written down now."""
        ...

    async def after_compaction(self, session: str, previous: str) -> None: ...


class NoHooks:
    async def before_compaction(self, session: str) -> None:
        """Nobody listens."""

    async def after_compaction(self, session: str, previous: str) -> None:
        """Nobody listens."""


class Timer(Protocol):
    """Something that will happen, unless it is called off."""

    def cancel(self) -> None: ...


def _call_later(seconds: float, then: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, then)


def ignore_event(event: Event) -> None:
    """For whoever does not listen."""


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
    hooks: Hooks = field(default_factory=NoHooks)
    clock: Callable[[], float] = time.monotonic
    """Seconds that only grow."""
    wall: Callable[[], float] = time.time
    timer: Callable[[float, Callable[[], None]], Timer] = _call_later
    """Does something after so many seconds."""
    closing: Sequence[Callable[[], Coroutine[Any, Any, Any]]] = ()
    """What is closed with the conversation."""

    def written_system(self) -> System:
        return self.system() if callable(self.system) else self.system
