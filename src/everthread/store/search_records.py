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
    """None: search the texts of all tenants."""
    thread: str | None = None
    include_family: bool = False
    """If a thread is given, also search all threads of its client's session, and the threads it branched from."""
    session: str | None = None
    role: str | None = None
    tool: str | None = None
    path: str | None = None
    """Search only calls whose arguments hold this path or part of a path, and the results of these calls."""
    since: float | None = None
    until: float | None = None
    visible_messages: AbstractSet[int] = frozenset()
    """Ids of messages in the context, which are left out."""
    limit: int = 20
    offset: int = 0

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
    """The message before the hit, which `Store.find` looks up; None if it is not shown."""
    after: Neighbour | None = None
    """The message after the hit; None if it is not shown."""
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
class RecallQuery:
    """A message, and the bounds of a search for passages that answer it. A passage need not hold any given word.

    Calls of lookup tools are skipped, because they repeat the words of the message.
    """

    text: str
    tenant: str | None
    """None: search the texts of all tenants."""
    thread: str | None = None
    """None: search all of the tenant's threads."""
    include_family: bool = False
    """If a thread is given, also search all threads of its client's session, and the threads it branched from."""
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
    """Whether people read the passages: users' words count more than the model's and tools', a call and its result are
    one passage, no passage repeats another, and long passages use the characters that short ones leave."""
    now: float | None = None
    """The moment that `yesterday` refers to; None: now."""


@dataclass(frozen=True, slots=True)
class RecallPassage:
    """A passage that may answer a message. `message` is None for a stored output, `output` is None for a message."""

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
