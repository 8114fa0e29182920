"""Messages that wait for their turn, and how turns ended: what several processes need to share the work on threads.

A message is queued before anybody is told that it was taken. One process at a time, the one with the thread's lease,
answers the queue in order. A turn whose process vanished is marked by the next one and never begun again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from everthread.store.base import Lease

TurnState = Literal["queued", "running", "answered", "failed", "cancelled", "interrupted"]
OPEN: tuple[TurnState, ...] = ("queued", "running")


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A message to be answered. The same `key` in the same thread is queued once, however often it is given."""

    id: str
    thread: str
    tenant: str
    message: Mapping[str, Any]
    """JSON values."""
    key: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What whoever answers it must know besides."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its answer."""

    id: str
    thread: str
    tenant: str
    place: int
    """Among the messages of its thread, from 1 on."""
    key: str
    state: TurnState
    message: Mapping[str, Any]
    options: Mapping[str, Any]
    result: Mapping[str, Any] | None
    """What came of it; None while it is open."""
    cancel: bool
    """Somebody asked to stop it."""
    created: float
    started: float | None = None
    ended: float | None = None

    @property
    def open(self) -> bool:
        """It is not over."""
        return self.state in OPEN


@dataclass(frozen=True, slots=True)
class Begun:
    """The next turn of a thread, if there is one, and those whose process vanished in the middle."""

    turn: Turn | None
    lost: tuple[Turn, ...] = ()
    """Still marked as running; the holder of the lease ends them."""


class QueueStore(Protocol):
    """The part of a store that is about turns."""

    async def queue_turn(self, new: NewTurn, *, most: int) -> Turn | None:
        """The turn: this, or the one that has the key already. None where `most` are waiting."""
        ...

    async def turn(self, turn_id: str, *, tenant: str) -> Turn:
        """`UnknownIdError` where this tenant has none of this id."""
        ...

    async def turns(self, thread: str, *, only_open: bool = False, limit: int = 50, offset: int = 0) -> list[Turn]:
        """Those of a thread: the newest first, open ones in the order of their answers."""
        ...

    async def begin_turn(self, lease: Lease) -> Begun:
        """Take the first turn that waits. Not while turns are lost: they are ended first."""
        ...

    async def end_turn(self, turn_id: str, state: TurnState, result: Mapping[str, Any], *, lease: Lease) -> Turn:
        """Say how a running turn ended; one that is over stays as it is."""
        ...

    async def cancel_turn(self, turn_id: str, *, tenant: str) -> Turn:
        """A waiting turn is cancelled; for a running one its process is asked to."""
        ...

    async def idle_queues(self, *, limit: int = 50) -> list[str]:
        """Threads with open turns that nobody holds."""
        ...
