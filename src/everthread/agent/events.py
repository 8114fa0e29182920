"""What an agent tells besides what its conversation tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from everthread.conversation.events import Event
from everthread.core.redaction import redact, redact_value

SHOWN = 2_000
"""Characters of a result in its JSON form; the whole is in the store."""

Ending = Literal["answered", "max_rounds", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class ToolStarted(Event):
    """A tool begins: it has leave, or needs none."""

    kind = "tool_started"
    call_id: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        shown = {"call_id": self.call_id, "tool": self.tool, "arguments": redact_value(dict(self.arguments))}
        return {"event": self.kind, "session": self.session} | shown


@dataclass(frozen=True, slots=True)
class ToolFinished(Event):
    """A tool answered, failed or was refused. Calls that could not even begin are told as well."""

    kind = "tool_finished"
    call_id: str
    tool: str
    text: str
    failed: bool = False
    refused: bool = False
    """Nobody gave leave."""
    seconds: float = 0.0
    """From its start; the time somebody took to give leave is not in it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for: a call that was refused has told it nowhere else."""

    def as_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in ("call_id", "tool", "failed", "refused")}
        figures = {"seconds": round(self.seconds, 3), "chars": len(self.text), "text": redact(self.text[:SHOWN])}
        return {"event": self.kind, "session": self.session} | shown | figures


@dataclass(frozen=True, slots=True)
class TurnEnded(Event):
    """The turn is over: its answer follows, unless it was interrupted or failed."""

    kind = "turn_ended"
    reason: Ending
    rounds: int
    """Of tool calls."""
    calls: int
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Delegated(Event):
    """Something that happened in a subagent's conversation."""

    kind = "delegated"
    thread: str
    """The subagent's."""
    event: Event

    def as_dict(self) -> dict[str, Any]:
        return {"event": self.kind, "session": self.session, "thread": self.thread, "inner": self.event.as_dict()}
