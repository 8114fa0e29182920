"""Conversations over HTTP, under `/api`. This module holds their limits, for `config` and for the queue."""

from __future__ import annotations

from dataclasses import dataclass

HEARTBEAT_INTERVAL_SECONDS = 15.0
MAX_WAIT_SECONDS = 600.0
"""Seconds that a request waits at most for the end of its turn."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Limits of the queue in one process."""

    max_queued: int = 16
    """Maximum messages of one thread that wait for their turn."""
    max_running: int = 64
    """Maximum turns at the same time."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the models that clients may choose."""
    max_agents: int = 128
    """Maximum threads that are kept in memory between turns."""
    idle_seconds: float = 600.0
    """Seconds without a turn after which a thread is dropped from memory."""
    lease_seconds: float = 30.0
    """Seconds without renewal after which another process may take over a thread."""
    poll_seconds: float = 0.5
    """Seconds between checks of the store for turns that another process runs."""
    sweep_seconds: float = 10.0
    """Seconds between checks for messages whose process has ended."""
