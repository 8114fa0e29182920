"""Streams of Anthropic's messages: decode them event by event, and encode a reply as one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from everthread.core.messages import Part, kind_of
from everthread.core.types import Reply, StreamDelta
from everthread.errors import WireError
from everthread.wire.anthropic.message_codec import arguments_object
from everthread.wire.anthropic.request_codec import decode_reply, encode_reply, stop_of
from everthread.wire.common import (
    error_delta,
    event_object,
    require_object,
    require_text,
)
from everthread.wire.sse import SseEvent

_TEXT_FIELD_BY_DELTA = {
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
    """Decode the events of one reply. `reply` works at any time, also after the stream broke off."""

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._message: dict[str, Any] = {"type": "message", "role": "assistant"}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _Block] = {}

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        """Return the deltas of an event; none for a ping and for unknown kinds of events."""
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
        if kind in _TEXT_FIELD_BY_DELTA:
            name = _TEXT_FIELD_BY_DELTA[kind]
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
        """Merge the usage of an event: its figures are running totals and replace earlier ones."""
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
    """Yield the events in which Anthropic would have streamed the reply."""
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
    """Return a block as its start and the deltas that complete it."""
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
