"""The events of a conversation, from which a front end can show all that happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, ClassVar

from everthread.compaction.engine import describe_progress
from everthread.compaction.summarizers.summarizer import Verification
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import ModelRequest


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a session."""

    kind: ClassVar[str] = "event"
    json_names: ClassVar[Mapping[str, str]] = {}
    """The names of fields that are called otherwise in JSON."""
    session: str

    def as_dict(self) -> dict[str, Any]:
        """Return the event as JSON values."""
        values = {self.json_names.get(name, name): value for name, value in asdict(self).items()}
        return {"event": self.kind, **_to_json_value(values)}


@dataclass(frozen=True, slots=True)
class Estimated(Event):
    """The size of the next request: `tokens` of `window`; at `threshold` the history is compacted."""

    kind = "estimate"
    json_names: ClassVar = {"is_reported": "reported"}
    tokens: int
    window: int
    threshold: int
    is_reported: bool
    """Whether the size is based on the provider's count, not on an estimate alone."""


@dataclass(frozen=True, slots=True)
class RequestReady(Event):
    """A request is about to be sent; its last `injected_count` messages are for this call only."""

    kind = "request"
    request: ModelRequest
    injected_count: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the event without the messages, which are in the store."""
        sizes = {
            "messages": len(self.request.messages),
            "tools": len(self.request.tools),
            "injected": self.injected_count,
        }
        return {
            "event": self.kind,
            "session": self.session,
            "model": self.request.model,
        } | sizes


@dataclass(frozen=True, slots=True)
class Planned(Event):
    """The dollars for and against compacting now, and the reason to do it or to wait."""

    kind = "plan"
    json_names: ClassVar = {
        "timing": "action",
        "reason": "why",
        "savings": "saves",
        "cheaper_calls": "calls",
    }
    timing: str
    """`now` or `later`."""
    reason: str
    tokens: int
    cost: Decimal
    savings: Decimal
    cheaper_calls: int
    """Further calls assumed for the saving."""


@dataclass(frozen=True, slots=True)
class CompactionStarted(Event):
    kind = "compaction_started"
    json_names: ClassVar = {"is_background": "background"}
    reason: str
    tokens: int
    is_background: bool = False
    """Whether the conversation continues in the meantime."""


@dataclass(frozen=True, slots=True)
class CompactionProgress(Event):
    """A step within a compaction, such as a route that failed or is paused."""

    kind = "compaction_progress"
    text: str
    is_repeated: bool = False
    """Whether an earlier event gave the same reason, such as a route that is still paused."""


@dataclass(frozen=True, slots=True)
class CompactionDone(Event):
    """The context was compacted; `session` continues `previous`. A proxied thread has one id for both."""

    kind = "compaction_done"
    json_names: ClassVar = {"covered_count": "covered", "is_background": "background"}
    previous: str
    reason: str
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    author: str
    count: int
    """The number of this compaction in the thread."""
    verification: Verification
    duration: float
    cost: Decimal | None = None
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    decision: str = ""
    """The reason in dollars for the compaction's time, or an empty string if no prices decided it."""
    covered_count: int = 0
    """The number of messages that its summary covers."""
    is_background: bool = False
    """Whether it was made while the conversation continued."""


@dataclass(frozen=True, slots=True)
class CompactionVoid(Event):
    """A compaction was made but not used: the context stays unchanged, or another process has compacted it first."""

    kind = "compaction_void"
    json_names: ClassVar = {"reason": "why"}
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionFailed(Event):
    kind = "compaction_failed"
    error: str


@dataclass(frozen=True, slots=True)
class Recovery(Event):
    """The provider refused the request; names the step taken."""

    kind = "recovery"
    problem: str
    attempt: int
    action: str


@dataclass(frozen=True, slots=True)
class UsageRecorded(Event):
    kind = "usage"
    json_names: ClassVar = {"is_estimated": "estimated"}
    model: str
    task: str
    usage: CanonicalUsage
    cost: Decimal | None
    """Dollars, or None if a price is unknown."""
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class LimitLearnt(Event):
    """The model's window differs from the assumed one."""

    kind = "limit_learnt"
    json_names: ClassVar = {"is_stored": "stored"}
    model: str
    window: int
    source: str
    is_stored: bool


@dataclass(frozen=True, slots=True)
class OutputStored(Event):
    """A tool result is kept outside the context, under `output`."""

    kind = "output_stored"
    output: str
    tool: str
    chars: int


@dataclass(frozen=True, slots=True)
class Recalled(Event):
    """Excerpts of messages that are no longer in view were injected for this call."""

    kind = "recalled"
    cited: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class ToolsChanged(Event):
    """From the next request on, other tools are offered; `find_tools` finds the ones left out."""

    kind = "tools"
    json_names: ClassVar = {
        "removed_names": "gone",
        "returned_names": "back",
        "tool_count": "given",
        "reason": "why",
        "is_immediate": "now",
    }
    left_out: tuple[str, ...]
    """All tools now left out."""
    removed_names: tuple[str, ...]
    returned_names: tuple[str, ...]
    tool_count: int
    """The number of all tools."""
    tokens_saved: int
    """Tokens that each request saves, compared with offering all tools."""
    reason: str
    is_immediate: bool = False
    """Whether the tools change within a session, because a person accepted the cache miss."""


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A notice for the user."""

    kind = "notice"
    json_names: ClassVar = {"is_temporary": "passing"}
    text: str
    is_temporary: bool = False
    """A short-lived notice, such as a retry, that need not stay on a screen."""


@dataclass(frozen=True, slots=True)
class Drifted(Event):
    """A client dropped thinking or results in the compacted part of its history; the compaction is still used."""

    kind = "drift"
    json_names: ClassVar = {"covered_count": "covered"}
    covered_count: int
    """Messages of the client."""


@dataclass(frozen=True, slots=True)
class Branched(Event):
    """A client changed earlier messages: `session` is a new thread that branches off `parent`."""

    kind = "branch"
    parent: str
    length: int
    """Number of messages that both share."""


@dataclass(frozen=True, slots=True)
class CompactionReceipt(Event):
    """A compacted history is sent to the provider for the first time."""

    kind = "receipt"
    text: str
    """One line with the effect, and how to look up compacted messages."""


@dataclass(frozen=True, slots=True)
class PayloadShrunk(Event):
    """A request had too many bytes: old images were dropped from its beginning and big results stored."""

    kind = "slimmed"
    json_names: ClassVar = {"covered_count": "covered", "stored_count": "stored"}
    covered_count: int
    chars_before: int
    chars_after: int
    stored_count: int
    """Number of results that were stored and replaced by citations."""


@dataclass(frozen=True, slots=True)
class RecordFailed(Event):
    """Messages or usage could not be stored; the request continued."""

    kind = "record_failed"
    error: str


@dataclass(frozen=True, slots=True)
class Unmanaged(Event):
    """A request was forwarded unchanged, because the provider keeps or changes the history itself."""

    kind = "unmanaged"
    json_names: ClassVar = {"reason": "why"}
    reason: str
    """The request field that shows it."""


@dataclass(frozen=True, slots=True)
class RecallAnswered(Event):
    """The model looked up compacted content: the gateway answered its `recall` calls, hidden from the client."""

    kind = "recall"
    json_names: ClassVar = {"round_count": "rounds", "call_count": "calls"}
    round_count: int
    call_count: int


Listener = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Ignore an event; the default listener."""


def make_engine_event(session: str, kind: str, details: Mapping[str, Any]) -> Event:
    """Return an event for a report of an engine or a summariser."""
    if kind == "notice":
        return Notice(session, str(details.get("text", "")))
    is_repeated = kind == "summary_skipped"
    return CompactionProgress(session, describe_progress(kind, details), is_repeated)


def _to_json_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
