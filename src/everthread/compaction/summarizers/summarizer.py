"""The interface of a summariser: the request it gets and the draft it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from everthread.compaction.summary.sections import Sections
from everthread.core.messages import Message

if TYPE_CHECKING:
    from everthread.compaction.history.thread_facts import (
        ThreadState,
    )
    from everthread.compaction.journal.journal import Journal


@dataclass(frozen=True, slots=True)
class RefusedDraft:
    """A draft of this compaction that could not be used."""

    route: str
    """The summariser that wrote it."""
    reason: str
    is_route_exhausted: bool
    """Whether its route used both attempts and is not tried again."""


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """The middle of a conversation, to be summarised within a budget."""

    messages: Sequence[Message]
    """The messages that the summary will replace, unpruned and without earlier summaries."""
    pruned: Sequence[Message]
    """The same messages for a model: old outputs are one line each, secrets are redacted."""
    budget: int
    """Tokens for the sections."""
    previous: Sections = field(default_factory=dict)
    """The sections of the summary this one replaces, without the user's words; empty for the first."""
    task: str = ""
    """The user's unfulfilled requests, word for word: already known, for context."""
    focus: str | None = None
    ids: Sequence[int | None] = ()
    """Ids of the messages, if they have any."""
    manual: bool = False
    """Whether a person requested it and waits."""
    journal: Journal | None = None
    """The work so far, turn by turn, earlier compactions included."""
    state: ThreadState | None = None
    """The thread's state at the end of the messages."""
    is_stretch: bool = False
    """Whether the messages are only a stretch of the conversation; earlier ones are summarised elsewhere."""
    refused: tuple[RefusedDraft, ...] = ()
    """Drafts that were refused before, oldest first."""
    notes: Sequence[Sections] = ()
    """Summaries of successive stretches, oldest first, to be joined into one.

    Then `messages` is empty, and `previous` holds the same content joined.
    """


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of checking a summary against its sources."""

    facts: int = 0
    """Files and open errors that a summary should name."""
    present: int = 0
    """Number of those in the original summary."""
    added: int = 0
    """Number of those added by the engine."""
    checked: int = 0
    """Names and figures in the summary that can be looked up in the sources."""
    unverified: int = 0
    """Number of those in no source; they are marked."""


@dataclass(frozen=True, slots=True)
class SummaryDraft:
    """A summariser's draft. `author`: `journal`, or a model's name."""

    sections: Sections
    author: str
    warnings: tuple[str, ...] = ()
    usage: tuple[Mapping[str, Any], ...] = ()
    """The usage of each call to a model, with its model under `model`."""
    verification: Verification = Verification()
    route: str = ""
    """The summariser of a chain that wrote it."""
    was_repeated: bool = False
    """Whether the summariser was already called again, because its first answer was unusable."""


class Summarizer(Protocol):
    """A writer of summaries."""

    @property
    def name(self) -> str: ...

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft, or raise `SummaryError` if it cannot be written."""
        ...
