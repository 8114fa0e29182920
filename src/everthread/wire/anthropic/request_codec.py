"""Anthropic's whole requests, replies and streams <-> core, with the reasons a reply stopped for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from everthread.core.canonical_usage import normalize_usage
from everthread.core.messages import Part, kind_of
from everthread.core.types import Reply, Request, StreamDelta, System
from everthread.errors import WireError
from everthread.wire.anthropic.message_codec import (
    API,
    EncodedHistory,
    arguments_object,
    assistant_blocks,
    decode_message,
    decode_messages,
    decode_tools,
    encode_messages,
    encode_system,
    encode_tools,
    leading_instructions,
    objects,
)
from everthread.wire.common import (
    SseEvent,
    error_delta,
    error_text,
    event_object,
    reply_fields,
    require_list,
    require_object,
    require_text,
    without_private_fields,
)

# --- requests and replies ---------------------------------------------------------------------------------------------


DEFAULT_MAX_TOKENS = 8192
"""Anthropic requires `max_tokens`; every model in service can write this much."""


def decode_request(body: Mapping[str, Any]) -> Request:
    """A request in core form. What its assistant wrote is taken to be the work of the model it is sent to."""
    params = dict(without_private_fields(require_object(body, "the request")))
    model = require_text(params.pop("model", None), "model")
    messages = decode_messages(params.pop("messages", None), model=model)
    system = _system(params.pop("system", None))
    tools = decode_tools(params.pop("tools") if params.get("tools") else [])
    return Request(model, messages, system, tools, params)


def encode_request(
    request: Request, *, written: EncodedHistory | None = None
) -> dict[str, Any]:
    """The body to send. Instructions the messages begin with join the system prompt.

    `written`: of one conversation, so that its earlier messages are not written again for every request.
    """
    leading = leading_instructions(request.messages)
    system = encode_system(request.system, request.messages[:leading])
    params = _params(request.params)
    max_tokens = params.pop("max_tokens", None)
    body = {
        "model": request.model,
        "max_tokens": DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
    }
    if system is not None:
        body["system"] = system
    messages = (
        request.messages[leading:] if leading else request.messages
    )  # a copy costs a long history time
    body["messages"] = encode_messages(messages, model=request.model, written=written)
    if request.tools:
        body["tools"] = encode_tools(request.tools)
    return params | body


def _system(value: Any) -> System:
    if value is None or isinstance(value, str):
        return value
    return [dict(block) for block in objects(value, "system")]


def _params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Every field by its own name, but OpenAI's by the name they have here, or not at all."""
    fields = {
        name: value
        for name, value in without_private_fields(params).items()
        if name not in _OPENAI_ONLY
    }
    for name, (translate, new_name) in _TRANSLATED.items():
        value = translate(fields.pop(name, None))
        if value is not None and fields.get(new_name) is None:
            fields[new_name] = value
    choice = fields.get("tool_choice", {"type": "auto"})
    if (
        params.get("parallel_tool_calls") is False
        and isinstance(choice, dict)
        and choice.get("type") != "none"
    ):
        fields["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
    return fields


def _tool_choice(value: Any) -> Any:
    if isinstance(value, str):
        return {"type": "any" if value == "required" else value}
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("function", "custom"):
        inner = value.get(kind)
        return {
            "type": "tool",
            "name": (inner if isinstance(inner, dict) else value).get("name"),
        }
    return value


def _output_config(value: Any) -> Any:
    """A JSON schema for the answer; OpenAI's other formats have no name here."""
    inner = value.get("json_schema") if isinstance(value, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return {"format": {"type": "json_schema", "schema": schema}} if schema else None


def _metadata(value: Any) -> Any:
    """Here it names the user; OpenAI's holds whatever a client wants to find again."""
    return (
        None if isinstance(value, dict) and value and "user_id" not in value else value
    )


_OPENAI_TIERS = ("default", "flex", "scale", "priority")
_TRANSLATED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "max_completion_tokens": (lambda value: value, "max_tokens"),
    "max_output_tokens": (lambda value: value, "max_tokens"),
    "stop": (
        lambda value: [value] if isinstance(value, str) else value,
        "stop_sequences",
    ),
    "tool_choice": (_tool_choice, "tool_choice"),
    "response_format": (_output_config, "output_config"),
    "metadata": (_metadata, "metadata"),
    "service_tier": (
        lambda value: None if value in _OPENAI_TIERS else value,
        "service_tier",
    ),
}
_OPENAI_ONLY = frozenset(
    {
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "include",
        "logit_bias",
        "logprobs",
        "max_tool_calls",
        "modalities",
        "moderation",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "safety_identifier",
        "seed",
        "store",
        "stream_options",
        "text",
        "top_logprobs",
        "truncation",
        "user",
        "verbosity",
        "web_search_options",
    }
)
"""Fields Anthropic has no word for, and would refuse the request for."""


_STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
    "pause_turn": "pause",
    "compaction": "pause",
}
_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refusal": "refusal",
    "content_filter": "refusal",
    "pause": "pause_turn",
    "other": "end_turn",
}


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> Reply:
    """Return a reply in core form. `model` is the requested name, if it is known."""
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("type") == "error":
        raise WireError(
            f"the reply is an error, not a message: {error_text(body) or repr(body)}"
        )
    content = list(require_list(body.get("content"), "content"))
    fields, rest = reply_fields(body)
    author = model or fields.get("model")
    [message] = decode_message(
        {"role": "assistant", "content": content}, "the reply", model=author
    )
    raw = {
        key: value
        for key, value in rest.items()
        if key not in ("role", "content", "usage")
    }
    return Reply(
        message=message,
        stop=stop_of(body.get("stop_reason")),
        raw={**raw, "_api": API},
        **fields,
    )


def encode_reply(reply: Reply) -> dict[str, Any]:
    """Return a reply as an Anthropic message. A decoded one is returned verbatim."""
    native = reply.raw.get("_api") == API
    rest: dict[str, Any] = (
        dict(without_private_fields(reply.raw)) if native else {"stop_sequence": None}
    )
    if not native or stop_of(rest.get("stop_reason")) != reply.stop:
        rest["stop_reason"] = _REASONS.get(reply.stop or "")
    body = {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": assistant_blocks(reply.message),
        "usage": reply.usage
        if native and reply.usage is not None
        else _usage(reply.usage),
    }
    return body | rest


def stop_of(reason: Any) -> str | None:
    """Our name of Anthropic's reason."""
    return None if reason is None else _STOPS.get(str(reason), "other")


def _usage(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """Another API's figures in Anthropic's terms, where `input_tokens` leaves the cache out."""
    figures = normalize_usage(usage)
    return {
        "input_tokens": figures.input_tokens,
        "cache_creation_input_tokens": figures.cache_write_tokens,
        "cache_read_input_tokens": figures.cache_read_tokens,
        "output_tokens": figures.output_tokens,
    }


# --- streams ----------------------------------------------------------------------------------------------------------


_GROWING = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}
"""Deltas that add words, with the field that holds them."""


@dataclass(slots=True)
class _Block:
    """A content block while it arrives. Words are collected and joined once, at the end."""

    start: Part
    call: int | None
    """Which of the message's calls it is, if it is one."""
    words: dict[str, list[str]] = field(default_factory=dict)
    complete: bool = False

    def whole(self) -> Part:
        block = dict(self.start)
        for name, pieces in self.words.items():
            text = "".join(pieces)
            if name != "partial_json":
                block[name] = f"{block.get(name) or ''}{text}"
            elif text:
                block["input"] = arguments_object(text)
        return block


class AnthropicStreamDecoder:
    """Takes the events of one reply. `reply` may be asked for at any time, also after the stream broke off."""

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._message: dict[str, Any] = {"type": "message", "role": "assistant"}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _Block] = {}

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        """What this event says; nothing for a ping and for kinds of event that are not known yet."""
        data = event_object(event) or {}
        match data.get("type"):
            case "message_start":
                message = require_object(data.get("message"), "message")
                self._message = {
                    key: value
                    for key, value in message.items()
                    if key not in ("content", "usage")
                }
                return self._take_usage(message.get("usage"))
            case "content_block_start":
                return self._start_block(
                    _index(data),
                    require_object(data.get("content_block"), "content_block"),
                )
            case "content_block_delta":
                return self._grow_block(
                    self._block(data), require_object(data.get("delta"), "delta")
                )
            case "content_block_stop":
                self._block(data).complete = True
            case "message_delta":
                return self._change_message(
                    data, require_object(data.get("delta"), "delta")
                )
            case "error":
                error = data.get("error")
                return [error_delta(error if isinstance(error, dict) else data)]
        return []

    def reply(self) -> Reply:
        """Return the reply received so far.

        Of a block that was cut off, only text is kept: half a call must not be run, and reasoning without its signature
        is refused.
        """
        finished = self._message.get("stop_reason") is not None
        blocks = [
            (finished or block.complete, block.whole())
            for _, block in sorted(self._blocks.items())
        ]
        content = [block for complete, block in blocks if complete or _has_text(block)]
        body = {**self._message, "content": content}
        return decode_reply(
            {**body, "usage": self._usage} if self._usage else body, model=self._model
        )

    def _start_block(self, index: int, block: Mapping[str, Any]) -> list[StreamDelta]:
        is_call = kind_of(block) == "tool_use"
        call = (
            sum(other.call is not None for other in self._blocks.values())
            if is_call
            else None
        )
        self._blocks[index] = _Block(dict(block), call)
        if call is not None:
            call_id, name = (
                require_text(block.get(key), f"content_block.{key}")
                for key in ("id", "name")
            )
            return [StreamDelta("call", index=call, id=call_id, name=name)]
        return _text_deltas("text", block.get("text")) + _text_deltas(
            "reasoning", block.get("thinking")
        )

    def _grow_block(self, block: _Block, delta: Mapping[str, Any]) -> list[StreamDelta]:
        kind = str(delta.get("type"))
        if kind in _GROWING:
            name = _GROWING[kind]
            words = require_text(delta.get(name), f"delta.{name}")
            block.words.setdefault(name, []).append(words)
            if name == "partial_json":
                call = block.call
                return (
                    []
                    if call is None
                    else [StreamDelta("call", index=call, arguments=words)]
                )
            return _text_deltas("text" if name == "text" else "reasoning", words)
        if kind == "citations_delta":
            block.start["citations"] = [
                *(block.start.get("citations") or []),
                delta.get("citation"),
            ]
        else:
            block.start |= {key: value for key, value in delta.items() if key != "type"}
        return []

    def _change_message(
        self, data: Mapping[str, Any], delta: Mapping[str, Any]
    ) -> list[StreamDelta]:
        fields = {
            key: value
            for key, value in data.items()
            if key not in ("type", "delta", "usage")
        }
        _update(self._message, {**fields, **delta})
        stop = stop_of(delta.get("stop_reason"))
        return self._take_usage(data.get("usage")) + (
            [StreamDelta("stop", text=stop, raw=delta)] if stop else []
        )

    def _take_usage(self, usage: Any) -> list[StreamDelta]:
        """Figures are running totals: a later one replaces the earlier one, an absent one leaves it."""
        if not isinstance(usage, Mapping):
            return []
        _update(self._usage, usage)
        return [StreamDelta("usage", raw=dict(self._usage))]

    def _block(self, data: Mapping[str, Any]) -> _Block:
        block = self._blocks.get(_index(data))
        if block is None:
            raise WireError(
                f"{data.get('type')} is about block {data.get('index')}, which never started"
            )
        return block


stream_decoder = AnthropicStreamDecoder


def encode_stream(reply: Reply) -> Iterator[SseEvent]:
    """The events Anthropic would have streamed the reply in."""
    body = encode_reply(reply)
    content = body.pop("content")
    usage = body.pop("usage")
    late = {
        key: body[key]
        for key in ("stop_reason", "stop_sequence", "stop_details")
        if key in body
    }
    early = {
        key: 0 if key == "output_tokens" else value for key, value in usage.items()
    }
    yield _event(
        "message_start",
        message={**body, **dict.fromkeys(late), "content": [], "usage": early},
    )
    for index, block in enumerate(content):
        start, deltas = _split_block(block)
        yield _event("content_block_start", index=index, content_block=start)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=late, usage=usage)
    yield _event("message_stop")


def _split_block(block: Part) -> tuple[Part, list[Part]]:
    """A block as its start and the deltas that complete it."""
    match block:
        case {"type": "text", "text": str(text)}:
            citations = block.get("citations") or []
            start = {**block, "text": ""} | ({"citations": []} if citations else {})
            return start, [
                *(
                    {"type": "citations_delta", "citation": citation}
                    for citation in citations
                ),
                {"type": "text_delta", "text": text},
            ]
        case {
            "type": "thinking",
            "thinking": str(thinking),
            "signature": str(signature),
        }:
            return {**block, "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": thinking},
                {"type": "signature_delta", "signature": signature},
            ]
        case {"input": dict(arguments)} if arguments:
            delta = {
                "type": "input_json_delta",
                "partial_json": json.dumps(arguments, ensure_ascii=False),
            }
            return {**block, "input": {}}, [delta]
    return block, []


def _event(kind: str, **fields: Any) -> SseEvent:
    """In ASCII: half a surrogate pair, which a model's text may hold, has no other form on the wire."""
    return SseEvent(kind, json.dumps({"type": kind, **fields}, separators=(",", ":")))


def _index(data: Mapping[str, Any]) -> int:
    index = data.get("index")
    if not isinstance(index, int):
        raise WireError(f"{data.get('type')}.index must be a number, not {index!r}")
    return index


def _text_deltas(kind: Literal["text", "reasoning"], words: Any) -> list[StreamDelta]:
    return [StreamDelta(kind, text=words)] if isinstance(words, str) and words else []


def _has_text(block: Part) -> bool:
    text = block.get("text")
    return kind_of(block) == "text" and isinstance(text, str) and bool(text.strip())


def _update(target: dict[str, Any], fields: Mapping[str, Any]) -> None:
    target.update(
        {
            key: value
            for key, value in fields.items()
            if value is not None or key not in target
        }
    )
