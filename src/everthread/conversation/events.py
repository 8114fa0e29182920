"""The events of a conversation. A front end needs nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, ClassVar

from everthread.compaction.summary import Verification
from everthread.core.pricing import CanonicalUsage
from everthread.core.types import Request


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a session."""

    kind: ClassVar[str] = "event"
    session: str

    def as_dict(self) -> dict[str, Any]:
        """The event as JSON values."""
        return {"event": self.kind, **_plain(asdict(self))}


@dataclass(frozen=True, slots=True)
class Estimated(Event):
    """How full the next request is: `tokens` of `window`; at `threshold` the history is compacted."""

    kind = "estimate"
    tokens: int
    window: int
    threshold: int
    reported: bool
    """Built on what the provider counted, not on an estimate alone."""


@dataclass(frozen=True, slots=True)
class RequestReady(Event):
    """What will be sent; the last `injected` messages are for this call only."""

    kind = "request"
    request: Request
    injected: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Without the messages: they are in the store."""
        sizes = {"messages": len(self.request.messages), "tools": len(self.request.tools), "injected": self.injected}
        return {"event": self.kind, "session": self.session, "model": self.request.model} | sizes


@dataclass(frozen=True, slots=True)
class Planned(Event):
    """Whether compacting pays now, in dollars, and why it is done or put off."""

    kind = "plan"
    action: str
    """`now` or `later`."""
    why: str
    tokens: int
    cost: Decimal
    saves: Decimal
    calls: int
    """Further calls the saving is reckoned over."""


@dataclass(frozen=True, slots=True)
class CompactionStarted(Event):
    kind = "compaction_started"
    reason: str
    tokens: int
    background: bool = False
    """The conversation goes on meanwhile."""


@dataclass(frozen=True, slots=True)
class CompactionProgress(Event):
    """What happens within a compaction: a route that failed or rests, a step that was taken."""

    kind = "compaction_progress"
    text: str


@dataclass(frozen=True, slots=True)
class CompactionDone(Event):
    """The context was rewritten; `session` is the new one."""

    kind = "compaction_done"
    previous: str
    reason: str
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    author: str
    count: int
    """Which compaction of the thread this is."""
    verification: Verification
    duration: float
    cost: Decimal | None = None
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    decision: str = ""
    """Why it was done now, in dollars; empty where prices are unknown or a person asked."""


@dataclass(frozen=True, slots=True)
class CompactionVoid(Event):
    """A compaction was not used; the context is unchanged, or another process compacted it first."""

    kind = "compaction_void"
    why: str


@dataclass(frozen=True, slots=True)
class CompactionFailed(Event):
    kind = "compaction_failed"
    error: str


@dataclass(frozen=True, slots=True)
class Recovery(Event):
    """The provider refused the request, and what is done about it."""

    kind = "recovery"
    problem: str
    attempt: int
    action: str


@dataclass(frozen=True, slots=True)
class UsageRecorded(Event):
    kind = "usage"
    model: str
    task: str
    usage: CanonicalUsage
    cost: Decimal | None
    """Dollars; None where a price is unknown."""
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class LimitLearnt(Event):
    """The window is another than was thought."""

    kind = "limit_learnt"
    model: str
    window: int
    source: str
    stored: bool


@dataclass(frozen=True, slots=True)
class OutputStored(Event):
    """A tool result is kept outside the context, under `output`."""

    kind = "output_stored"
    output: str
    tool: str
    chars: int


@dataclass(frozen=True, slots=True)
class Recalled(Event):
    """Excerpts of what is no longer in view were injected for this call: their ids, and the tokens they take."""

    kind = "recalled"
    cited: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class ToolsChanged(Event):
    """Other tools are offered from the next request on; `find_tools` finds those left out."""

    kind = "tools"
    left_out: tuple[str, ...]
    """All that are, now."""
    gone: tuple[str, ...]
    back: tuple[str, ...]
    given: int
    """How many there are in all."""
    tokens_saved: int
    """By each request, against offering all."""
    why: str
    now: bool = False
    """Within a session: a person accepted the cache miss."""


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A sentence for the person."""

    kind = "notice"
    text: str
    passing: bool = False
    """A short-lived notice, such as a retry, that need not stay on a screen."""


Listener = Callable[[Event], None]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
