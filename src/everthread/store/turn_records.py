"""Values about turns that wait for their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TurnState = Literal["queued", "running", "answered", "failed", "cancelled", "interrupted"]
OPEN_TURN_STATES: tuple[TurnState, ...] = ("queued", "running")


@dataclass(frozen=True, slots=True)
class NewQueuedTurn:
    """A message to be answered. A message whose `key` is already in the thread is not queued again."""

    id: str
    thread: str
    tenant: str
    message: Mapping[str, Any]
    """The message as JSON."""
    key: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options for the answering process."""


@dataclass(frozen=True, slots=True)
class QueuedTurn:
    """A user's message that waits, is being answered or has ended, with its result."""

    id: str
    thread: str
    tenant: str
    position: int
    """The turn's position in the queue of its thread, from 1."""
    key: str
    state: TurnState
    message: Mapping[str, Any]
    options: Mapping[str, Any]
    result: Mapping[str, Any] | None
    """The outcome, or None while the turn is open."""
    cancel_requested: bool
    """Whether a client asked to cancel it."""
    created: float
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the turn has not ended."""
        return self.state in OPEN_TURN_STATES


@dataclass(frozen=True, slots=True)
class TurnClaim:
    """The turn that a process may answer next, or the running turns whose process is gone."""

    turn: QueuedTurn | None
    lost_turns: tuple[QueuedTurn, ...] = ()
    """Turns still marked as running; the holder of the lease must end them."""
