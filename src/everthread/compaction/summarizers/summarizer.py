"""The interface of a summariser: the request it gets and the draft it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from everthread.compaction.summary.sections import Sections
from everthread.core.messages import Message

if TYPE_CHECKING:
    from everthread.compaction.history.thread_state import (
        ThreadState,
    )
    from everthread.compaction.journal.journal import Journal

JOURNAL_AUTHOR = "journal"
"""The name of the journal as a summariser, and as the author of a summary."""


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
    """The sections of the earlier summary, without the user's words, or an empty mapping for a first summary."""
    task: str = ""
    """The user's open requests, word for word. The engine writes them itself; they are given as context."""
    focus: str | None = None
    ids: Sequence[int | None] = ()
    """Ids of the messages, if they have any."""
    manual: bool = False
    """Whether a person asked for the compaction and waits."""
    journal: Journal | None = None
    """The work so far, turn by turn, earlier compactions included."""
    state: ThreadState | None = None
    """The thread's state at the end of the messages."""
    is_stretch: bool = False
    """Whether the messages are only a part of the conversation, because other summaries cover earlier messages."""
    refused: tuple[RefusedDraft, ...] = ()
    """Drafts that were refused before, oldest first."""
    notes: Sequence[Sections] = ()
    """Summaries of successive parts of the conversation, oldest first, to be joined into one.

    With notes, `messages` is empty, and `previous` holds their joined sections.
    """

    @property
    def last_refusal_reason(self) -> str:
        """The reason why the last draft was refused, or an empty string if none was."""
        return self.refused[-1].reason if self.refused else ""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of checking a summary against its sources."""

    facts: int = 0
    """Number of changed files and open errors that the summary should name."""
    present: int = 0
    """Number of these facts that the summariser's draft named."""
    added: int = 0
    """Number of these facts that the engine added."""
    checked: int = 0
    """Number of names and figures in the summary that were looked up in the sources."""
    unverified: int = 0
    """Number of these names and figures that no source confirms; their lines are marked."""


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
    """The summariser of a chain that wrote the draft."""
    was_retried: bool = False
    """Whether the summariser asked its model a second time, because the first answer was unusable."""

    @property
    def is_from_model(self) -> bool:
        """Whether a model wrote the draft, not the journal."""
        return self.author != JOURNAL_AUTHOR


class Summarizer(Protocol):
    """A writer of summaries."""

    @property
    def name(self) -> str: ...

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft, or raise `SummaryError` if it cannot be written."""
        ...


def may_call_model(summarizer: Summarizer) -> bool:
    """Return whether a summariser may call a model. If so, its messages must be pruned and redacted."""
    return summarizer.name != JOURNAL_AUTHOR
