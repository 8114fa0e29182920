"""Events of the gateway, in addition to those of a conversation."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.thread.events import Event


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
class CompactionReceipt(Event):
    """A rewrite goes upstream for the first time."""

    kind = "receipt"
    text: str
    """The effect, and how to look up what was compacted, in one line."""


@dataclass(frozen=True, slots=True)
class Slimmed(Event):
    """A request had too many bytes: old images were dropped from its beginning and big results stored."""

    kind = "slimmed"
    covered: int
    chars_before: int
    chars_after: int
    stored: int
    """Results that are kept in the store and cited."""


@dataclass(frozen=True, slots=True)
class RecordFailed(Event):
    """Messages or usage could not be stored; the request continued."""

    kind = "record_failed"
    error: str


@dataclass(frozen=True, slots=True)
class Unmanaged(Event):
    """A request was forwarded unchanged, because the provider keeps or changes the history itself."""

    kind = "unmanaged"
    why: str
    """The field that says so."""


@dataclass(frozen=True, slots=True)
class RecallAnswered(Event):
    """The model looked up compacted content: the gateway answered its `recall` calls, hidden from the client."""

    kind = "recall"
    rounds: int
    calls: int
