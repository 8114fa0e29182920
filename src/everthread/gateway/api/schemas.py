"""Request and response bodies of the threads API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
)

from everthread.core.secrets.redaction import redact
from everthread.gateway.api import MAX_WAIT_SECONDS
from everthread.store.records import CompactionRecord, Session, StoredMessage, ThreadRow
from everthread.store.turn_records import QueuedTurn, TurnState

Title = Annotated[str, StringConstraints(max_length=200)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def _check_address(url: str) -> str:
    if not url.startswith(("data:", "https://", "http://")):
        raise ValueError("an image is a data: or http(s): address")
    return url


class Body(BaseModel):
    """A JSON object, read strictly: a number is not accepted as text."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Query(BaseModel):
    """Base of the query parameters of an endpoint. An unknown parameter is refused."""

    model_config = ConfigDict(extra="forbid")


class NoBody(Body):
    """An empty body, or `{}`."""


class NoQuery(Query):
    """No query parameters."""


class CreateThread(Body):
    """A new thread."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"title": "Invoices", "metadata": {"customer": "4711"}}, {}]
        }
    )
    title: Title = ""
    model: Name | None = Field(None, description="Null: the gateway's own choice.")
    metadata: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ] = Field(
        default_factory=dict,
        max_length=16,
        description="Your own notes, returned unchanged.",
    )


class TextPart(Body):
    type: Literal["text"]
    text: Annotated[str, StringConstraints(min_length=1)]


class ImageAddress(Body):
    url: Annotated[str, AfterValidator(_check_address)]
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageAddress


class SendMessage(Body):
    """A message of the user. A text like `/compress` is a command, and not sent to the model."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"content": "Which invoices are open?"}]}
    )
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]]

    @field_validator("content")
    @classmethod
    def _reject_empty(cls, value: object) -> object:
        if not value or (isinstance(value, str) and not value.strip()):
            raise ValueError("the message is empty")
        return value


class Cancel(Body):
    """The turn to stop; by default the running one."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"queued": True}]})
    turn: Name | None = None
    queued: bool = Field(default=False, description="Also the messages that wait.")


class Compress(Body):
    """Compact the history now."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"focus": "open invoices"}, {"preview": True}]}
    )
    focus: Annotated[str, StringConstraints(max_length=500)] | None = Field(
        None, description="The topic to keep in most detail."
    )
    preview: bool = Field(default=False, description="Only describe what would be removed.")

    @field_validator("focus")
    @classmethod
    def _reject_option(cls, value: str | None) -> str | None:
        if value is not None and "--preview" in value.split():
            raise ValueError("say `preview: true` instead of --preview")
        return value


class Branch(Body):
    """A new thread that begins with a part of this one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"title": "Another way"}, {"at_message": 42}]}
    )
    at_message: Annotated[int, Field(ge=1, le=2**53)] | None = Field(
        None, description="The last message both share. Null: the newest."
    )
    title: Title = ""


class Page(Query):
    limit: Annotated[int, Field(ge=1, le=100)] = 50
    offset: Annotated[int, Field(ge=0, le=10**9)] = 0

    def split(self, rows: Sequence[Any]) -> tuple[Sequence[Any], int | None]:
        """Return a page of the rows, and the offset of the next page if `rows` has one row more than a page."""
        return rows[: self.limit], self.offset + self.limit if len(rows) > self.limit else None


class HistoryQuery(Page):
    view: Literal["whole", "current"] = Field(
        "whole",
        description="The whole conversation, or the context that the model sees now, with summaries.",
    )


class Find(Page):
    q: Annotated[str, StringConstraints(min_length=1, max_length=500)] = Field(
        description='Words, "phrases", prefix*; identifiers as typed.'
    )
    role: Literal["user", "assistant", "tool"] | None = None
    tool: Name | None = None


class Days(Query):
    days: Annotated[int, Field(ge=1, le=3_660)] = Field(
        30, description="Number of days, today (UTC) included."
    )


class Wait(Query):
    wait: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False)] = Field(
        MAX_WAIT_SECONDS,
        description="Seconds to wait for the end; then the turn is given as it is, with 202.",
    )


NumbersByName = dict[str, int | float | None]


class View(BaseModel):
    model_config = ConfigDict(extra="forbid", from_attributes=True)


class ErrorDetail(View):
    code: str = Field(description="Short, and always the same for the same cause.")
    message: str = Field(description="A sentence for the person.")


class TurnAnswer(View):
    text: str
    message_id: int | None = Field(None, description="The stored message; null for a command.")
    session: str | None = None
    stop: str | None = Field(None, description="Why the model stopped: `stop`, `length`, …")
    usage: NumbersByName | None = Field(
        None, description="Tokens and dollars of all calls of the turn."
    )
    command: str | None = Field(
        None, description="The slash command that was run, without its slash."
    )
    data: dict[str, Any] | None = Field(None, description="The result of a command, for programs.")
    failed: bool = Field(
        default=False, description="Whether the command failed; the text says why."
    )
    thread: str | None = Field(
        None, description="The thread that a command such as /new or /branch leads to."
    )


class TurnView(View):
    id: str
    thread: str
    state: TurnState
    place: int = Field(description="Its number among the messages of its thread, from 1 on.")
    content: str | list[dict[str, Any]] = Field(description="The content of the message.")
    created: float = Field(description="Times are seconds since 1970.")
    started: float | None = None
    ended: float | None = None
    answer: TurnAnswer | None = Field(None, description="Present if the turn was answered.")
    error: ErrorDetail | None = Field(
        None, description="Present if the turn ended without an answer."
    )


class ErrorView(View):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"error": {"code": "not_found", "message": "There is no such thread."}}]
        }
    )
    error: ErrorDetail
    turn: TurnView | None = Field(None, description="The turn that failed.")


class ThreadView(View):
    id: str
    title: str
    kind: str = Field(
        description="`main`, `branch`, `subagent` for one that works for another thread, or `side` for a title, a "
        "count or a subagent of a proxied client."
    )
    model: str = Field(description="The model that it began with.")
    platform: str = Field(
        description="What its messages came through: `gateway`, `api`, `terminal`, a framework or a kind of log."
    )
    client: str = Field(description="The client program, if it gave its name.")
    parent: str | None = Field(
        description="The session it began in, for branches, subagents and side calls."
    )
    created: float
    session: str = Field(description="The current session; each compaction begins a new one.")
    in_view: int = Field(description="Messages the model sees.")
    metadata: dict[str, str]


class ThreadItem(ThreadView):
    messages: int = Field(description="Messages of the thread, through all compactions.")
    tokens: int
    active: float
    compactions: int
    side_calls: int = Field(
        description="Number of its side threads: titles, counts and subagents of its client."
    )


class ThreadDetail(ThreadView):
    compactions: int
    turns: list[TurnView] = Field(description="Open turns: the running one, and those that wait.")
    side_calls: list[str] = Field(description="Ids of the side threads it started.")


class CompactionView(View):
    """A compaction: its result, and how to recall the messages it removed."""

    id: int
    created: float
    reverted: float | None = Field(description="When it was undone.")
    tokens_before: int
    tokens_after: int
    messages: int = Field(description="Messages that were replaced by the summary or shortened.")
    author: str
    reason: str
    summary: str
    cost: float | None
    duration: float
    warnings: list[str]
    recall: str = Field(
        description="Path to search the removed messages; `undo` brings them all back."
    )


class Compactions(View):
    items: list[CompactionView]


class MessageView(View):
    id: int
    kind: Literal["message", "summary", "derived"]
    role: str
    body: dict[str, Any] = Field(description="The message as it is stored.")
    tokens: int | None
    created: float


class NeighbourView(View):
    message: int
    role: str
    tool: str
    text: str = Field(description="How it begins, on one line.")


class HitView(View):
    thread: str
    message: int | None
    output: str | None
    role: str
    tool: str
    created: float
    snippet: str
    score: float
    before: NeighbourView | None = Field(
        description="The message before it; null if none is shown."
    )
    after: NeighbourView | None


class Threads(View):
    items: list[ThreadItem]
    next: int | None = Field(description="The offset of the next page; null at the end.")


class Messages(View):
    items: list[MessageView]
    next: int | None


class Turns(View):
    items: list[TurnView]
    next: int | None


class Hits(View):
    items: list[HitView]
    next: int | None
    near: bool = Field(
        default=False,
        description="No message holds every word; these hold the rarest ones.",
    )


class Cancelled(View):
    turns: list[TurnView] = Field(description="The turns that were stopped or are being stopped.")


class StateView(View):
    """The state of the work, read from the thread's tool calls, without secrets."""

    thread: str
    messages: int
    directory: str
    branch: str
    files: list[dict[str, Any]] = Field(
        description="`path`, `last` (changed or read), `turn`; the latest first."
    )
    commands: list[dict[str, Any]] = Field(
        description="`command`, `outcome`, `ok`, `test`, `turn`; the latest first."
    )
    open_errors: list[dict[str, Any]] = Field(description="`source`, `lines`, `turn`.")
    processes: list[str]
    todo: list[dict[str, str]] = Field(description="The agent's own list: `text`, `status`.")


class UsageView(View):
    thread: str
    sums: dict[str, NumbersByName] = Field(
        description="By `main`, `auxiliary`, `subagents`, and `all`."
    )


class InsightsView(View):
    days: int
    total: NumbersByName
    threads: int
    sessions: int
    messages: int
    compactions: int
    tokens_saved: int
    by_day: dict[str, NumbersByName]
    by_model: dict[str, NumbersByName]
    by_platform: dict[str, NumbersByName]
    by_task: dict[str, NumbersByName]
    by_tool: dict[str, dict[str, int]]


class CommandView(View):
    """The answer to compress and undo."""

    text: str
    data: dict[str, Any]


def make_turn_view(turn: QueuedTurn) -> TurnView:
    is_answered = turn.state == "answered"
    result: Mapping[str, Any] = turn.result or {}
    return TurnView(
        id=turn.id,
        thread=turn.thread,
        state=turn.state,
        place=turn.position,
        content=turn.message.get("content") or "",
        created=turn.created,
        started=turn.started_at,
        ended=turn.ended_at,
        answer=TurnAnswer.model_validate(result) if is_answered else None,
        error=None if is_answered or turn.is_open else ErrorDetail.model_validate(result),
    )


def make_thread_fields(
    first_session: Session,
    last_session: Session,
    settings: Mapping[str, Any],
    title: str = "",
) -> dict[str, Any]:
    """Return the fields that every view of a thread has. `title` is used if the thread has none of its own."""
    metadata = settings.get("metadata")
    return {
        "id": first_session.id,
        "title": last_session.title or first_session.title or title,
        "kind": first_session.shown_kind,
        "model": settings.get("model") or last_session.model,
        "platform": first_session.platform,
        "client": first_session.client,
        "parent": first_session.parent,
        "created": first_session.started,
        "session": last_session.id,
        "in_view": last_session.message_count,
        "metadata": metadata if isinstance(metadata, dict) else {},
    }


def make_thread_item(row: ThreadRow, settings: Mapping[str, Any], title: str) -> ThreadItem:
    return ThreadItem(
        **make_thread_fields(row.first, row.tip, settings, title),
        messages=row.message_count,
        tokens=row.token_count,
        active=row.last_active,
        compactions=row.compaction_count,
        side_calls=row.side_call_count,
    )


def make_compaction_view(compaction: CompactionRecord) -> CompactionView:
    record = compaction.record
    return CompactionView(
        id=compaction.id,
        created=compaction.created,
        reverted=compaction.reverted_at,
        tokens_before=record.tokens_before,
        tokens_after=record.tokens_after,
        messages=len(record.covered),
        author=record.author,
        reason=record.reason,
        summary=redact(record.summary),
        cost=None if record.cost is None else float(record.cost),
        duration=record.duration,
        warnings=[redact(warning) for warning in record.warnings],
        recall=f"/api/threads/{compaction.thread}/search",
    )


def make_message_view(message: StoredMessage) -> MessageView:
    body: dict[str, Any] = {key: value for key, value in message.body.items() if key != "_native"}
    return MessageView(
        id=message.id,
        kind=message.kind,
        role=str(body["role"]),
        body=body,
        tokens=message.tokens,
        created=message.created,
    )
