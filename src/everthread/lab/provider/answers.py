"""Decide how the provider answers a request: with a checked reply and its usage, an error, or a fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.caching.shared_prefix import (
    PrefixDiff,
    compare_prefixes,
)
from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.errors import InputError, WireError
from everthread.lab.provider import checks
from everthread.lab.provider.cache import CacheUse, ProviderCaches
from everthread.lab.provider.faults import (
    ANSWERED_FAULTS,
    UNFINISHED_ANSWER,
    Fault,
    FaultPlan,
    Refusal,
    make_refusal,
)
from everthread.lab.provider.prompt_blocks import Prompt, PromptReader
from everthread.lab.provider.reply_completion import (
    complete_reply,
    map_items_to_reasoning,
)
from everthread.lab.provider.script import ScriptedAnswers, echo
from everthread.lab.provider.served_models import Protocol, ServedModel
from everthread.lab.provider.signatures import asks_for_compaction, make_compaction
from everthread.wire import openai_responses
from everthread.wire.sse import SseEvent, encode_event

SESSION_HEADERS = ("x-everthread-session", "x-session-id", "session-id", "session_id")
"""Headers in which clients name a session; the first one present is used."""


@dataclass(slots=True)
class RequestRecord:
    """One request. It is logged on arrival and completed before the first byte of the answer is sent."""

    number: int
    """Counted from 1."""
    api: Api
    path: str
    headers: Mapping[str, str]
    """The received headers, with lower-case names."""
    arrival_time: float
    body: Any = None
    """The received JSON, or None if it was not JSON."""
    request: ModelRequest | None = None
    """The body in core form, or None if it could not be read."""
    status: int | None = None
    """The status of the answer, or None if a fault keeps the client waiting."""
    error: str = ""
    """The message of the error it was answered with."""
    fault: str = ""
    """The kind of fault that was played."""
    reply: ModelReply | None = None
    usage: dict[str, Any] | None = None
    """The usage sent to the client, which a fault may have falsified."""
    prompt_tokens: int = 0
    """The true size of the prompt."""
    cached_tokens: int = 0
    written_tokens: int = 0
    shared: PrefixDiff | None = None
    """How far it extends the previous request of the same session and model, or None for the first."""
    events: list[str] = field(default_factory=list)
    """What happened while the answer was sent: `gone` if the client left, `reset` or `cut` by a fault."""

    @property
    def model(self) -> str:
        return self.request.model if self.request else ""

    @property
    def stream(self) -> bool:
        return isinstance(self.body, Mapping) and self.body.get("stream") is True

    @property
    def session(self) -> str:
        """Return the session that the headers name, or an empty string if they name none."""
        return next(
            (self.headers[name] for name in SESSION_HEADERS if self.headers.get(name)),
            "",
        )

    @property
    def canonical_usage(self) -> CanonicalUsage:
        return normalize_usage(self.usage, api=self.api)

    def summary(self) -> dict[str, Any]:
        """Return the figures for one line of the log."""
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
        output_tokens = self.canonical_usage.output_tokens if self.usage else 0
        return {name: getattr(self, name) for name in names} | {"output_tokens": output_tokens}


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """One request that could be read."""

    protocol: Protocol
    record: RequestRecord
    request: ModelRequest
    model: ServedModel
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """An answer before it is sent: a body or the events of a stream, and the fault that interrupts it."""

    status: int
    body: bytes = b""
    events: list[bytes] | None = None
    fault: Fault | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def refuse(record: RequestRecord, refusal: Refusal) -> ProviderAnswer:
    record.status = refusal.status
    record.error = refusal.text
    return ProviderAnswer(
        refusal.status, json.dumps(refusal.body).encode(), headers=refusal.headers
    )


def fail_stream(call: ProviderCall, events: list[bytes], error: Refusal) -> ProviderAnswer:
    """Return a stream with status 200 that ends in an error, in the protocol's format."""
    call.record.error = error.text
    if call.protocol.api == "anthropic":
        event = SseEvent("error", json.dumps(error.body))
    else:
        body: dict[str, Any] = {"error": error.body.get("error", error.body)}
        if call.protocol.api == "openai_responses":
            body = {"type": "error", "sequence_number": len(events), **body}
        event = SseEvent(body.get("type"), json.dumps(body))
    return ProviderAnswer(200, events=[*events, encode_event(event)])


def make_fault_error(call: ProviderCall, fault: Fault) -> Refusal | None:
    """Return the error of a fault, or None if the fault is not an error."""
    if fault.kind in ("overflow", "stream_overflow"):
        return checks.find_overflow(
            call.protocol.api, call.model, call.model.window + call.prompt.tokens, None
        )
    if fault.kind not in _FAULT_ERRORS:
        return None
    status, message = _FAULT_ERRORS[fault.kind]
    error = make_refusal(call.protocol.api, status, fault.message or message)
    if fault.retry_after is None:
        return error
    headers = {
        "retry-after": f"{fault.retry_after:g}",
        "retry-after-ms": f"{fault.retry_after * 1000:.0f}",
    }
    return replace(error, headers=headers)


_FAULT_ERRORS = {
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


def drop_stream_content(events: Iterable[SseEvent]) -> list[SseEvent]:
    """Return the stream without its content: only the events that begin and end it."""
    return [event for event in events if _has_no_content(event)]


def _has_no_content(event: SseEvent) -> bool:
    if event.event is not None:
        return event.event in _FRAME_EVENTS
    if event.data == "[DONE]":
        return True
    # Chat completions and Gemini stream chunks without an event name.
    chunk = json.loads(event.data)
    candidates = chunk.get("candidates") or [{}]
    return not chunk.get("choices") and "content" not in candidates[0]


_FRAME_EVENTS = (
    "message_start",
    "message_stop",
    "response.created",
    "response.in_progress",
)
_MIN_PIECE_CHARS = 24
"""Minimum characters of a piece of a stream."""
_MAX_PIECES = 40
"""Maximum pieces into which a text of a stream is split."""


def split_events(events: Iterable[SseEvent]) -> Iterator[SseEvent]:
    """Yield the events with long texts split into several, renumbered if the protocol numbers them."""
    sequence_number = 0
    for event in events:
        if event.data == "[DONE]":
            yield event
            continue
        data = json.loads(event.data)
        parent, key = _find_text(data)
        text = parent[key] if key else ""
        length = max(_MIN_PIECE_CHARS, len(text) // _MAX_PIECES)
        for start in range(0, max(len(text), 1), length):
            if key:
                parent[key] = text[start : start + length]
            if "sequence_number" in data:
                data["sequence_number"] = sequence_number
                sequence_number += 1
            yield replace(event, data=json.dumps(data))


def _find_text(data: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Find the text of an event that may be split. Return the object that holds it, and its key or an empty text."""
    match data:
        case {
            "choices": [{"delta": {"tool_calls": [{"function": {"arguments": str()} as parent}]}}]
        }:
            return parent, "arguments" if len(parent) == 1 else ""
        case {"choices": [{"delta": parent}]} | {
            "type": "content_block_delta",
            "delta": parent,
        }:
            names = ("content", "reasoning_content", "text", "thinking", "partial_json")
            return parent, next((name for name in names if isinstance(parent.get(name), str)), "")
        case {"candidates": [{"content": {"parts": [{"text": str()} as parent]}}]}:
            return parent, "" if "thoughtSignature" in parent else "text"
        case {"type": str(kind), "delta": str()} if kind.endswith(".delta"):
            return data, "delta"
    return data, ""


class ProviderLogic:
    """Decides the answers of a provider, independent of HTTP."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        answers: ScriptedAnswers,
        plan: FaultPlan | None,
        clock: Callable[[], float],
    ) -> None:
        self._models = models
        self._answers = answers
        self._plan = plan
        self._caches = ProviderCaches(clock)
        self._readers: dict[str, PromptReader] = {}
        self._previous_requests: dict[tuple[str, str], ModelRequest] = {}
        self._reasoning_id_by_item_id: dict[str, str] = {}
        """The id of the reasoning that precedes each item of a response, by the item's id."""

    async def answer(self, protocol: Protocol, record: RequestRecord) -> ProviderAnswer:
        """Return the answer to a request and complete the request's record."""
        try:
            provider_answer = await self._decide_answer(protocol, record)
        except InputError as error:
            provider_answer = refuse(
                record,
                make_refusal(protocol.api, 500, f"The simulator cannot answer: {error}."),
            )
        is_hanging = provider_answer.fault is not None and provider_answer.fault.kind == "hang"
        record.status = None if is_hanging else provider_answer.status
        return provider_answer

    async def count_tokens(self, protocol: Protocol, record: RequestRecord) -> ProviderAnswer:
        """Answer a request that only asks for the number of its tokens."""
        call = self._read_call(protocol, record)
        if isinstance(call, Refusal):
            return refuse(record, call)
        record.status = 200
        name = "totalTokens" if protocol.api == "gemini" else "input_tokens"
        return ProviderAnswer(200, json.dumps({name: call.prompt.tokens}).encode())

    async def compact(self, protocol: Protocol, record: RequestRecord) -> ProviderAnswer:
        """Answer a request for a compaction at its own path."""
        call = self._read_call(protocol, record)
        if isinstance(call, Refusal):
            return refuse(record, call)
        if problem := self._check_call(call):
            return refuse(record, problem)
        if not call.model.compacts:
            return refuse(record, checks.refuse_unknown_path(protocol.api, record.path))
        record.status = 200
        body = {
            "id": f"resp_lab{record.number}",
            "object": "response.compaction",
            "created_at": 0,
            "output": [make_compaction(call.request, record.number)],
            "usage": protocol.make_usage(self._use_cache(call), 50, 0),
        }
        return ProviderAnswer(200, json.dumps(body).encode())

    async def _decide_answer(self, protocol: Protocol, record: RequestRecord) -> ProviderAnswer:
        call = self._read_call(protocol, record)
        if isinstance(call, Refusal):
            return refuse(record, call)
        key = (record.session, call.request.model)
        if key in self._previous_requests:
            record.shared = compare_prefixes(self._previous_requests[key], call.request)
        self._previous_requests[key] = call.request
        if problem := self._check_call(call):
            return refuse(record, problem)
        if protocol.api == "openai_responses" and asks_for_compaction(record.body):
            if not call.model.compacts:
                return refuse(record, checks.refuse_compaction_trigger(protocol.api))
            item = make_compaction(call.request, record.number)
            return self._make_answer(
                call,
                ModelReply(openai_responses.decode_assistant_items([item]), "stop"),
                None,
            )
        overflow_refusal = checks.find_overflow(
            protocol.api,
            call.model,
            call.prompt.tokens,
            protocol.read_output_cap(record.body),
        )
        if overflow_refusal:
            if record.stream and call.model.errors_in_stream:
                return fail_stream(call, [], overflow_refusal)
            return refuse(record, overflow_refusal)
        reply, fault = await self._next_reply(call.request)
        if fault:
            record.fault = fault.kind
            error = make_fault_error(call, fault)
            if error and not (record.stream and fault.kind.startswith("stream_")):
                return refuse(record, error)
        return self._make_answer(call, reply, fault)

    def _read_call(self, protocol: Protocol, record: RequestRecord) -> ProviderCall | Refusal:
        """Return the request in core form with its prompt, or the error if it cannot be read."""
        if not isinstance(record.body, Mapping):
            return make_refusal(
                protocol.api, 400, "We could not parse the JSON body of your request."
            )
        name = record.body.get("model")
        if not isinstance(name, str):
            return make_refusal(protocol.api, 400, "model: Field required")
        if name not in self._models:
            return checks.refuse_unknown_model(protocol.api, name)
        try:
            request = protocol.codec.decode_request(record.body)
        except WireError as error:
            return make_refusal(protocol.api, 400, f"Invalid request: {error}")
        record.request = request
        reader = self._readers.setdefault(name, PromptReader(self._models[name].tokenizer or name))
        prompt = reader.read(protocol.api, request, record.body)
        record.prompt_tokens = prompt.tokens
        return ProviderCall(protocol, record, request, self._models[name], prompt)

    def _check_call(self, call: ProviderCall) -> Refusal | None:
        blocks = call.prompt.blocks if _is_claude(call) else None
        problem = checks.check_request(
            call.protocol.api,
            call.request,
            call.record.body,
            self._reasoning_id_by_item_id,
            blocks,
        )
        return problem or checks.find_image_excess(call.protocol.api, call.model, call.request)

    async def _next_reply(self, request: ModelRequest) -> tuple[ModelReply | str, Fault | None]:
        """Return the next reply and its fault. A planned fault without an answer consumes no answer of the script."""
        fault = self._plan.next() if self._plan else None
        if fault and fault.kind not in ANSWERED_FAULTS:
            return UNFINISHED_ANSWER, fault
        answer = await self._answers.next(request)
        if not isinstance(answer, Fault):
            return answer, fault
        if answer.reply is not None:
            return answer.reply, answer
        return echo(request) if answer.kind in ANSWERED_FAULTS else UNFINISHED_ANSWER, answer

    def _make_answer(
        self, call: ProviderCall, answer: ModelReply | str, fault: Fault | None
    ) -> ProviderAnswer:
        """Return the answer to a request that is not refused; only such a request reads and writes the cache."""
        protocol = call.protocol
        record = call.record
        counter = self._readers[call.model.name].counter
        use = self._use_cache(call)
        record.cached_tokens = use.read
        record.written_tokens = use.write
        extra_reasoning_tokens = fault.tokens if fault and fault.kind == "huge_reasoning" else 0
        reply, body = complete_reply(
            answer,
            protocol,
            counter,
            model=call.model.name,
            number=record.number,
            max_tokens=_count_output_room(call),
            use=use,
            extra_reasoning_tokens=extra_reasoning_tokens,
        )
        record.reply = reply
        self._reasoning_id_by_item_id |= map_items_to_reasoning(reply)
        fault_kind = fault.kind if fault else ""
        if fault and fault_kind == "wrong_usage":
            wrong_use = CacheUse(fault.tokens, read=fault.tokens + 1)
            body[protocol.usage_field] = protocol.make_usage(wrong_use, -1, 0)
        if fault_kind == "no_usage" or (
            protocol.api == "openai_chat" and record.stream and not _wants_usage(record)
        ):
            _remove_usage(body, protocol)
        else:
            record.usage = body.get(protocol.usage_field)
        if not record.stream:
            if fault_kind == "empty":
                body[protocol.content_field] = []
            return ProviderAnswer(200, json.dumps(body).encode(), fault=fault)
        events: Iterable[SseEvent] = protocol.codec.encode_stream(body)
        if fault_kind == "empty":
            events = drop_stream_content(events)
        sent_events = [encode_event(event) for event in split_events(events)]
        error = make_fault_error(call, fault) if fault else None
        if fault and error:
            return fail_stream(call, sent_events[: fault.after], error)
        return ProviderAnswer(200, b"", sent_events, fault)

    def _use_cache(self, call: ProviderCall) -> CacheUse:
        """Read and write the cache. Claude's needs marks; all others work automatically."""
        minimum = call.model.min_cached_tokens if _is_claude(call) else None
        return self._caches.use(call.model.name, call.prompt, minimum=minimum)


def _is_claude(call: ProviderCall) -> bool:
    """Return whether the model understands cache marks: Claude in any protocol, and any model in Claude's."""
    return call.protocol.api == "anthropic" or "claude" in call.model.name.lower()


def _count_output_room(call: ProviderCall) -> int:
    """Return how many tokens the reply may have within the limits of the request, the model and the window."""
    remaining_tokens = max(1, call.model.window - call.prompt.tokens)
    limits = (
        call.protocol.read_output_cap(call.record.body),
        call.model.max_output,
        remaining_tokens,
    )
    return min(limit for limit in limits if limit is not None)


def _remove_usage(body: dict[str, Any], protocol: Protocol) -> None:
    """Remove the usage from a reply. In Anthropic's protocol, which requires one, set its figures to zero."""
    body.pop(protocol.usage_field, None)
    if protocol.api == "anthropic":
        body["usage"] = protocol.make_usage(CacheUse(0), 0, 0)


def _wants_usage(record: RequestRecord) -> bool:
    options = record.body.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True
