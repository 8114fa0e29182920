"""The values a store takes and gives.

Times are seconds since 1970 (UTC). A session is one stored run of messages; sessions joined by compaction form a
thread, whose id is the id of its first session. A message is stored once; a session *places* it, so the tail that a
continuation carries along costs a few bytes a message. Every write may be repeated: what carries the same id is
stored once.

A new column needs a file in `migrations/`, its name in the queries of `sql/`, a field here, and a field in the lines of
exports (`sql/export_lines.py`, `sql/import_lines.py`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import Any, Literal

from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.messages import Message
from everthread.core.prices import format_dollars
from everthread.core.search.search_results import Neighbour
from everthread.core.transcript import is_lookup_tool
from everthread.core.types import Node as Node  # noqa: PLC0414 - a value of the core that a store keeps
from everthread.core.types import System

SessionKind = Literal["main", "continuation", "subagent", "side", "branch", "reverted"]
"""`side`: a client's call beside its conversation (a title, a count), grouped under it by `parent`."""
LimitKind = Literal["window", "output"]
MessageKind = Literal["message", "summary", "derived"]
"""`derived`: a smaller form of a message (pruned, cited, a stub) that only the context shows, never the history."""
UNDONE_PREFIX = "undone:"
"""Before the digest of a rewrite that was taken back."""
UNDONE_STATE_KEY = "undone"
"""Of a proxied thread: `until` which size of its messages no compaction follows one that was taken back."""
UsageTask = Literal["main", "auxiliary"]
DEFAULT_TENANT = "default"


def new_id() -> str:
    """A fresh id for a session: unique, short enough to read out, sortable by nothing."""
    return secrets.token_hex(16)


def new_event_id() -> str:
    """A fresh id for an event: unique, and in order of time, so that an index of events grows at one end."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create. `parent` is for subagents; branches and continuations are made by their own calls."""

    id: str = field(default_factory=new_id)
    kind: SessionKind = "main"
    parent: str | None = None
    tenant: str = DEFAULT_TENANT
    platform: str = ""
    user: str = ""
    title: str = ""
    model: str = ""
    system: System = None
    started: float | None = None
    client: str = ""
    """The program whose conversation it is."""
    client_session: str = ""
    """What that program calls its session."""


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    thread: str
    parent: str | None
    kind: SessionKind
    tenant: str
    platform: str
    user: str
    title: str
    model: str
    system: System
    started: float
    ended: float | None
    end_reason: str | None
    messages: int
    """How many messages it places."""
    branched_at: int | None = None
    """For a branch: the last message it shares with its parent, which it outlives."""
    client: str = ""
    client_session: str = ""

    @property
    def is_live(self) -> bool:
        return self.ended is None

    @property
    def shown_kind(self) -> str:
        """The kind shown to people: a side call without a conversation is shown as a conversation."""
        return "main" if self.kind == "side" and self.parent is None else self.kind


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A thread as a list shows it."""

    first: Session
    """The session it began with; its id is the thread's."""
    tip: Session
    """The session in which the thread continues."""
    messages: int
    """Messages said in the thread, through all compactions."""
    tokens: int
    """Tokens of those messages that were counted."""
    last_active: float
    """When its last message was said; if there is none, when the thread began."""
    compactions: int
    """Compactions, except those that were undone."""
    side_calls: int = 0
    """Threads listed under this one: titles, counts, subagents of its client."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to store. The same `event` in the same thread is stored once, however often it is given."""

    body: Message
    kind: MessageKind = "message"
    event: str = field(default_factory=new_event_id)
    tokens: int | None = None
    origin: int | None = None
    """For a derived message: the message it replaces."""
    created: float | None = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    id: int
    session: str
    """The session it was read from, or landed in."""
    seq: int
    """Its place there, from 0."""
    kind: MessageKind
    body: Message
    event: str
    tokens: int | None
    created: float
    origin: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a thread. A write with a number that is no longer the newest changes nothing."""

    thread: str
    holder: str
    fence: int
    expires: float


@dataclass(frozen=True, slots=True)
class NewCompaction:
    """The record of a compaction: messages covered, cost and savings."""

    covered: Sequence[int] = ()
    """Ids of the messages that the summary replaces."""
    tokens_before: int = 0
    tokens_after: int = 0
    summary: str = ""
    author: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    reason: str = ""
    focus: str | None = None
    duration: float = 0.0
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True)
class CompactionRecord:
    id: int
    thread: str
    parent: str
    session: str
    """The continuation it made."""
    created: float
    reverted: float | None
    record: NewCompaction


@dataclass(frozen=True, slots=True)
class Continuation:
    """The answer to a compaction. `is_committed` is False when another process continued the session first."""

    session: Session
    is_committed: bool


@dataclass(frozen=True, slots=True)
class NewUsage:
    """One call to a model. `cost` is None if a price is unknown."""

    session: str
    model: str
    usage: CanonicalUsage
    task: UsageTask = "main"
    cost: Decimal | None = None
    estimated: bool = False
    event: str = field(default_factory=new_event_id)
    created: float | None = None


@dataclass(frozen=True, slots=True)
class UsageRecord:
    id: int
    session: str
    thread: str
    model: str
    task: UsageTask
    usage: CanonicalUsage
    cost: Decimal | None
    estimated: bool
    created: float


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A line of an account: a group's name and its sums. `unpriced_calls` calls are not in `cost`."""

    key: str
    calls: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: Decimal = Decimal(0)
    unpriced_calls: int = 0

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_write

    @property
    def cost_text(self) -> str:
        """Its dollars; `unknown` for calls without a price, `free` if every call cost nothing."""
        if self.calls and not self.cost:
            return "unknown" if self.unpriced_calls else "free"
        return (
            f"{format_dollars(self.cost)}{' + unknown' if self.unpriced_calls else ''}"
        )

    @property
    def cache_share(self) -> float | None:
        """The share of the prompt that was read from the cache; None without a prompt."""
        return self.cache_read / self.prompt if self.prompt else None


@dataclass(frozen=True, slots=True)
class ToolRow:
    """The results that one tool added to conversations."""

    tool: str
    results: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Insights:
    """An account of a period."""

    total: UsageRow
    by_day: list[UsageRow]
    by_model: list[UsageRow]
    by_platform: list[UsageRow]
    by_task: list[UsageRow]
    by_tool: list[ToolRow]
    sessions: int
    """That began in the period, and of how many threads; messages that were said in it."""
    threads: int
    messages: int
    compactions: int
    tokens_saved: int
    """Sum of what compactions took out, by their own figures."""

    @property
    def lookups(self) -> int:
        """How often a model looked up what had left its context, with a tool that does nothing else."""
        return sum(row.results for row in self.by_tool if is_lookup_tool(row.tool))


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """A tool result kept in full. `id` is made from the content, so equal results are stored once."""

    id: str
    thread: str
    call_id: str
    tool: str
    size: int
    """Characters."""
    created: float


MIN_QUESTION_WORDS = 3
"""A query of at least this many words is a question."""
MIN_SENTENCE_WORDS = 5
"""A query with this many words is a whole question, with or without a question mark."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What to look for, and where. `text`: words, "phrases", prefix*; anything else is taken literally."""

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
        """Whether it is meant as typed: a phrase, a prefix, a path."""
        return bool(self.path or {'"', "*"} & set(self.text))

    @property
    def is_question(self) -> bool:
        """Whether it is asked in several words that are not meant as typed."""
        return len(self.text.split()) >= MIN_QUESTION_WORDS and not self.is_literal

    @property
    def is_sentence(self) -> bool:
        """Whether it is a whole question rather than a few words to look for."""
        ends_as_question = self.text.rstrip().endswith(("?", "？"))
        is_long = len(self.text.split()) >= MIN_SENTENCE_WORDS
        return self.is_question and (ends_as_question or is_long)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One place found. `message` is None for a stored output, `output` for a message."""

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
class ModelLimit:
    """A window or an output cap learnt from a provider. `headers` are those that change the window, in one text."""

    base_url: str
    model: str
    headers: str
    limit: int
    source: str
    learnt: float
    expires: float
    tenant: str = DEFAULT_TENANT
    kind: LimitKind = "window"
    credential: str = ""
    """A digest of the credential that met it."""


@dataclass(frozen=True, slots=True)
class LearntLimits:
    """The limits that a tenant has learnt for a model at an endpoint."""

    window: ModelLimit | None = None
    output: ModelLimit | None = None
    """The largest output cap the provider takes."""
    succeeded: int = 0
    """The largest prompt it took in the last seven days, in tokens."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A text pinned to a thread: every later compaction carries it word for word."""

    id: str
    text: str
    created: float


def pin_id(text: str) -> str:
    """A pin's id is made from its text, so that a text is pinned once."""
    return f"pin:{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """What `check` found. No problems: the store is sound."""

    backend: str
    location: str
    schema: int
    size: int
    """Bytes on disk."""
    sessions: int
    messages: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadLink:
    """A point of a thread at which a request or an answer ended."""

    tenant: str
    scope: str
    """Which of the tenant's clients; histories of different scopes are never taken for one."""
    digest: str
    previous: str
    """The digest of the point before it; empty for a thread's first."""
    skeleton: str
    thread: str
    length: int
    """How many of the client's messages lead to it."""
    message: int | None
    """The last message that was stored for it."""
    results: str = ""
    """Of the messages since the point before."""


@dataclass(frozen=True, slots=True)
class NewThreadLink:
    """A point to append to a thread."""

    link: ThreadLink
    follows: str
    """The digest of the thread's last point as the writer knows it; empty for a new thread. It is appended only if the
    thread still ends there."""
    session: NewSession
    """The first session of the thread, if the thread is new."""
    branch_of: tuple[str, int] | None = None
    """For a branch: the thread and the message it leaves at."""
    messages: Sequence[NewMessage] = ()
    client_parent: str = ""
    """The client's session whose conversation a side call is listed under; empty for none."""


@dataclass(frozen=True, slots=True)
class ThreadLinkMatch:
    """The longest known beginning of a history."""

    link: ThreadLink
    next_digest: str | None
    """The digest with which the thread continued from there."""
    results: str
    """Of all messages that lead to it."""


@dataclass(frozen=True, slots=True)
class ConversationEnd:
    """The end of the conversation that a client's session used last."""

    thread: str
    last_message: int
    """The last message."""
    last_bodies: Sequence[Message]
    """The last few messages, the newest first."""


@dataclass(frozen=True, slots=True)
class RewriteSearch:
    """A finished search for the rewrites of a history; the search for a longer history resumes from it."""

    engines: tuple[str, ...]
    length: int
    """How many messages the history had."""
    digest: str
    newest_rewrite: Any
    """The newest rewrite of any tenant at that time."""
    found_digests: tuple[str, ...] = ()
    """The digests of those that were found, the shortest first."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The replacement of a beginning: keyed by tenant, engine, digest and strength; never changed."""

    tenant: str
    engine: str
    """The engine with its options, and the protocol the replacement is written in."""
    digest: str
    strength: int
    length: int
    """How many of the client's messages it covers."""
    skeleton: str
    results: str
    thread: str
    replacement: bytes
    """JSON messages, separated by commas."""
    session: str = ""
    """The continuation that the compaction began; empty if it covers nothing (see `SLIM`)."""
    depth: int = 1
    """How many compactions are in it."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Of the engine that made it."""


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """One message of a compacted context, for a thread whose client keeps the history."""

    position: int | None = None
    """Its place among the messages that were compacted; None for a summary."""
    body: Message | None = None
    """The message; None if it is certainly one of the stored ones."""
    tokens: int | None = None
    is_changed: bool = False
    """It is a smaller form of the stored one."""


@dataclass(frozen=True, slots=True)
class ProxiedContext:
    """The result of compacting the messages sent upstream: those of the last rewrite, then the client's own."""

    entries: Sequence[ContextEntry]
    covered: Sequence[int]
    """Positions of the messages that the summary replaces."""
    compacted_count: int
    """How many messages were compacted."""
    inherited_count: int
    """How many of them are the last rewrite's."""
    leading_count: int = 0
    """How many stored messages come before them and stay."""


@dataclass(frozen=True, slots=True)
class NewRewrite:
    """A rewrite with the compaction that made it."""

    rewrite: Rewrite
    record: NewCompaction
    context: ProxiedContext
    scope: str
    """The client session of the request."""
    digest: str
    """The digest of the request's whole history, which is stored."""
    base_session: str = ""
    """The session of the rewrite that this one continues; empty if it is the first."""
    digests: Sequence[str] = ()
    """The digests of the request's history: a rewrite of one of them, made by another process, is used instead."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """For one UTC day; None: no limit."""

    requests: int | None = None
    tokens: int | None = None
    dollars: Decimal | None = None


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The use of a key in a period."""

    requests: int = 0
    tokens: int = 0
    dollars: Decimal = Decimal(0)

    def __add__(self, other: KeyUse) -> KeyUse:
        return KeyUse(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.dollars + other.dollars,
        )


NO_USE = KeyUse()


@dataclass(frozen=True, slots=True)
class NewKey:
    id: str
    """Stands in the key itself, readable; no secret."""
    digest: str
    """SHA-256 of the key, in hex."""
    tenant: str
    scopes: frozenset[str]
    limits: KeyLimits = field(default_factory=KeyLimits)
    name: str = ""
    mode: str | None = None
    """Overrides the setting of the upstream."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    key: NewKey
    created: float
    revoked: float | None
    last_used: float | None
    use_of_day: KeyUse
    """On the day that was asked for."""


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
    """True if a stop was requested."""
    created: float
    started: float | None = None
    ended: float | None = None

    @property
    def is_open(self) -> bool:
        """It is not over."""
        return self.state in OPEN_TURN_STATES


@dataclass(frozen=True, slots=True)
class TurnClaim:
    """The next turn of a thread, if there is one, and those whose process vanished in the middle."""

    turn: QueuedTurn | None
    lost_turns: tuple[QueuedTurn, ...] = ()
    """Still marked as running; the holder of the lease ends them."""


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """A message as written, and where to search for passages that answer it. Unlike in a search, no word is required.

    Lookups of earlier passages are skipped: they would be found instead of the passages.
    """

    text: str
    tenant: str | None
    """None: every tenant's."""
    thread: str | None = None
    """None: in all of the tenant's threads."""
    include_family: bool = False
    """With a thread: also in all threads of its client's session, and in those it branched from."""
    visible_messages: AbstractSet[int] = frozenset()
    """Messages that need no recalling: they are in view."""
    speech_only: bool = False
    """Only words of people and of the model: no calls, no results, which a tool can give anew."""
    limit: int = 10
    min_closeness: float = 0.0
    """Return nothing unless one place holds at least this share of the query (0 to 1)."""
    min_other_closeness: float = 0.0
    """The share that every place after the best ones must hold."""
    max_chars: int = 600
    """The most of one place."""
    role: str | None = None
    tool: str | None = None
    for_page: bool = False
    """A page to be read: what people said counts more than what the model and tools did, a call and its result are one
    place, no place repeats another, and what short ones leave of the room longer ones may have."""
    now: float | None = None
    """The moment that `yesterday` refers to; None: now."""


@dataclass(frozen=True, slots=True)
class RecallPassage:
    """A place that may answer. `message` is None for a stored output, `output` for a message."""

    message: int | None
    output: str | None
    thread: str
    role: str
    tool: str
    turn: int
    """Which of its thread's turns it is of, from 1; 0 before the first."""
    created: float
    text: str
    """The original words without secrets; `…` marks a cut."""
    score: float
    closeness: float
    """The share of the query that the passage itself holds, 0 to 1."""


@dataclass(frozen=True, slots=True)
class ThreadFigures:
    """A thread's calls and compactions, summed up."""

    thread: str
    calls: int = 0
    """To the main model."""
    cost: Decimal | None = None
    """Dollars of all calls with a known price; None if no call has one."""
    unpriced_calls: int = 0
    prompt_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0
    last_model: str = ""
    """Of the last call."""
    last_prompt_tokens: int = 0
    """Tokens of the last call's prompt."""
    compactions: int = 0
    last_compacted: float | None = None
    """When it was compacted last."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call to a model."""

    thread: str
    created: float
    model: str
    task: str
    tenant: str
    client: str
    """The client's own name if it gave one, else the platform."""
    input: int
    output: int
    cache_read: int
    cache_write: int
    cost: Decimal | None
    estimated: bool = False
    cache_miss: str = ""
    """Why the cache missed, as the provider says; empty if it was not asked."""

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_write


@dataclass(frozen=True, slots=True)
class MessageSize:
    """How large a message is."""

    id: int
    role: str
    tool: str
    tokens: int
    created: float
