"""The lines of an export below its heading, with the types of their fields, as an import checks them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from everthread.store.database import MAX_ID
from everthread.store.records import DEFAULT_TENANT, MessageKind, SessionKind
from everthread.store.usage_records import UsageTask

Name = Annotated[str, Meta(pattern=r"^[^\x00\ud800-\udfff]*\Z")]
"""A text that every database stores unchanged."""
Count = Annotated[int, Meta(ge=0, lt=MAX_ID)]
Moment = Annotated[int, Meta(gt=-(10**15), lt=10**15)] | Annotated[float, Meta(gt=-1e15, lt=1e15)]
"""Seconds since 1970. No calendar goes further. An integer stays one, so that the next export has the same lines."""


class SessionLine(Struct, tag_field="type", tag="session"):
    """A session. A missing kind is guessed."""

    id: Name
    kind: SessionKind | None = None
    parent: Name | None = None
    tenant: Name = DEFAULT_TENANT
    platform: Name = ""
    user: Name = ""
    title: str = ""
    model: Name = ""
    system: Any = None
    client: Name = ""
    client_session: Name = ""
    started: Moment | None = None
    ended: Moment | None = None
    end_reason: Name | None = None
    inherited_count: Count = 0
    """How many of the messages that it shows are inherited."""
    branched_at: Count | None = None


class MessageLine(Struct, tag_field="type", tag="message"):
    """A message. Other lines refer to it by its number."""

    number: Count
    body: dict[str, Any]
    kind: MessageKind = "message"
    event: Name | None = None
    tokens: Count | None = None
    origin: Count | None = None
    created: Moment | None = None


class PlacesLine(Struct, tag_field="type", tag="places"):
    """The numbers of the messages that a session shows, and of the inherited history that it does not show."""

    session: Name
    messages: list[Count]
    inherited_history: list[Count] = []


class CompactionFields(Struct):
    """The fields of a `NewCompaction`."""

    covered: list[Count]
    tokens_before: Count
    tokens_after: Count
    summary: str = ""
    author: str = ""
    figures: dict[str, Any] = {}
    warnings: list[str] = []
    reason: str = ""
    focus: str | None = None
    duration: Moment = 0.0
    cost: str | None = None


class CompactionLine(Struct, tag_field="type", tag="compaction"):
    """A compaction, between two sessions."""

    parent: Name
    session: Name
    created: Moment
    reverted: Moment | None
    record: CompactionFields


class RawUsage(Struct):
    """The provider's own usage figures."""

    raw: Any
    cache_write_1h: Count


class UsageLine(Struct, tag_field="type", tag="usage"):
    """A call to a model."""

    session: Name
    model: Name
    task: UsageTask
    event: Name
    input: Count
    output: Count
    cache_read: Count
    cache_write: Count
    reasoning: Count
    pico_dollars: Annotated[int, Meta(gt=-MAX_ID, lt=MAX_ID)] | None
    estimated: int
    raw: RawUsage
    created: Moment


class OutputLine(Struct, tag_field="type", tag="output"):
    """A stored output, as one call of the thread cites it."""

    text: str
    call_id: str
    tool: str
    created: Moment


class NodeLine(Struct, tag_field="type", tag="node"):
    """A node of the graph of summaries."""

    id: Name
    level: Count
    body: str
    tokens: Count
    covered_tokens: Count
    author: str
    first_message: Count
    last_message: Count
    first_turn: Count
    last_turn: Count
    since: Moment
    until: Moment
    sources: list[Name]
    degraded: bool = False


class PinLine(Struct, tag_field="type", tag="pin"):
    """A text pinned to the thread."""

    text: str
    created: Moment


class StateLine(Struct, tag_field="type", tag="state"):
    """A value that an engine stored for a session."""

    scope: Name
    key: Name
    value: Any


Line = (
    SessionLine
    | MessageLine
    | PlacesLine
    | CompactionLine
    | UsageLine
    | OutputLine
    | NodeLine
    | PinLine
    | StateLine
)
