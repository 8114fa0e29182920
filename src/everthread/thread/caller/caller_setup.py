"""The dependencies and settings of threads whose callers send their whole history."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from everthread.core.types import Api
from everthread.store.records import DEFAULT_TENANT
from everthread.thread.engines.engine_jobs import DEFAULT_COMPACTION_SECONDS
from everthread.thread.engines.worker_processes import MAX_PROCESSES
from everthread.thread.thread_setup import ThreadSetup


def is_never_sole_writer() -> bool:
    """Return False, because other processes may write to the store at any time."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerSetup(ThreadSetup):
    """The dependencies and settings of threads whose callers send their whole history."""

    engine_key: str
    """Identifies the engine and its options. A rewrite is used only with the engine and options that made it."""
    find_window: Callable[[Api, str, str, str], Awaitable[int]]
    """Look up a model's window: `window(api, model, upstream, betas)`. Called once per model and upstream."""
    uses_processes: bool = False
    """Whether the engine runs in worker processes, which only built-in engines can; otherwise it runs in a thread."""
    compaction_seconds: float = DEFAULT_COMPACTION_SECONDS
    """Time limit of one compaction, shorter than a request's. After it the request continues without the compaction."""
    compaction_processes: int = MAX_PROCESSES
    """Number of compactions that may run in worker processes at the same time."""
    is_sole_writer: Callable[[], bool] = is_never_sole_writer
    """Return whether no other process extends these threads now. If so, a call can be stored with its answer."""

    def derive_summary_key(self, tenant: str) -> bytes:
        """Return the key that tags this tenant's summaries, so that another tenant's summary is not accepted.

        The default tenant uses the store's own key, like `everthread compress`.
        """
        if not self.summary_key or tenant == DEFAULT_TENANT:
            return self.summary_key
        return hmac.digest(self.summary_key, tenant.encode(), "sha256")
