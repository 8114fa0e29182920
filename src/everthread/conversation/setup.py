"""Everything a conversation needs from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from everthread.core.types import System
from everthread.thread.model_limits import ModelLimits
from everthread.thread.route import Route
from everthread.thread.thread_setup import ThreadSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(ThreadSetup):
    """The dependencies and settings of a conversation, and its model."""

    route: Route
    system: System | Callable[[], System] = None
    """The system prompt, or a function that builds it at a session's start."""
    before_compaction: Callable[[str], Awaitable[None]] | None = None
    """Called with the session's id before a compaction is committed, to save data that must outlive it."""
    limits: ModelLimits | None = None
    """Limits learnt from providers, if conversations share them, or None for separate limits."""
    resources: AsyncExitStack | None = None
    """Closed with the conversation."""

    def build_system(self) -> System:
        return self.system() if callable(self.system) else self.system
