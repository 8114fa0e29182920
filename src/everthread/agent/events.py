"""What an agent tells besides what its conversation tells, and what is remembered of it for `/why`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from everthread.conversation import events
from everthread.conversation.events import Event
from everthread.core.cache_control import shared_prefix
from everthread.core.redaction import redact, redact_value
from everthread.core.types import Request

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


LEAST = 1_024
"""Prompt tokens below which no provider caches anything."""
TTL = 300.0
"""Seconds after which a provider may have forgotten a prefix that was not asked for."""
KEPT = 20


@dataclass(frozen=True, slots=True)
class CallUsage:
    """A request to the main model, and what was read of it from the cache."""

    request: Request
    session: str
    at: float
    prompt: int
    cached: int


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """A call that had to read anew what the one before had sent already."""

    at: float
    expected: int
    cached: int
    why: str


class CauseLog:
    """A listener that remembers what `/why` is asked for."""

    def __init__(self, clock: Callable[[], float] = time.time, *, ttl: float = TTL) -> None:
        self._clock, self._ttl = clock, ttl
        self._ready: tuple[Request, str, float] | None = None
        self._last: CallUsage | None = None
        self._ever_cached = False
        self.calls = 0
        self.miss: CacheMiss | None = None
        self.compactions: list[tuple[float, Event]] = []
        """What was done about the size of the context, the newest last."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.RequestReady):
            kept = event.request.messages[: len(event.request.messages) - event.injected]
            request = Request(event.request.model, kept, event.request.system, event.request.tools)
            self._ready = (request, event.session, self._clock())
        elif isinstance(event, events.UsageRecorded) and event.task == "main" and not event.estimated:
            self._used(event)
        elif isinstance(event, _SIZES):
            self.compactions = [*self.compactions[-KEPT + 1 :], (self._clock(), event)]

    def _used(self, event: events.UsageRecorded) -> None:
        if self._ready is None:
            return
        request, session, at = self._ready
        used = event.usage
        now = CallUsage(request, session, at, used.prompt_tokens, used.cache_read_tokens)
        before, self._last = self._last, now
        self.calls += 1
        self._ever_cached = self._ever_cached or now.cached > 0
        if before is not None and before.prompt >= LEAST and now.cached < before.prompt // 2:
            self.miss = CacheMiss(at, before.prompt, now.cached, self._reason(before, now))

    def _reason(self, before: CallUsage, now: CallUsage) -> str:
        if before.request.model != now.request.model:
            return f"another model: {before.request.model} became {now.request.model}"
        if before.session != now.session:
            return "the history was rewritten, or another session was entered: only tools and system prompt are shared"
        found = shared_prefix(before.request, now.request)
        if not found.extends:
            return f"the request no longer begins like the one before: {found}"
        if now.at - before.at > self._ttl:
            passed = now.at - before.at
            return f"{passed:,.0f} s passed since the call before; a cached prefix is kept for {self._ttl:,.0f} s"
        if not self._ever_cached:
            return "the provider has reported no cached tokens so far: it may not cache, or not report it"
        return "the request extends the one before byte for byte; the provider dropped its cache by itself"


_SIZES = (
    events.CompactionDone,
    events.CompactionFailed,
    events.CompactionVoid,
    events.Planned,
    events.Recovery,
    events.LimitLearnt,
)
