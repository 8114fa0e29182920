"""Values of the search: queries, hits, and passages that may answer a message."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from everthread.core.search.search_results import Neighbour
from everthread.store.records import DEFAULT_TENANT

MIN_QUESTION_WORDS = 3
"""A query of at least this many words is a question."""
MIN_SENTENCE_WORDS = 5
"""A query with this many words is a whole question, with or without a question mark."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search text and its bounds. `text`: words, "phrases", prefix*; anything else is taken literally."""

    text: str
    tenant: str | None = DEFAULT_TENANT
    """None: all tenants'."""
    thread: str | None = None
    include_family: bool = False
    """With a thread: also in all threads of its client's session, and in those it branched from."""
    session: str | None = None
    role: str | None = None
    tool: str | None = None
    path: str | None = None
    """Only calls with this path, or a part of one, among their arguments, and their results."""
    since: float | None = None
    until: float | None = None
    limit: int = 20
    offset: int = 0

    @property
    def is_literal(self) -> bool:
        """Return whether it is searched as typed: it has a phrase, a prefix or a path."""
        return bool(self.path or {'"', "*"} & set(self.text))

    @property
    def is_question(self) -> bool:
        """Return whether it has several words that are not searched as typed."""
        return len(self.text.split()) >= MIN_QUESTION_WORDS and not self.is_literal

    @property
    def is_sentence(self) -> bool:
        """Return whether it is a whole question rather than a few words."""
        ends_as_question = self.text.rstrip().endswith(("?", "？"))
        is_long = len(self.text.split()) >= MIN_SENTENCE_WORDS
        return self.is_question and (ends_as_question or is_long)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One search result. `message` is None for a stored output, `output` is None for a message."""

    message: int | None
    output: str | None
    thread: str
    session: str
    role: str
    tool: str
    created: float
    snippet: str
    score: float
    before: Neighbour | None = None
    """The messages before and after it; None if not shown. `Store.find` looks them up."""
    after: Neighbour | None = None
    is_passage: bool = False
    """Whether `snippet` is a passage that may answer the query, in the length in which it is shown."""


@dataclass(frozen=True, slots=True)
class HitPage:
    """A page of hits, each with its neighbours."""

    hits: tuple[SearchHit, ...]
    has_more: bool
    """Another page follows."""
    is_approximate: bool
    """True if no text holds every word: the results hold the most distinctive ones."""


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """A message, and the bounds of a search for passages that answer it. Unlike in a search, no word is required.

    Calls of lookup tools are skipped: they would be found instead of the original passages.
    """

    text: str
    tenant: str | None
    """None: every tenant's."""
    thread: str | None = None
    """None: in all of the tenant's threads."""
    include_family: bool = False
    """With a thread: also in all threads of its client's session, and in those it branched from."""
    visible_messages: AbstractSet[int] = frozenset()
    """Ids of messages in the context, which are left out."""
    speech_only: bool = False
    """Leave out calls and results, which a tool can repeat."""
    limit: int = 10
    min_closeness: float = 0.0
    """Return nothing unless one of the best passages holds at least this share of the query (0 to 1)."""
    min_other_closeness: float = 0.0
    """The share of the query that every passage after the best ones must hold."""
    max_chars: int = 600
    """The most characters of one passage."""
    role: str | None = None
    tool: str | None = None
    for_page: bool = False
    """Make a page to be read: users' words count more than the model's and tools', a call and its result are one
    passage, no passage repeats another, and long passages use the room that short ones leave."""
    now: float | None = None
    """The moment that `yesterday` refers to; None: now."""


@dataclass(frozen=True, slots=True)
class RecallPassage:
    """A passage that may answer. `message` is None for a stored output, `output` is None for a message."""

    message: int | None
    output: str | None
    thread: str
    role: str
    tool: str
    turn: int
    """The number of its turn in the thread, from 1; 0 before the first turn."""
    created: float
    text: str
    """The original words without secrets; `…` marks a cut."""
    score: float
    closeness: float
    """The share of the query that the passage itself holds, 0 to 1."""
