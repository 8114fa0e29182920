"""Conversations over HTTP, under `/api`. Here their limits, for `config` and for who keeps them."""

from __future__ import annotations

from dataclasses import dataclass

QUEUE = 16
RUNNING = 64
AGENTS = 128
IDLE_SECONDS = 600.0
LEASE_SECONDS = 30.0
POLL_SECONDS = 0.5
SWEEP_SECONDS = 10.0
HEARTBEAT_SECONDS = 15.0
WAIT_SECONDS = 600.0
FULL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DeskOptions:
    """Of one process."""

    queue: int = QUEUE
    """Messages of one thread that wait for their turn."""
    running: int = RUNNING
    """Turns at the same time."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the models that clients may choose."""
    agents: int = AGENTS
    """Threads that are kept in memory between turns."""
    idle_seconds: float = IDLE_SECONDS
    """After which they are not any more."""
    lease_seconds: float = LEASE_SECONDS
    """After so long without a sign of life another process takes a thread over."""
    poll_seconds: float = POLL_SECONDS
    """How often the store is asked for what another process does."""
    sweep_seconds: float = SWEEP_SECONDS
    """How often it is asked for messages whose process is gone."""
    full_seconds: float = FULL_SECONDS
    """When to come again after a full queue."""
    kept_logs: int = 256
    """Turns that are over and can be read again event by event."""
    log_events: int = 4_096
    """Of one turn."""
