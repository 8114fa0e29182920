"""Everything that the threads of callers need from outside."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.types import Api
from everthread.store.records import DEFAULT_TENANT
from everthread.store.store import Store
from everthread.thread.engine_jobs import DEFAULT_COMPACTION_SECONDS
from everthread.thread.events import Event, Listener
from everthread.thread.options import SessionOptions, SummarizerContext
from everthread.thread.summary_wait import StartTimer, call_later
from everthread.thread.worker import MAX_PROCESSES


def _ignore_event(event: Event) -> None:
    """Drop an event: the default listener."""


def is_never_alone() -> bool:
    """Return False: other processes may write to the store at any time."""
    return False


@dataclass(frozen=True, slots=True)
class CallerSetup:
    """Everything that the threads of callers need from outside."""

    store: Store
    engine: Callable[[Services], ContextEngine]
    engine_key: str
    """Names the engine with its options: a rewrite is used only with the engine and options that made it."""
    summarizer: Callable[[SummarizerContext], Summarizer]
    window: Callable[[Api, str, str, str], Awaitable[int]]
    """Return a model's window at an address: `window(api, model, upstream, betas)`; called once for each."""
    options: SessionOptions = field(default_factory=SessionOptions)
    uses_processes: bool = False
    """Whether the engine plans and finishes in worker processes, as only a built-in one can; else in a thread."""
    compaction_seconds: float = DEFAULT_COMPACTION_SECONDS
    """Time limit of one compaction, below that of a request. The request then continues without the compaction."""
    compaction_processes: int = MAX_PROCESSES
    """Number of compactions that may run in worker processes at the same time."""
    summary_key: bytes = b""
    """The store's secret, which proves that we made a summary; `find_summary_key` derives each tenant's key."""
    is_alone: Callable[[], bool] = is_never_alone
    """Whether no other process extends these threads now. Then a call can be stored with its answer."""
    listener: Listener = _ignore_event
    clock: Callable[[], float] = time.monotonic
    """Monotonic clock, in seconds."""
    wall_clock: Callable[[], float] = time.time
    timer: StartTimer = call_later
    """Schedule a call after a number of seconds."""

    def find_summary_key(self, tenant: str) -> bytes:
        """Return the key that tags this tenant's summaries, so that another tenant's summary is not accepted.

        The default tenant uses the store's own key, like `everthread compress`.
        """
        if not self.summary_key or tenant == DEFAULT_TENANT:
            return self.summary_key
        return hmac.digest(self.summary_key, tenant.encode(), "sha256")
