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
class TextQuery:
    """A text to search for, and the bounds of the search."""

    text: str
    tenant: str | None
    """None: search the texts of all tenants."""
    thread: str | None = None
    """None: search all of the tenant's threads."""
    include_family: bool = False
    """If a thread is given, also search all threads of its client's session, and the threads it branched from."""
    role: str | None = None
    tool: str | None = None
    visible_messages: AbstractSet[int] = frozenset()
    """Ids of messages in the context, which are left out."""
    limit: int = 10


@dataclass(frozen=True, slots=True)
class SearchQuery(TextQuery):
    """A search for texts that hold every word. `text`: words, "phrases", prefix*; anything else is taken literally."""

    tenant: str | None = DEFAULT_TENANT
    limit: int = 20
    offset: int = 0
    session: str | None = None
    path: str | None = None
    """Search only calls whose arguments hold this path or part of a path, and the results of these calls."""
    since: float | None = None
    until: float | None = None

    @property
    def is_literal(self) -> bool:
        """Whether the text is searched as typed: it has a phrase, a prefix or a path."""
        return bool(self.path or {'"', "*"} & set(self.text))

    @property
    def is_question(self) -> bool:
        """Whether the text has several words that are not searched as typed."""
        return len(self.text.split()) >= MIN_QUESTION_WORDS and not self.is_literal

    @property
    def is_sentence(self) -> bool:
        """Whether the text is a whole question rather than a few words."""
        ends_as_question = self.text.rstrip().endswith(("?", "？"))
        is_long = len(self.text.split()) >= MIN_SENTENCE_WORDS
        return self.is_question and (ends_as_question or is_long)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """The source of a text: a message, or a stored output."""

    message: int | None
    """None for a stored output."""
    output: str | None
    """None for a message."""
    thread: str
    role: str
    tool: str
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit(TextSource):
    """One search result."""

    session: str
    snippet: str
    score: float
    before: Neighbour | None = None
    """The message before the hit, which `Store.find` looks up, or None if it is not shown."""
    after: Neighbour | None = None
    """The message after the hit, or None if it is not shown."""
    is_passage: bool = False
    """Whether `snippet` is a passage that may answer the query, already cut to the length to show."""


@dataclass(frozen=True, slots=True)
class HitPage:
    """A page of hits, each with the messages before and after it."""

    hits: tuple[SearchHit, ...]
    has_more: bool
    """Whether another page follows."""
    is_approximate: bool
    """Whether no text holds every word, so that the hits are the texts with the most distinctive words."""


@dataclass(frozen=True, slots=True)
class RecallQuery(TextQuery):
    """A search for passages that answer a message. A passage need not hold any given word.

    Calls of lookup tools are skipped, because they repeat the words of the message.
    """

    speech_only: bool = False
    """Leave out calls and results, which a tool can repeat."""
    min_closeness: float = 0.0
    """Return nothing unless one of the best passages holds at least this share of the query (0 to 1)."""
    min_other_closeness: float = 0.0
    """The share of the query that every passage after the best ones must hold."""
    max_chars: int = 600
    """The most characters of one passage."""
    for_page: bool = False
    """Whether people read the passages: users' words count more than the model's and tools', a call and its result are
    one passage, no passage repeats another, and long passages use the characters that short ones leave."""
    now: float | None = None
    """The moment that `yesterday` refers to, or None for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallPassage(TextSource):
    """A passage that may answer a message."""

    turn: int
    """The number of its turn in the thread, from 1; 0 before the first turn."""
    text: str
    """The original words without secrets; `…` marks a cut."""
    score: float
    closeness: float
    """The share of the query that the passage itself holds, 0 to 1."""
