"""What a store keeps and promises: the values and the protocol both implementations share.

Times are seconds since 1970 (UTC). A session is one stored run of messages; sessions joined by compaction form a
thread, whose id is the id of its first session. A message is stored once; a session *places* it, so the tail that a
continuation carries along costs a few bytes a message. Every write may be repeated: what carries the same id is
stored once.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, Protocol

from everthread.core.exchange import System
from everthread.core.lookup import is_lookup
from everthread.core.messages import Message
from everthread.core.nodes import Node as Node  # noqa: PLC0414 - a value of the core that a store keeps
from everthread.core.usage import CanonicalUsage
from everthread.store.keys import KeyStore
from everthread.store.overviews import OverviewStore
from everthread.store.proxied import ProxiedStore
from everthread.store.queued import QueueStore
from everthread.store.recalled import RecallingStore

SessionKind = Literal["main", "continuation", "subagent", "branch", "reverted"]
MessageKind = Literal["message", "summary", "derived"]
"""`derived`: a smaller form of a message (pruned, cited, a stub) that only the context shows, never the history."""
Task = Literal["main", "auxiliary"]

DEFAULT_TENANT = "default"


def new_id() -> str:
    """A fresh id for a session or an event: unique, short enough to read out, sortable by nothing."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a session begins with. `parent` for subagents; branches and continuations are made by their own calls."""

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

    @property
    def live(self) -> bool:
        return self.ended is None


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A thread as a list shows it."""

    first: Session
    """The session it began with; its id is the thread's."""
    tip: Session
    """The session where it goes on."""
    messages: int
    """That were said in it, through all compactions."""
    tokens: int
    """Of these messages, as far as they were counted."""
    active: float
    """When the last of them was said; when it began, where nothing was."""
    compactions: int
    """Without those that were undone."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to store. The same `event` in the same thread is stored once, however often it is given."""

    body: Message
    kind: MessageKind = "message"
    event: str = field(default_factory=new_id)
    tokens: int | None = None
    origin: int | None = None
    """For a derived message: the message it stands for."""
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
    canonical: str
    byte_order: str
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
    """The record of a compaction: what was covered, what it cost, what it saved."""

    covered: Sequence[int] = ()
    """Ids of the messages the summary stands for."""
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
    """The answer to a compaction. `won` is False when another process continued the session first."""

    session: Session
    won: bool


@dataclass(frozen=True, slots=True)
class NewUsage:
    """One call to a model. `cost` is None where a price is unknown."""

    session: str
    model: str
    usage: CanonicalUsage
    task: Task = "main"
    cost: Decimal | None = None
    estimated: bool = False
    event: str = field(default_factory=new_id)
    created: float | None = None


@dataclass(frozen=True, slots=True)
class UsageRecord:
    id: int
    session: str
    thread: str
    model: str
    task: Task
    usage: CanonicalUsage
    cost: Decimal | None
    estimated: bool
    created: float


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A line of an account: a group's name and its sums. `unpriced` calls are not in `cost`."""

    key: str
    calls: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: Decimal = Decimal(0)
    unpriced: int = 0

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_write

    @property
    def cache_share(self) -> float | None:
        """The share of the prompt that was read from the cache; None without a prompt."""
        return self.cache_read / self.prompt if self.prompt else None


@dataclass(frozen=True, slots=True)
class ToolRow:
    """What one tool brought into conversations."""

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
        return sum(row.results for row in self.by_tool if is_lookup(row.tool))


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


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What to look for, and where. `text`: words, "phrases", prefix*; anything else is taken literally."""

    text: str
    tenant: str | None = DEFAULT_TENANT
    """None: all tenants'."""
    thread: str | None = None
    session: str | None = None
    role: str | None = None
    tool: str | None = None
    path: str | None = None
    """Only calls with this path, or a part of one, among their arguments, and their results."""
    since: float | None = None
    until: float | None = None
    limit: int = 20
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
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


@dataclass(frozen=True, slots=True)
class ModelLimit:
    """A window learnt from a provider. `headers` are those that change the window, in one text."""

    base_url: str
    model: str
    headers: str
    limit: int
    source: str
    learnt: float
    expires: float


@dataclass(frozen=True, slots=True)
class Health:
    """What `check` found. No problems: the store is sound."""

    backend: str
    location: str
    schema: int
    size: int
    """Bytes on disk."""
    sessions: int
    messages: int
    problems: tuple[str, ...] = ()


class Store(ProxiedStore, KeyStore, QueueStore, RecallingStore, OverviewStore, Protocol):
    """Where conversations live. Every call is safe from any task of one event loop; none blocks it.

    Wherever a thread is named, the id of any of its sessions will do. State whose scope is a session's id goes with it.
    """

    # Sessions

    async def create_session(self, new: NewSession) -> Session: ...
    async def session(self, session_id: str) -> Session: ...
    async def resolve(self, prefix: str, *, tenant: str | None = None) -> Session: ...
    async def list_sessions(
        self, *, tenant: str | None = None, kind: SessionKind | None = None, limit: int = 50, offset: int = 0
    ) -> list[Session]: ...
    async def list_threads(self, *, tenant: str | None = None, limit: int = 50, offset: int = 0) -> list[ThreadRow]: ...
    async def children(self, session_id: str) -> list[Session]: ...
    async def thread_sessions(self, thread: str) -> list[Session]: ...
    async def set_title(self, thread: str, title: str) -> None: ...
    async def end_session(self, session_id: str, reason: str, *, lease: Lease | None = None) -> Session: ...
    async def get_compression_tip(self, session_id: str) -> str: ...

    # Messages

    async def append(
        self, session_id: str, new: Sequence[NewMessage], *, lease: Lease | None = None
    ) -> list[StoredMessage]: ...
    async def messages(self, session_id: str, *, start: int = 0, limit: int | None = None) -> list[StoredMessage]: ...
    async def history(self, session_id: str, *, start: int = 0, limit: int | None = None) -> list[StoredMessage]: ...
    async def message(self, message_id: int, *, tenant: str | None = None) -> StoredMessage: ...

    # Compaction

    async def continue_session(
        self,
        session_id: str,
        compacted: Sequence[int | NewMessage],
        *,
        seen: int,
        pending: Sequence[NewMessage] = (),
        compaction: NewCompaction | None = None,
        system: System = None,
        nodes: Sequence[Node] = (),
        new: str | None = None,
        lease: Lease | None = None,
    ) -> Continuation: ...
    async def compactions(self, thread: str) -> list[CompactionRecord]: ...
    async def undo(self, session_id: str, *, lease: Lease | None = None) -> Session: ...
    async def branch(self, session_id: str, at_message: int, *, new: NewSession | None = None) -> Session: ...
    async def delete_thread(self, thread: str) -> int: ...

    # Leases

    async def acquire(self, thread: str, holder: str, seconds: float) -> Lease | None: ...
    async def renew(self, lease: Lease, seconds: float) -> Lease: ...
    async def release(self, lease: Lease) -> None: ...

    # Usage

    async def record_usage(self, new: NewUsage) -> None: ...
    async def usage(self, thread: str) -> list[UsageRecord]: ...
    async def insights(
        self, *, since: float, until: float, tenant: str | None = None, platform: str | None = None
    ) -> Insights: ...

    # Stored tool outputs

    async def put_output(self, thread: str, text: str, *, call_id: str = "", tool: str = "") -> StoredOutput: ...
    async def output(self, output_id: str, *, tenant: str = DEFAULT_TENANT) -> str: ...
    async def outputs(self, thread: str) -> list[StoredOutput]: ...

    # Search

    async def search(self, query: SearchQuery) -> list[Hit]: ...

    # Limits, state, nodes

    async def learn_limit(
        self, base_url: str, model: str, limit: int, *, source: str, headers: str = ""
    ) -> ModelLimit: ...
    async def limit_for(self, base_url: str, model: str, *, headers: str = "") -> ModelLimit | None: ...
    async def limits(self) -> list[ModelLimit]: ...
    async def forget_limits(
        self, *, base_url: str | None = None, model: str | None = None, below: int | None = None
    ) -> int: ...
    async def put_state(self, scope: str, key: str, value: Any) -> None: ...
    async def get_state(self, scope: str, key: str) -> Any | None: ...
    async def put_nodes(self, nodes: Sequence[Node], *, lease: Lease | None = None) -> None: ...
    async def nodes(self, thread: str) -> list[Node]: ...

    # The whole

    async def export(self, thread: str) -> list[dict[str, Any]]: ...
    async def import_lines(self, lines: Sequence[dict[str, Any]]) -> list[str]: ...
    async def check(self) -> Health: ...
    async def backup(self, target: str) -> None: ...
    async def vacuum(self) -> None: ...
    async def close(self) -> None: ...
