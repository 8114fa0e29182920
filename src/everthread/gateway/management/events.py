"""What the gateway tells beside a conversation's own events."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from everthread.conversation.events import Event


@dataclass(frozen=True, slots=True)
class Drifted(Event):
    """A client dropped thinking or cleared results in the part a rewrite covers; the rewrite is used all the same."""

    kind = "drift"
    covered: int
    """Messages of the client."""


@dataclass(frozen=True, slots=True)
class Branched(Event):
    """A client changed what was said before: `session` is a new thread that leaves `parent` there."""

    kind = "branch"
    parent: str
    length: int
    """How many messages both share."""


@dataclass(frozen=True, slots=True)
class Rewritten(Event):
    """A new rewrite stands for the beginning of a client's history."""

    kind = "rewrite"
    covered: int
    tokens_before: int
    tokens_after: int
    author: str
    depth: int
    """Which compaction of this history it is."""
    background: bool = False
    cost: Decimal | None = None
    """Dollars, for its summary; None where a price is unknown."""


@dataclass(frozen=True, slots=True)
class CompactionReceipt(Event):
    """A rewrite goes upstream for the first time."""

    kind = "receipt"
    text: str
    """What it did, and how to get back what left, in one line."""


@dataclass(frozen=True, slots=True)
class Slimmed(Event):
    """After a request of too many bytes: the beginning without old images, its big results stored."""

    kind = "slimmed"
    covered: int
    chars_before: int
    chars_after: int
    stored: int
    """Results that are kept in the store and cited."""


@dataclass(frozen=True, slots=True)
class RecordFailed(Event):
    """What was said or used could not be stored; the request went on without."""

    kind = "record_failed"
    error: str


@dataclass(frozen=True, slots=True)
class Unmanaged(Event):
    """A request went as it came, because the provider keeps or changes the history itself."""

    kind = "unmanaged"
    why: str
    """The field that says so."""


@dataclass(frozen=True, slots=True)
class RecallAnswered(Event):
    """The model looked up what was taken out: its calls of `recall` were answered here, hidden from the client."""

    kind = "recall"
    rounds: int
    calls: int
