"""What an error, and what a fault, makes of an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.exchange import Reply, Request
from everthread.lab.dialects import Refusal, overflow, refusal
from everthread.lab.faults import Fault
from everthread.lab.log import Record
from everthread.lab.prompt_blocks import Prompt
from everthread.lab.prompt_cache import CacheUse
from everthread.lab.protocols import Protocol
from everthread.lab.served import ServedModel
from everthread.wire.sse import SseEvent, encode


@dataclass(frozen=True, slots=True)
class Case:
    """One request that could be read."""

    protocol: Protocol
    record: Record
    request: Request
    model: ServedModel
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is sent: a status, then a body or the events of a stream; the fault that spoils the sending."""

    status: int
    body: bytes = b""
    events: list[bytes] | None = None
    fault: Fault | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def refused(record: Record, error: Refusal) -> Outgoing:
    record.status, record.error = error.status, error.text
    return Outgoing(error.status, json.dumps(error.body).encode(), headers=error.headers)


def failing_stream(case: Case, events: list[bytes], error: Refusal) -> Outgoing:
    """A stream with status 200 that ends in an error, in the form the protocol gives it."""
    case.record.error = error.text
    if case.protocol.api == "anthropic":
        event = SseEvent("error", json.dumps(error.body))
    else:
        body: dict[str, Any] = {"error": error.body.get("error", error.body)}
        if case.protocol.api == "openai_responses":
            body = {"type": "error", "sequence_number": len(events), **body}
        event = SseEvent(body.get("type"), json.dumps(body))
    return Outgoing(200, events=[*events, encode(event)])


def fault_error(case: Case, fault: Fault) -> Refusal | None:
    """The error a fault is, if it is one."""
    if fault.kind in ("overflow", "stream_overflow"):
        too_many = case.model.window + case.prompt.tokens
        figures = {"model": case.model.name, "limit": case.model.window, "input": too_many, "output": 0}
        figures |= {"total": too_many, "over": case.prompt.tokens}
        return overflow(case.model.speaks(case.protocol.api), "prompt_too_long", figures)
    if fault.kind not in _ERRORS:
        return None
    status, words = _ERRORS[fault.kind]
    error = refusal(case.protocol.api, status, fault.message or words)
    waits = fault.retry_after
    headers = {} if waits is None else {"retry-after": f"{waits:g}", "retry-after-ms": f"{waits * 1000:.0f}"}
    return replace(error, headers=headers)


def spoilt(reply: Reply, protocol: Protocol, fault: Fault) -> Reply:
    """The reply with what the fault does to its usage."""
    if fault.kind == "no_usage":
        return replace(reply, usage=None)
    if fault.kind == "wrong_usage":
        nonsense = CacheUse(fault.tokens, read=fault.tokens + 1)
        return replace(reply, usage=protocol.usage(nonsense, -1, 0))
    return reply


def emptied(events: Iterable[SseEvent]) -> list[SseEvent]:
    """A stream that begins and ends, and says nothing in between."""
    return [event for event in events if event.event in _FRAME or (event.event is None and _says_nothing(event.data))]


def _says_nothing(data: str) -> bool:
    return data == "[DONE]" or not json.loads(data)["choices"]


_FRAME = ("message_start", "message_stop", "response.created", "response.in_progress")
_ERRORS = {
    "rate_limit": (429, "Rate limit reached: too many requests per minute. Please try again later."),
    "server_error": (500, "The server had an error while processing your request. Sorry about that!"),
    "stream_error": (500, "The server had an error while processing your request. Sorry about that!"),
    "overloaded": (529, "Overloaded"),
    "payload_too_large": (413, "Request exceeds the maximum size"),
}
