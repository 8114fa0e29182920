"""The dependencies and settings that all threads need, and those of their summarisers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from everthread.compaction.engine import ContextEngine, ReportProgress, Services
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.tokens import TokenCounter
from everthread.core.types import ModelRequest
from everthread.store.store import Store
from everthread.thread.engines.summary_wait import StartTimer, call_later
from everthread.thread.events import Listener, ignore_event
from everthread.thread.options import SessionOptions
from everthread.thread.route import Route

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
    """Called before each call of a model, or None if every call is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSetup:
    """The dependencies and settings of threads."""

    store: Store
    make_engine: Callable[[Services], ContextEngine]
    make_summarizer: Callable[[SummarizerContext], Summarizer]
    options: SessionOptions = field(default_factory=SessionOptions)
    summary_key: bytes = b""
    """The store's secret, used to tag the summaries made here, so that a forged one is not accepted."""
    listener: Listener = ignore_event
    clock: Callable[[], float] = time.monotonic
    """A monotonic clock, in seconds."""
    wall_clock: Callable[[], float] = time.time
    timer: StartTimer = call_later
    """Schedules a call after a number of seconds."""
