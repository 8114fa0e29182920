"""Streams of Anthropic's messages: decode them event by event, and encode a reply as one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from everthread.core.json_values import without_keys
from everthread.core.messages import Part, kind_of
from everthread.core.types import ModelReply, StreamDelta
from everthread.errors import WireError
from everthread.wire.anthropic.anthropic_blocks import encode_arguments
from everthread.wire.anthropic.anthropic_replies import (
    decode_reply,
    decode_stop_reason,
)
from everthread.wire.payload_checks import require_object, require_text
from everthread.wire.reply_fields import make_error_delta
from everthread.wire.sse import SseEvent, parse_event

_TEXT_FIELD_BY_DELTA = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}
"""Deltas that add text, with the field that holds it."""


@dataclass(slots=True)
class _StreamedBlock:
    """A content block while it arrives. Pieces of text are collected and joined once, at the end."""

    start_block: Part
    call_index: int | None
    """Position among the message's calls, if the block is a call."""
    text_pieces: dict[str, list[str]] = field(default_factory=dict)
    is_complete: bool = False

    def assemble(self) -> Part:
        block = dict(self.start_block)
        for name, pieces in self.text_pieces.items():
            text = "".join(pieces)
            if name != "partial_json":
                block[name] = f"{block.get(name) or ''}{text}"
            elif text:
                block["input"] = encode_arguments(text)
        return block


class AnthropicStreamDecoder:
    """Decodes the events of one stream. `reply()` works at any time, even after the stream broke off.

    `model` is the requested name.
    """

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._message: dict[str, Any] = {"type": "message", "role": "assistant"}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _StreamedBlock] = {}

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        """Return the deltas of an event; none for a ping and for unknown kinds of events."""
        data = parse_event(event) or {}
        match data.get("type"):
            case "message_start":
                message = require_object(data.get("message"), "message")
                self._message = without_keys(message, "content", "usage")
                return self._merge_usage(message.get("usage"))
            case "content_block_start":
                return self._start_block(
                    _read_block_index(data),
                    require_object(data.get("content_block"), "content_block"),
                )
            case "content_block_delta":
                return self._extend_block(
                    self._find_block(data), require_object(data.get("delta"), "delta")
                )
            case "content_block_stop":
                self._find_block(data).is_complete = True
            case "message_delta":
                return self._update_message(data, require_object(data.get("delta"), "delta"))
            case "error":
                error = data.get("error")
                return [make_error_delta(error if isinstance(error, dict) else data)]
        return []

    def reply(self) -> ModelReply:
        """Return the partial answer as a whole reply.

        A block that was cut off is kept only if it is text: half a call must not be run, and reasoning without its
        signature is refused.
        """
        is_finished = self._message.get("stop_reason") is not None
        blocks = [
            (is_finished or block.is_complete, block.assemble())
            for _, block in sorted(self._blocks.items())
        ]
        content = [block for is_complete, block in blocks if is_complete or _has_text(block)]
        body = {**self._message, "content": content}
        if self._usage:
            body["usage"] = self._usage
        return decode_reply(body, model=self._model)

    def _start_block(self, index: int, block: Mapping[str, Any]) -> list[StreamDelta]:
        if kind_of(block) == "tool_use":
            call_index = sum(other.call_index is not None for other in self._blocks.values())
            self._blocks[index] = _StreamedBlock(dict(block), call_index)
            call_id = require_text(block.get("id"), "content_block.id")
            name = require_text(block.get("name"), "content_block.name")
            return [StreamDelta("call", index=call_index, id=call_id, name=name)]
        self._blocks[index] = _StreamedBlock(dict(block), None)
        return [
            *_make_text_deltas("text", block.get("text")),
            *_make_text_deltas("reasoning", block.get("thinking")),
        ]

    def _extend_block(self, block: _StreamedBlock, delta: Mapping[str, Any]) -> list[StreamDelta]:
        kind = str(delta.get("type"))
        if kind in _TEXT_FIELD_BY_DELTA:
            name = _TEXT_FIELD_BY_DELTA[kind]
            text = require_text(delta.get(name), f"delta.{name}")
            block.text_pieces.setdefault(name, []).append(text)
            if name == "partial_json":
                if block.call_index is None:
                    return []
                return [StreamDelta("call", index=block.call_index, arguments=text)]
            return _make_text_deltas("text" if name == "text" else "reasoning", text)
        if kind == "citations_delta":
            block.start_block["citations"] = [
                *(block.start_block.get("citations") or []),
                delta.get("citation"),
            ]
        else:
            block.start_block |= without_keys(delta, "type")
        return []

    def _update_message(
        self, data: Mapping[str, Any], delta: Mapping[str, Any]
    ) -> list[StreamDelta]:
        fields = without_keys(data, "type", "delta", "usage")
        _merge_fields(self._message, {**fields, **delta})
        deltas = self._merge_usage(data.get("usage"))
        if stop := decode_stop_reason(delta.get("stop_reason")):
            deltas.append(StreamDelta("stop", text=stop, raw=delta))
        return deltas

    def _merge_usage(self, usage: Any) -> list[StreamDelta]:
        """Merge the usage of an event: its figures are running totals and replace earlier ones."""
        if not isinstance(usage, Mapping):
            return []
        _merge_fields(self._usage, usage)
        return [StreamDelta("usage", raw=dict(self._usage))]

    def _find_block(self, data: Mapping[str, Any]) -> _StreamedBlock:
        block = self._blocks.get(_read_block_index(data))
        if block is None:
            raise WireError(
                f"{data.get('type')} is about block {data.get('index')}, which never started"
            )
        return block


stream_decoder = AnthropicStreamDecoder


def encode_stream(body: Mapping[str, Any]) -> Iterator[SseEvent]:
    """Yield the events of a stream that sends an encoded reply."""
    usage = body["usage"]
    final_fields = {
        key: body[key] for key in ("stop_reason", "stop_sequence", "stop_details") if key in body
    }
    start_usage = {key: 0 if key == "output_tokens" else value for key, value in usage.items()}
    yield _make_event(
        "message_start",
        message={
            **body,
            **dict.fromkeys(final_fields),
            "content": [],
            "usage": start_usage,
        },
    )
    for index, block in enumerate(body["content"]):
        start, deltas = _split_block(block)
        yield _make_event("content_block_start", index=index, content_block=start)
        for delta in deltas:
            yield _make_event("content_block_delta", index=index, delta=delta)
        yield _make_event("content_block_stop", index=index)
    yield _make_event("message_delta", delta=final_fields, usage=usage)
    yield _make_event("message_stop")


def _split_block(block: Part) -> tuple[Part, list[Part]]:
    """Return a block as its start and the deltas that complete it."""
    match block:
        case {"type": "text", "text": str(text)}:
            citations = block.get("citations") or []
            start = {**block, "text": ""} | ({"citations": []} if citations else {})
            return start, [
                *({"type": "citations_delta", "citation": citation} for citation in citations),
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


def _make_event(kind: str, **fields: Any) -> SseEvent:
    """Return an event in ASCII: a lone surrogate, which a model's text may contain, cannot be encoded otherwise."""
    return SseEvent(kind, json.dumps({"type": kind, **fields}, separators=(",", ":")))


def _read_block_index(data: Mapping[str, Any]) -> int:
    index = data.get("index")
    if not isinstance(index, int):
        raise WireError(f"{data.get('type')}.index must be a number, not {index!r}")
    return index


def _make_text_deltas(kind: Literal["text", "reasoning"], text: Any) -> list[StreamDelta]:
    return [StreamDelta(kind, text=text)] if isinstance(text, str) and text else []


def _has_text(block: Part) -> bool:
    text = block.get("text")
    return kind_of(block) == "text" and isinstance(text, str) and bool(text.strip())


def _merge_fields(target: dict[str, Any], fields: Mapping[str, Any]) -> None:
    target.update(
        {key: value for key, value in fields.items() if value is not None or key not in target}
    )
