"""The settings of a conversation, its model, and its other dependencies."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from everthread.compaction.engine import ContextEngine, ReportProgress, Services
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.caching.claude_cache_marks import find_cache_route
from everthread.core.caching.openai_cache_breakpoints import accepts_breakpoints
from everthread.core.caching.provider_diagnosis import ask_for_diagnosis
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.tool_outputs import OutputLimits
from everthread.core.types import Api, ModelRequest, StreamingModel, System
from everthread.store.store import Store
from everthread.thread.engines.summary_wait import StartTimer, call_later
from everthread.thread.events import Listener, ignore_event
from everthread.thread.model_limits import ModelLimits
from everthread.thread.policy.context_options import ContextOptions

RecallScope = Literal["thread", "tenant"]
MAX_RECALL_TOKENS = 800
"""Tokens of about four excerpts; they are never cached, so each call with excerpts pays the full price."""
MIN_CLOSENESS = 0.5
MAX_EXCERPTS = 4
EXCERPT_CHARS = 600
TOOLS_SHARE = 0.25
"""Share of the threshold that tool schemas may take before unused ones are left out."""


@dataclass(frozen=True, slots=True)
class RecallOptions:
    """Settings of the excerpts that a call gets. The field names are the keys of `config.yaml`."""

    enabled: bool = True
    scope: RecallScope = "thread"
    max_tokens: int = MAX_RECALL_TOKENS
    closeness: float = MIN_CLOSENESS
    """Minimum share of the question's words, weighted by rarity, that a passage must contain."""


@dataclass(frozen=True, slots=True)
class Route:
    """The model of a conversation and how to reach it. If `model` is None, the caller sends the requests."""

    name: str
    api: Api
    window: int
    source: str = "given"
    """The source of the window, as a text for the user."""
    base_url: str = ""
    provider: str = "auto"
    headers: str = ""
    """The headers that change the window, joined into one text."""
    model: StreamingModel | None = None

    @property
    def caches_by_marks(self) -> bool:
        """Whether the provider caches only up to marks that a request sets."""
        return find_cache_route(self.name, self.provider, self.base_url) is not None

    def ask_for_diagnosis(self, previous_id: str) -> dict[str, Any]:
        """Return the field that asks the provider why its cache missed, if it answers."""
        return ask_for_diagnosis(
            self.api, self.name, self.provider, self.base_url, previous_id=previous_id
        )

    @property
    def accepts_breakpoints(self) -> bool:
        """Whether the cache matches at breakpoints that a request can set."""
        return accepts_breakpoints(self.api, self.name, self.provider, self.base_url)


@dataclass(frozen=True, slots=True)
class SessionOptions(ContextOptions):
    """Settings of a thread. The field names are the keys of `config.yaml`."""

    tools_share: float = TOOLS_SHARE
    """Share of the threshold for tools; above it, tools that the thread does not use are left out."""
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    recall: RecallOptions = field(default_factory=RecallOptions)

    def output_limits(self, budget: Budget) -> OutputLimits:
        max_chars = 2 * budget.threshold
        per_tool = {
            tool: max_chars if limit is None else limit for tool, limit in self.per_tool.items()
        }
        return OutputLimits(
            budget.result_chars,
            budget.max_turn_result_chars,
            budget.preview_chars,
            max_chars,
            per_tool,
        )


CheckPermission = Callable[[ModelRequest], Awaitable[None]]
"""Raises `SummaryError` if the owner of a conversation may not spend a call."""


@dataclass(frozen=True, slots=True)
class SummarizerContext:
    """The parts of a conversation that its summariser may need."""

    route: Route
    counter: TokenCounter
    get_last_request: Callable[[], ModelRequest | None]
    """The last request that was sent, whose prefix is cached."""
    report: ReportProgress
    report_abandoned: Callable[[ModelRequest], None]
    """Called with a request that was cancelled in flight."""
    is_warm: Callable[[], bool] = lambda: True
    """Whether the provider's cache may still hold the last request."""
    check_permission: CheckPermission | None = None
    """Called before each call of a model; None if every call is allowed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a conversation needs from outside."""

    store: Store
    route: Route
    make_engine: Callable[[Services], ContextEngine]
    make_summarizer: Callable[[SummarizerContext], Summarizer]
    options: SessionOptions = SessionOptions()
    system: System | Callable[[], System] = None
    """The system prompt, or a function that builds it at a session's start."""
    listener: Listener = ignore_event
    before_compaction: Callable[[str], Awaitable[None]] | None = None
    """Called with the session's id before a compaction is committed, to save data that must outlive it."""
    clock: Callable[[], float] = time.monotonic
    """A monotonic clock, in seconds."""
    wall_clock: Callable[[], float] = time.time
    timer: StartTimer = call_later
    limits: ModelLimits | None = None
    """Limits learnt from providers, if conversations share them; None for separate limits."""
    close_callbacks: Sequence[Callable[[], Coroutine[Any, Any, Any]]] = ()
    """Called when the conversation is closed."""
    summary_key: bytes = b""
    """The store's secret, used to tag the summaries made here, so that a forged one is not accepted."""

    def build_system(self) -> System:
        return self.system() if callable(self.system) else self.system
