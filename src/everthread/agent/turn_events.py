"""Events of an agent, besides its conversation's events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from everthread.core.secrets.json_redaction import redact_value
from everthread.core.secrets.redaction import redact
from everthread.thread.events import Event

MAX_RESULT_CHARS = 2_000
"""Characters of a result in its JSON form; the whole is in the store."""

EndReason = Literal["answered", "max_rounds", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class ToolStarted(Event):
    """A tool starts: it was approved, or needs no approval."""

    kind = "tool_started"
    call_id: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": self.kind,
            "session": self.session,
            "call_id": self.call_id,
            "tool": self.tool,
            "arguments": redact_value(dict(self.arguments)),
        }


@dataclass(frozen=True, slots=True)
class ToolFinished(Event):
    """A tool answered, failed, was refused or could not start."""

    kind = "tool_finished"
    call_id: str
    tool: str
    text: str
    failed: bool = False
    refused: bool = False
    """Whether the call was not approved."""
    seconds: float = 0.0
    """Run time, without the wait for approval."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Repeated here, because a refused call has no `ToolStarted` event."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": self.kind,
            "session": self.session,
            "call_id": self.call_id,
            "tool": self.tool,
            "failed": self.failed,
            "refused": self.refused,
            "seconds": round(self.seconds, 3),
            "chars": len(self.text),
            "text": redact(self.text[:MAX_RESULT_CHARS]),
        }


@dataclass(frozen=True, slots=True)
class TurnEnded(Event):
    """A turn ended; its answer follows, unless it was interrupted or failed."""

    kind = "turn_ended"
    reason: EndReason
    rounds: int
    """Rounds of tool calls."""
    calls: int
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Delegated(Event):
    """An event of a subagent's conversation."""

    kind = "delegated"
    thread: str
    """The subagent's thread."""
    event: Event

    def as_dict(self) -> dict[str, Any]:
        return {
            "event": self.kind,
            "session": self.session,
            "thread": self.thread,
            "inner": self.event.as_dict(),
        }
