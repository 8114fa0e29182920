"""Answer a request: check it, choose the answer, count usage, apply a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.caching.shared_prefix import (
    PrefixDiff,
    compare_prefixes,
)
from everthread.core.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.types import Api, Reply, Request
from everthread.errors import InputError, WireError
from everthread.lab.provider import checks
from everthread.lab.provider.cache import CacheUse, Prompt, PromptReader, ProviderCaches
from everthread.lab.provider.faults import (
    ANSWERED,
    UNFINISHED_ANSWER,
    Fault,
    FaultPlan,
    Refusal,
    refusal,
)
from everthread.lab.provider.script import (
    Answers,
    asks_compaction,
    complete_reply,
    echo,
    make_compaction,
    reasoned_items,
)
from everthread.lab.provider.served_models import Protocol, ServedModel
from everthread.wire import openai_responses
from everthread.wire.sse import SseEvent, encode_event

SESSION_HEADERS = ("x-everthread-session", "x-session-id", "session-id", "session_id")
"""Headers by which clients name a session; the first that is there counts."""


@dataclass(slots=True)
class Record:
    """One request. Logged on arrival, and complete before the answer's first byte is sent."""

    number: int
    """Counted from 1."""
    api: Api
    path: str
    headers: Mapping[str, str]
    """With lower-case names."""
    at: float
    body: Any = None
    """The received JSON; None if it was not JSON."""
    request: Request | None = None
    """The same in core form; None if it could not be read."""
    status: int | None = None
    """None while it hangs."""
    error: str = ""
    """The words of the error it was answered with."""
    fault: str = ""
    """The kind of fault that was played."""
    reply: Reply | None = None
    usage: dict[str, Any] | None = None
    """As it was sent, which a fault may have falsified."""
    prompt_tokens: int = 0
    """The true size of the prompt."""
    cached_tokens: int = 0
    written_tokens: int = 0
    shared: PrefixDiff | None = None
    """How far it extends the request before of its session and model; None for the first."""
    events: list[str] = field(default_factory=list)
    """What happened while the answer was sent: `gone` where the client left, `reset`, `cut`."""

    @property
    def model(self) -> str:
        return self.request.model if self.request else ""

    @property
    def stream(self) -> bool:
        return isinstance(self.body, Mapping) and self.body.get("stream") is True

    @property
    def session(self) -> str:
        """Return the owner of the request by its headers; empty if they name none."""
        return next(
            (self.headers[name] for name in SESSION_HEADERS if self.headers.get(name)),
            "",
        )

    @property
    def canonical_usage(self) -> CanonicalUsage:
        return normalize_usage(self.usage, api=self.api)

    def summary(self) -> dict[str, Any]:
        """The figures of one line."""
        names = (
            "number",
            "api",
            "model",
            "status",
            "prompt_tokens",
            "cached_tokens",
            "written_tokens",
            "stream",
            "session",
            "fault",
            "error",
        )
        used = self.canonical_usage.output_tokens if self.usage else 0
        return {name: getattr(self, name) for name in names} | {"output_tokens": used}


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """One request that could be read."""

    protocol: Protocol
    record: Record
    request: Request
    model: ServedModel
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """A planned answer: a status, a body or the events of a stream, and the fault that interrupts it."""

    status: int
    body: bytes = b""
    events: list[bytes] | None = None
    fault: Fault | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def refuse(record: Record, error: Refusal) -> ProviderAnswer:
    record.status = error.status
    record.error = error.text
    return ProviderAnswer(
        error.status, json.dumps(error.body).encode(), headers=error.headers
    )


def fail_stream(
    case: ProviderCall, events: list[bytes], error: Refusal
) -> ProviderAnswer:
    """A stream with status 200 that ends in an error, in the form the protocol gives it."""
    case.record.error = error.text
    if case.protocol.api == "anthropic":
        event = SseEvent("error", json.dumps(error.body))
    else:
        body: dict[str, Any] = {"error": error.body.get("error", error.body)}
        if case.protocol.api == "openai_responses":
            body = {"type": "error", "sequence_number": len(events), **body}
        event = SseEvent(body.get("type"), json.dumps(body))
    return ProviderAnswer(200, events=[*events, encode_event(event)])


def fault_error(case: ProviderCall, fault: Fault) -> Refusal | None:
    """The error a fault is, if it is one."""
    if fault.kind in ("overflow", "stream_overflow"):
        return checks.find_overflow(
            case.protocol.api, case.model, case.model.window + case.prompt.tokens, None
        )
    if fault.kind not in _ERRORS:
        return None
    status, words = _ERRORS[fault.kind]
    error = refusal(case.protocol.api, status, fault.message or words)
    waits = fault.retry_after
    headers = (
        {}
        if waits is None
        else {"retry-after": f"{waits:g}", "retry-after-ms": f"{waits * 1000:.0f}"}
    )
    return replace(error, headers=headers)


_ERRORS = {
    "rate_limit": (
        429,
        "Rate limit reached: too many requests per minute. Please try again later.",
    ),
    "server_error": (
        500,
        "The server had an error while processing your request. Sorry about that!",
    ),
    "stream_error": (
        500,
        "The server had an error while processing your request. Sorry about that!",
    ),
    "overloaded": (529, "Overloaded"),
    "payload_too_large": (413, "Request exceeds the maximum size"),
}


def empty_stream(events: Iterable[SseEvent]) -> list[SseEvent]:
    """A stream that begins and ends, and says nothing in between."""
    return [
        event
        for event in events
        if event.event in _FRAME
        or (
            event.event is None
            and (event.data == "[DONE]" or _is_silent(json.loads(event.data)))
        )
    ]


def _is_silent(chunk: Mapping[str, Any]) -> bool:
    """Return whether a chunk of a chat or of Gemini says nothing."""
    candidates = chunk.get("candidates") or [{}]
    return not chunk.get("choices") and "content" not in candidates[0]


_FRAME = ("message_start", "message_stop", "response.created", "response.in_progress")
_MIN_PIECE_CHARS = 24
"""Characters of a piece of a stream, at least."""
_MAX_PIECES = 40
"""Pieces of one text."""


def split_events(events: Iterable[SseEvent]) -> Iterator[SseEvent]:
    """Yield the events, long words cut, renumbered if the protocol numbers them."""
    number = 0
    for event in events:
        if event.data == "[DONE]":
            yield event
            continue
        data = json.loads(event.data)
        holder, key = _words(data)
        words = holder[key] if key else ""
        length = max(_MIN_PIECE_CHARS, len(words) // _MAX_PIECES)
        for start in range(0, max(len(words), 1), length):
            if key:
                holder[key] = words[start : start + length]
            if "sequence_number" in data:
                data["sequence_number"] = number
                number += 1
            yield replace(event, data=json.dumps(data))


def _words(data: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The object and the key of the words that may come in pieces; an empty key where an event has none."""
    match data:
        case {
            "choices": [
                {
                    "delta": {
                        "tool_calls": [{"function": {"arguments": str()} as holder}]
                    }
                }
            ]
        }:
            return holder, "arguments" if len(holder) == 1 else ""
        case {"choices": [{"delta": holder}]} | {
            "type": "content_block_delta",
            "delta": holder,
        }:
            names = ("content", "reasoning_content", "text", "thinking", "partial_json")
            return holder, next(
                (name for name in names if isinstance(holder.get(name), str)), ""
            )
        case {"candidates": [{"content": {"parts": [{"text": str()} as holder]}}]}:
            return holder, "" if "thoughtSignature" in holder else "text"
        case {"type": str(kind), "delta": str()} if kind.endswith(".delta"):
            return data, "delta"
    return data, ""


class ProviderLogic:
    """Everything a provider decides. It knows nothing of HTTP."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        answers: Answers,
        plan: FaultPlan | None,
        clock: Callable[[], float],
    ) -> None:
        self._models = models
        self._answers = answers
        self._plan = plan
        self._caches = ProviderCaches(clock)
        self._readers: dict[str, PromptReader] = {}
        self._before: dict[tuple[str, str], Request] = {}
        self._reasoned: dict[str, str] = {}
        """The items of responses with the reasoning each came after."""

    async def answer(self, protocol: Protocol, record: Record) -> ProviderAnswer:
        """The answer; the record is complete when it returns."""
        try:
            outgoing = await self._decide(protocol, record)
        except InputError as error:
            outgoing = refuse(
                record,
                refusal(protocol.api, 500, f"The simulator cannot answer: {error}."),
            )
        hangs = outgoing.fault is not None and outgoing.fault.kind == "hang"
        record.status = None if hangs else outgoing.status
        return outgoing

    async def count(self, protocol: Protocol, record: Record) -> ProviderAnswer:
        """How many tokens a request has, asked for alone."""
        case = self._read(protocol, record)
        if isinstance(case, Refusal):
            return refuse(record, case)
        record.status = 200
        name = "totalTokens" if protocol.api == "gemini" else "input_tokens"
        return ProviderAnswer(200, json.dumps({name: case.prompt.tokens}).encode())

    async def compact(self, protocol: Protocol, record: Record) -> ProviderAnswer:
        """A compaction asked for at its own path."""
        case = self._read(protocol, record)
        if isinstance(case, Refusal):
            return refuse(record, case)
        if wrong := self._check(case):
            return refuse(record, wrong)
        if not case.model.compacts:
            return refuse(record, checks.unknown_path(protocol.api, record.path))
        record.status = 200
        body = {
            "id": f"resp_lab{record.number}",
            "object": "response.compaction",
            "created_at": 0,
            "output": [make_compaction(case.request, record.number)],
            "usage": protocol.usage(self._use_cache(case), 50, 0),
        }
        return ProviderAnswer(200, json.dumps(body).encode())

    async def _decide(self, protocol: Protocol, record: Record) -> ProviderAnswer:
        case = self._read(protocol, record)
        if isinstance(case, Refusal):
            return refuse(record, case)
        key = (record.session, case.request.model)
        if key in self._before:
            record.shared = compare_prefixes(self._before[key], case.request)
        self._before[key] = case.request
        if wrong := self._check(case):
            return refuse(record, wrong)
        if protocol.api == "openai_responses" and asks_compaction(record.body):
            if not case.model.compacts:
                return refuse(record, checks.unknown_trigger(protocol.api))
            item = make_compaction(case.request, record.number)
            return self._reply(
                case,
                Reply(openai_responses.decode_assistant_items([item]), "stop"),
                None,
            )
        too_large = checks.find_overflow(
            protocol.api, case.model, case.prompt.tokens, protocol.cap(record.body)
        )
        if too_large:
            in_stream = record.stream and case.model.errors_in_stream
            return (
                fail_stream(case, [], too_large)
                if in_stream
                else refuse(record, too_large)
            )
        reply, fault = await self._next_reply(case.request)
        if fault:
            record.fault = fault.kind
            error = fault_error(case, fault)
            if error and not (record.stream and fault.kind.startswith("stream_")):
                return refuse(record, error)
        return self._reply(case, reply, fault)

    def _read(self, protocol: Protocol, record: Record) -> ProviderCall | Refusal:
        """The request in core form, and its prompt; or why it cannot be read."""
        if not isinstance(record.body, Mapping):
            return refusal(
                protocol.api, 400, "We could not parse the JSON body of your request."
            )
        name = record.body.get("model")
        if not isinstance(name, str):
            return refusal(protocol.api, 400, "model: Field required")
        if name not in self._models:
            return checks.unknown_model(protocol.api, name)
        try:
            request = protocol.codec.decode_request(record.body)
        except WireError as error:
            return refusal(protocol.api, 400, f"Invalid request: {error}")
        record.request = request
        reader = self._readers.setdefault(
            name, PromptReader(self._models[name].tokenizer or name)
        )
        prompt = reader.read(protocol.api, request, record.body)
        record.prompt_tokens = prompt.tokens
        return ProviderCall(protocol, record, request, self._models[name], prompt)

    def _check(self, case: ProviderCall) -> Refusal | None:
        blocks = case.prompt.blocks if _is_claude(case) else None
        malformed = checks.check_request(
            case.protocol.api, case.request, case.record.body, self._reasoned, blocks
        )
        return malformed or checks.count_images(
            case.protocol.api, case.model, case.request
        )

    async def _next_reply(self, request: Request) -> tuple[Reply | str, Fault | None]:
        """The next reply and its fault. A fault of the plan that leaves no answer uses none of the script."""
        fault = self._plan.next() if self._plan else None
        if fault and fault.kind not in ANSWERED:
            return UNFINISHED_ANSWER, fault
        answer = await self._answers.next(request)
        if not isinstance(answer, Fault):
            return answer, fault
        if answer.reply is not None:
            return answer.reply, answer
        return echo(request) if answer.kind in ANSWERED else UNFINISHED_ANSWER, answer

    def _reply(
        self, case: ProviderCall, answer: Reply | str, fault: Fault | None
    ) -> ProviderAnswer:
        """The answer itself; only a request that gets one reads and writes the cache."""
        protocol = case.protocol
        record = case.record
        counter = self._readers[case.model.name].counter
        use = self._use_cache(case)
        record.cached_tokens = use.read
        record.written_tokens = use.write
        thoughts = fault.tokens if fault and fault.kind == "huge_reasoning" else 0
        reply = complete_reply(
            answer,
            protocol,
            counter,
            name=case.model.name,
            number=record.number,
            room=_room(case),
            use=use,
            thoughts=thoughts,
        )
        record.reply = reply
        self._reasoned |= reasoned_items(reply)
        kind = fault.kind if fault else ""
        if fault and kind == "wrong_usage":
            nonsense = CacheUse(fault.tokens, read=fault.tokens + 1)
            reply = replace(reply, usage=protocol.usage(nonsense, -1, 0))
        if kind == "no_usage" or (
            protocol.api == "openai_chat" and record.stream and not _wants_usage(record)
        ):
            reply = replace(reply, usage=None)
        record.usage = reply.usage
        if not record.stream:
            body = protocol.codec.encode_reply(reply)
            if kind == "empty":
                body[protocol.content] = []
            return ProviderAnswer(200, json.dumps(body).encode(), fault=fault)
        events = protocol.codec.encode_stream(reply)
        sent = [
            encode_event(event)
            for event in split_events(
                empty_stream(events) if kind == "empty" else events
            )
        ]
        error = fault_error(case, fault) if fault else None
        if fault and error:
            return fail_stream(case, sent[: fault.after], error)
        return ProviderAnswer(200, b"", sent, fault)

    def _use_cache(self, case: ProviderCall) -> CacheUse:
        """Claude's cache needs marks; all others work automatically."""
        minimum = case.model.minimum if _is_claude(case) else None
        return self._caches.use(case.model.name, case.prompt, minimum=minimum)


def _is_claude(case: ProviderCall) -> bool:
    """Return whether cache marks are understood: by Claude in any protocol, and by any model in Claude's."""
    return case.protocol.api == "anthropic" or "claude" in case.model.name.lower()


def _room(case: ProviderCall) -> int:
    """How many tokens the reply may have: as asked, as the model can, as the window leaves."""
    rest = max(1, case.model.window - case.prompt.tokens)
    bounds = (case.protocol.cap(case.record.body), case.model.max_output, rest)
    return min(bound for bound in bounds if bound is not None)


def _wants_usage(record: Record) -> bool:
    options = record.body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True
