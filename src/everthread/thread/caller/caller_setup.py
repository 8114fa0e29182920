"""The dependencies and settings of threads whose callers send their whole history."""

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
from everthread.thread.engines.engine_jobs import DEFAULT_COMPACTION_SECONDS
from everthread.thread.engines.summary_wait import StartTimer, call_later
from everthread.thread.engines.worker_processes import MAX_PROCESSES
from everthread.thread.events import Listener, ignore_event
from everthread.thread.options import SessionOptions, SummarizerContext


def is_never_sole_writer() -> bool:
    """Return False, because other processes may write to the store at any time."""
    return False


@dataclass(frozen=True, slots=True)
class CallerSetup:
    """The dependencies and settings of threads whose callers send their whole history."""

    store: Store
    make_engine: Callable[[Services], ContextEngine]
    engine_key: str
    """Identifies the engine and its options. A rewrite is used only with the engine and options that made it."""
    make_summarizer: Callable[[SummarizerContext], Summarizer]
    find_window: Callable[[Api, str, str, str], Awaitable[int]]
    """Look up a model's window: `window(api, model, upstream, betas)`. Called once per model and upstream."""
    options: SessionOptions = field(default_factory=SessionOptions)
    uses_processes: bool = False
    """Whether the engine runs in worker processes, which only built-in engines can; otherwise it runs in a thread."""
    compaction_seconds: float = DEFAULT_COMPACTION_SECONDS
    """Time limit of one compaction, shorter than a request's. After it the request continues without the compaction."""
    compaction_processes: int = MAX_PROCESSES
    """Number of compactions that may run in worker processes at the same time."""
    summary_key: bytes = b""
    """The store's secret, used to tag the summaries made here; `find_summary_key` derives a key for each tenant."""
    is_sole_writer: Callable[[], bool] = is_never_sole_writer
    """Return whether no other process extends these threads now. If so, a call can be stored with its answer."""
    listener: Listener = ignore_event
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
