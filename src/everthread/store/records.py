"""The values that callers pass to a store and get from it: sessions, messages, compactions, outputs, limits.

Values of other topics are in `usage_records`, `search_records`, `rewrite_records`, `key_records` and `turn_records`.

Times are seconds since 1970 (UTC). A session is a stored sequence of messages; sessions joined by compaction form a
thread, whose id is the id of its first session. A message is stored once and *placed* in sessions, so a continuation
that keeps recent messages costs a few bytes for each. Every write may be repeated: a record with the same id is stored
once.

A new column needs a file in `migrations/`, its name in the queries of `sql/`, a field here, and a field in the lines of
exports (`sql/export_lines.py`, `sql/line_types.py`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import Any, Literal

from everthread.core.messages import Message
from everthread.core.types import Node as Node  # noqa: PLC0414 - a value of the core that a store keeps
from everthread.core.types import System

SessionKind = Literal["main", "continuation", "subagent", "side", "branch", "reverted"]
"""`side`: a client's call beside its conversation (a title, a count), grouped under it by `parent`."""
LimitKind = Literal["window", "output"]
MessageKind = Literal["message", "summary", "derived"]
"""`derived`: a smaller form of a message (pruned, cited, a stub) that only the context shows, never the history."""
DEFAULT_TENANT = "default"


def new_id() -> str:
    """Return a new random id for a session."""
    return secrets.token_hex(16)


def new_event_id() -> str:
    """Return a new id for an event. Ids sort by time, so that an index of events grows at one end."""
    return f"{time.time_ns():016x}{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session to create. `parent` is for subagents; `Store.branch` and `continue_session` make other sessions."""

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
    """The program that holds the conversation."""
    client_session: str = ""
    """The name that this program gives its session."""


@dataclass(frozen=True, slots=True)
class Session:
    """A stored session."""

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
    message_count: int
    """Number of messages that the session shows."""
    branched_at: int | None = None
    """For a branch: the last message that the session shares with its parent."""
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
    """The session that the thread began with; its id is the thread's."""
    tip: Session
    """The session in which the thread continues."""
    message_count: int
    """Messages said in the thread, through all compactions."""
    token_count: int
    """Tokens of those messages that were counted."""
    last_active: float
    """The time of the last message, or of the thread's beginning if it has no message."""
    compaction_count: int
    """Compactions, except those that were undone."""
    side_call_count: int = 0
    """Threads listed under this one: titles, counts, subagents of its client."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to store. A message whose `event` is already in the thread is not stored again."""

    body: Message
    kind: MessageKind = "message"
    event: str = field(default_factory=new_event_id)
    tokens: int | None = None
    origin: int | None = None
    """For a derived message: the message it replaces."""
    created: float | None = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a session."""

    id: int
    session: str
    """The session that it was read from or appended to."""
    seq: int
    """The message's position in the session, from 0."""
    kind: MessageKind
    body: Message
    event: str
    tokens: int | None
    created: float
    origin: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a thread. A write is refused unless its lease has the newest `fence`, a growing number."""

    thread: str
    holder: str
    fence: int
    expires_at: float


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
    """A stored compaction."""

    id: int
    thread: str
    parent: str
    """The session that was compacted."""
    session: str
    """The session that continues it."""
    created: float
    reverted_at: float | None
    record: NewCompaction


@dataclass(frozen=True, slots=True)
class Continuation:
    """The result of a compaction. `is_committed` is False if another process continued the session first."""

    session: Session
    is_committed: bool


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """A tool result stored in full. Its id is a hash of the content, so that equal results are stored once."""

    id: str
    thread: str
    call_id: str
    tool: str
    size: int
    """Characters."""
    created: float


@dataclass(frozen=True, slots=True)
class LimitKey:
    """The address, model and tenant that a limit applies to."""

    base_url: str
    model: str
    tenant: str = DEFAULT_TENANT
    headers: str = ""
    """The request headers that change the window, as one text."""
    credential: str = field(default="", compare=False)
    """Digest of the credential. A limit that two credentials have met applies to all tenants."""


@dataclass(frozen=True, slots=True)
class ModelLimit:
    """A window or an output cap learnt from a provider. The names are those of the JSON output."""

    base_url: str
    model: str
    headers: str
    """The request headers that change the window, as one text."""
    limit: int
    source: str
    learnt: float
    """When it was learnt."""
    expires: float
    """When it expires."""
    tenant: str = DEFAULT_TENANT
    kind: LimitKind = "window"
    credential: str = ""
    """A digest of the credential for which the provider stated the limit."""


@dataclass(frozen=True, slots=True)
class LearntLimits:
    """The limits that a tenant has learnt for a model at an endpoint."""

    window: ModelLimit | None = None
    output: ModelLimit | None = None
    """The largest output cap that the provider accepts."""
    largest_accepted_tokens: int = 0
    """Tokens of the largest prompt that was accepted in the last seven days."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A text pinned to a thread: every later compaction keeps it word for word."""

    id: str
    text: str
    created: float


def make_pin_id(text: str) -> str:
    """Return the id of a pin: a hash of its text, so that a text is pinned once."""
    return f"pin:{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """The result of `Store.check`."""

    backend: str
    location: str
    schema: int
    size: int
    """Bytes on disk."""
    sessions: int
    messages: int
    problems: tuple[str, ...] = ()
