"""Values about turns that wait for their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TurnState = Literal[
    "queued", "running", "answered", "failed", "cancelled", "interrupted"
]
OPEN_TURN_STATES: tuple[TurnState, ...] = ("queued", "running")


@dataclass(frozen=True, slots=True)
class NewQueuedTurn:
    """A message to be answered. The same `key` in the same thread is queued once, however often it is given."""

    id: str
    thread: str
    tenant: str
    message: Mapping[str, Any]
    """JSON values."""
    key: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options for the answering process."""


@dataclass(frozen=True, slots=True)
class QueuedTurn:
    """A message and its answer."""

    id: str
    thread: str
    tenant: str
    position: int
    """Among the messages of its thread, from 1 on."""
    key: str
    state: TurnState
    message: Mapping[str, Any]
    options: Mapping[str, Any]
    result: Mapping[str, Any] | None
    """The outcome; None while the turn is open."""
    cancel_requested: bool
    """Whether a client asked to cancel it."""
    created: float
    started: float | None = None
    ended: float | None = None

    @property
    def is_open(self) -> bool:
        """Return whether it has not ended."""
        return self.state in OPEN_TURN_STATES


@dataclass(frozen=True, slots=True)
class TurnClaim:
    """The next turn of a thread, if there is one, and running turns whose process ended."""

    turn: QueuedTurn | None
    lost_turns: tuple[QueuedTurn, ...] = ()
    """Still marked as running; the holder of the lease ends them."""
