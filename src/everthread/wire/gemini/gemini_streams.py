"""Streams of Gemini: decode them chunk by chunk, and encode a reply as one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everthread.core.json_values import as_list, as_text, without_keys
from everthread.core.messages import Part, parts_of
from everthread.core.types import ModelReply, StreamDelta
from everthread.wire.gemini.field_names import get_field, get_object_field
from everthread.wire.gemini.gemini_parts import Content
from everthread.wire.gemini.gemini_replies import decode_single_reply, decode_stop
from everthread.wire.payload_checks import require_object
from everthread.wire.reply_fields import make_error_delta
from everthread.wire.sse import SseEvent, make_json_event, parse_event


class GeminiStreamDecoder:
    """Decodes the events of one stream. `reply()` works at any time, even after the stream broke off.

    `model` is the requested name.
    """

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._body_fields: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[Part] = []
        self._call_count = 0

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        chunk = parse_event(event)
        if chunk is None:
            return []
        if error := chunk.get("error"):
            return [make_error_delta(error)]
        self._body_fields |= without_keys(chunk, "candidates")
        deltas: list[StreamDelta] = []
        for candidate in as_list(chunk.get("candidates")):
            if isinstance(candidate, Mapping) and candidate.get("index", 0) in (0, None):
                deltas += self._decode_candidate(candidate)
        usage = get_object_field(chunk, "usageMetadata")
        if usage is not None:
            deltas.append(StreamDelta("usage", raw=dict(usage)))
        return deltas

    def reply(self) -> ModelReply:
        """Return the partial answer as a whole reply."""
        return decode_single_reply(self.assemble_body(), model=self._model)

    def assemble_body(self) -> dict[str, Any]:
        """Return the chunks so far as one response."""
        body = dict(self._body_fields)
        if self._candidate or self._parts:
            content = {"role": "model", "parts": merge_parts(self._parts)}
            body["candidates"] = [{**self._candidate, "content": content}]
        return body

    def _decode_candidate(self, candidate: Mapping[str, Any]) -> Iterator[StreamDelta]:
        self._candidate |= without_keys(candidate, "content")
        content = get_object_field(candidate, "content") or {}
        for value in as_list(content.get("parts")):
            part = require_object(value, "candidates[0].content.parts[]")
            self._parts.append(dict(part))
            yield from self._make_part_deltas(part)
        reason = get_field(candidate, "finishReason")
        if reason is not None:
            stop = decode_stop({}, candidate, has_calls=bool(self._call_count))
            yield StreamDelta("stop", text=stop or "", raw={"finishReason": reason})

    def _make_part_deltas(self, part: Mapping[str, Any]) -> Iterator[StreamDelta]:
        call = get_object_field(part, "functionCall")
        if call is not None:
            yield StreamDelta(
                "call",
                index=self._call_count,
                id=as_text(call.get("id")),
                name=as_text(call.get("name")),
                arguments=json.dumps(call.get("args") or {}, ensure_ascii=False),
            )
            self._call_count += 1
        elif as_text(part.get("text")):
            yield StreamDelta("reasoning" if part.get("thought") else "text", text=part["text"])


stream_decoder = GeminiStreamDecoder


def decode_reply(
    body: Mapping[str, Any] | Sequence[Any], *, model: str | None = None
) -> ModelReply:
    """Return a reply in core form. A list is a whole stream that was sent as one JSON array.

    `model` is the requested name.
    """
    whole_body = join_chunks(body) if isinstance(body, list) else body
    return decode_single_reply(require_object(whole_body, "the reply"), model=model)


def join_chunks(chunks: Sequence[Any]) -> dict[str, Any]:
    """Return a stream that was sent as one JSON array as one response."""
    decoder = GeminiStreamDecoder()
    for chunk in chunks:
        decoder.feed(require_object(chunk, "a chunk of the reply"))
    return decoder.assemble_body()


def merge_parts(parts: Sequence[Part]) -> list[Part]:
    """Join neighbouring texts of one kind. A signed part is not joined, because its signature covers it alone."""
    merged: list[Part] = []
    for part in parts:
        previous = merged[-1] if merged else {}
        is_text = isinstance(part.get("text"), str) and part.keys() <= {"text", "thought"}
        is_same_kind = previous.keys() == part.keys() and previous.get("thought") == part.get(
            "thought"
        )
        if is_text and is_same_kind:
            merged[-1] = {**previous, "text": previous["text"] + part["text"]}
        else:
            merged.append(part)
    return merged


def encode_stream(body: Mapping[str, Any]) -> Iterator[SseEvent]:
    """Yield the chunks of a stream that sends an encoded reply: one for each part, then the finish reason."""
    if not body.get("candidates"):
        yield make_json_event(body)
        return
    candidate = body["candidates"][0]
    candidate_fields = without_keys(candidate, "content", "finishReason")
    content: Content = candidate.get("content") or {}
    id_fields: dict[str, Any] = {
        key: body[key] for key in ("modelVersion", "responseId") if key in body
    }
    for part in parts_of({"content": content.get("parts")}):
        part_candidate = {**candidate_fields, "content": {"role": "model", "parts": [part]}}
        yield make_json_event({"candidates": [part_candidate], **id_fields})
    last_candidate = without_keys(candidate, "content")
    yield make_json_event({**body, "candidates": [last_candidate]})
