"""Streams of chat completions: decode them chunk by chunk, and encode a reply as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

from everthread.core.json_values import as_list, as_object, as_text, json_text, without_keys
from everthread.core.messages import content_text, kind_of
from everthread.core.types import DeltaKind, ModelReply, StreamDelta
from everthread.wire.openai_chat.chat_replies import (
    decode_finish_reason,
    decode_reply,
)
from everthread.wire.payload_checks import require_object
from everthread.wire.reply_fields import make_error_delta
from everthread.wire.sse import SseEvent, make_json_event, parse_event

_TEXT_FIELDS = frozenset({"content", "refusal", "reasoning", "reasoning_content", "reasoning_text"})
_STREAMED_TEXT_FIELDS = _TEXT_FIELDS | {
    "arguments",
    "input",
    "transcript",
    "data",
    "text",
    "summary",
}
"""Fields whose text arrives in pieces. Any other string arrives whole; the last one counts."""
_CHUNK_ONLY_FIELDS = frozenset({"choices", "usage", "error", "object", "obfuscation"})


class ChatStreamDecoder:
    """Decodes the events of one stream. `reply()` works at any time, even after the stream broke off.

    `model` is the requested name.
    """

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._body_fields: dict[str, Any] = {}
        self._usage: Any = None
        self._choice_fragments: list[Mapping[str, Any]] = []
        self._deltas: list[dict[str, Any]] = []
        self._calls = _CallAssembler()

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        chunk = parse_event(event)
        if chunk is None:
            return []
        deltas: list[StreamDelta] = []
        self._body_fields |= {
            key: value
            for key, value in chunk.items()
            if key not in _CHUNK_ONLY_FIELDS and (value is not None or key not in self._body_fields)
        }
        for choice in as_list(chunk.get("choices")):
            if isinstance(choice, Mapping) and choice.get("index", 0) in (0, None):
                deltas += self._decode_choice(choice)
        if isinstance(chunk.get("usage"), dict):
            deltas.append(self._decode_usage(chunk["usage"]))
        elif "usage" in chunk:
            self._body_fields.setdefault("usage", None)
        if error := chunk.get("error"):
            deltas.append(make_error_delta(error))
        return deltas

    def reply(self) -> ModelReply:
        """Return the partial answer as a whole reply."""
        message = {"role": "assistant", **_merge_fragments(self._deltas)}
        if calls := self._calls.assemble():
            message["tool_calls"] = calls
        if message.keys() == {"role"}:
            message["content"] = ""
        choice_fields = {
            "index": 0,
            "finish_reason": None,
            **_merge_fragments(self._choice_fragments),
        }
        body = {
            **self._body_fields,
            "object": "chat.completion",
            "choices": [{**choice_fields, "message": message}],
        }
        if self._usage:
            body["usage"] = self._usage
        return decode_reply(body, model=self._model)

    def _decode_choice(self, choice: Mapping[str, Any]) -> Iterator[StreamDelta]:
        delta = require_object(choice.get("delta") or {}, "choices[0].delta")
        calls = delta.get("tool_calls")
        self._choice_fragments.append(without_keys(choice, "delta", "usage"))
        self._deltas.append(
            {key: value for key, value in delta.items() if key != "tool_calls" or not calls}
        )
        yield from _make_text_deltas(delta)
        for value in as_list(calls):
            fragment = require_object(value, "choices[0].delta.tool_calls[]")
            yield self._calls.add_fragment(fragment)
        if isinstance(choice.get("usage"), dict):
            yield self._decode_usage(choice["usage"])
        if choice.get("finish_reason") is not None:
            is_refusal = any(earlier_delta.get("refusal") for earlier_delta in self._deltas)
            stop = decode_finish_reason(
                choice["finish_reason"],
                {"role": "assistant", "refusal": "…" if is_refusal else None},
            )
            yield StreamDelta(
                "stop", text=stop or "", raw={"finish_reason": choice["finish_reason"]}
            )

    def _decode_usage(self, usage: dict[str, Any]) -> StreamDelta:
        self._usage = usage
        return StreamDelta("usage", raw=usage)


@dataclass(slots=True)
class _StreamedCall:
    """A call while it arrives: its id, its names and its fragments so far."""

    id: str = ""
    names: set[str] = field(default_factory=set)
    fragments: list[Mapping[str, Any]] = field(default_factory=list)


class _CallAssembler:
    """Assign fragments to calls, and assemble the calls.

    An id seen before decides, regardless of the index. A new id, or a name if no index decides, begins a call. Without
    either the index decides; a fragment with an unknown index belongs to the last call.
    """

    def __init__(self) -> None:
        self._calls: list[_StreamedCall] = []
        self._position_by_id: dict[str, int] = {}
        self._position_by_index: dict[int, int] = {}

    def add_fragment(self, fragment: Mapping[str, Any]) -> StreamDelta:
        call_id = as_text(fragment.get("id"))
        index = fragment.get("index")
        function = as_object(fragment.get("function") or fragment.get("custom"))
        name = as_text(function.get("name"))
        position = self._find_call(call_id, index, has_name=bool(name))
        if position == len(self._calls):
            self._calls.append(_StreamedCall())
        if isinstance(index, int):
            self._position_by_index[index] = position
        call = self._calls[position]
        new_id = "" if call.id else call_id
        new_name = "" if name in call.names else name
        if new_id:
            call.id = new_id
            self._position_by_id[new_id] = position
        call.names.add(name)
        call.fragments.append(without_keys(fragment, "index"))
        arguments = json_text(function.get("arguments", function.get("input")))
        return StreamDelta("call", index=position, id=new_id, name=new_name, arguments=arguments)

    def _find_call(self, call_id: str, index: Any, *, has_name: bool) -> int:
        if call_id in self._position_by_id:
            return self._position_by_id[call_id]
        new_position = len(self._calls)
        if isinstance(index, int) and index in self._position_by_index:
            known_position = self._position_by_index[index]
            is_other_call = call_id and self._calls[known_position].id
            return new_position if is_other_call else known_position
        if call_id or has_name:
            return new_position
        return max(new_position - 1, 0)

    def assemble(self) -> list[dict[str, Any]]:
        return [_merge_fragments(call.fragments) for call in self._calls]


stream_decoder = ChatStreamDecoder


def encode_stream(body: Mapping[str, Any]) -> Iterator[SseEvent]:
    """Yield the chunks of a stream that sends an encoded reply."""
    choice = body["choices"][0]
    message = choice["message"]
    body_fields = without_keys(body, "choices", "usage")
    body_fields["object"] = "chat.completion.chunk"
    if "usage" in body and body["usage"] is None:
        body_fields["usage"] = None
    for delta in _split_into_deltas(message):
        chunk_choice = {"index": 0, "delta": delta, "finish_reason": None}
        yield make_json_event({**body_fields, "choices": [chunk_choice]})
    last_choice = {**without_keys(choice, "message"), "delta": {}}
    yield make_json_event({**body_fields, "choices": [last_choice]})
    if body.get("usage"):
        yield make_json_event({**body_fields, "choices": [], "usage": body["usage"]})
    yield SseEvent(None, "[DONE]")


def _split_into_deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    texts = {
        key: value
        for key, value in message.items()
        if key in _TEXT_FIELDS and isinstance(value, str)
    }
    calls = message.get("tool_calls") or []
    yield {
        key: value
        for key, value in message.items()
        if key not in texts and (key != "tool_calls" or not calls)
    }
    for key, value in sorted(texts.items(), key=lambda item: not item[0].startswith("reasoning")):
        yield {key: value}
    for index, call in enumerate(calls):
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            opening_call = {**call, "index": index, "function": {**function, "arguments": ""}}
            yield {"tool_calls": [opening_call]}
            arguments = {"arguments": function["arguments"]}
            yield {"tool_calls": [{"index": index, "function": arguments}]}
        else:
            yield {"tool_calls": [{**call, "index": index}]}


def _make_text_deltas(delta: Mapping[str, Any]) -> Iterator[StreamDelta]:
    """Yield the texts of a chunk. Reasoning that comes twice, as text and as details, is yielded once."""
    reasoning_texts = [
        delta.get(key) for key in ("reasoning_content", "reasoning", "reasoning_text")
    ]
    for detail in map(as_object, delta.get("reasoning_details") or []):
        reasoning_texts += [detail.get("text"), detail.get("summary")]
    text_by_kind: dict[DeltaKind, str] = {
        "reasoning": next(filter(None, map(as_text, reasoning_texts)), ""),
        "text": content_text(delta.get("content")),
        "refusal": content_text(delta.get("refusal")),
    }
    for kind, text in text_by_kind.items():
        if text:
            yield StreamDelta(kind, text=text)


def _merge_fragments(fragments: list[Any]) -> dict[str, Any]:
    """Merge the pieces of one object."""
    keys = dict.fromkeys(chain.from_iterable(fragments))
    return {
        key: _merge_values(key, [fragment[key] for fragment in fragments if key in fragment])
        for key in keys
    }


def _merge_values(key: str, values: list[Any]) -> Any:
    non_null_values = [value for value in values if value is not None]
    if not non_null_values:
        return None
    if key == "arguments":
        return "".join(map(json_text, non_null_values))
    if key == "name":
        return "".join(dict.fromkeys(map(str, non_null_values)))
    if key == "reasoning_details" and all(isinstance(value, list) for value in non_null_values):
        return _merge_reasoning_details(non_null_values)
    if all(isinstance(value, str) for value in non_null_values):
        if key in _STREAMED_TEXT_FIELDS:
            return "".join(non_null_values)
        return next(filter(None, reversed(non_null_values)), "")
    if all(isinstance(value, dict) for value in non_null_values):
        return _merge_fragments(non_null_values)
    if all(isinstance(value, list) for value in non_null_values):
        return list(chain.from_iterable(non_null_values))
    return _merge_content(non_null_values) if key == "content" else non_null_values[-1]


def _merge_content(values: list[Any]) -> list[Any]:
    """Merge texts and lists of parts; neighbouring texts become one part."""
    parts: list[Any] = []
    for is_text, run in groupby(values, key=lambda value: isinstance(value, str)):
        pieces = list(run)
        if not is_text:
            parts += chain.from_iterable(piece for piece in pieces if isinstance(piece, list))
        elif text := "".join(pieces):
            parts.append({"type": "text", "text": text})
    return parts


def _merge_reasoning_details(chunks: list[list[Any]]) -> list[Any]:
    """Merge chunks into blocks of reasoning.

    A chunk continues the previous block if both have the same kind and index, and the block is not signed yet. Entries
    of one chunk are separate blocks.
    """
    blocks: list[list[Any]] = []
    for details in chunks:
        for position, detail in enumerate(details):
            if position == 0 and blocks and _continues_block(blocks[-1], detail):
                blocks[-1].append(detail)
            else:
                blocks.append([detail])
    return [_merge_fragments(block) if len(block) > 1 else block[0] for block in blocks]


def _continues_block(block: list[Any], detail: Any) -> bool:
    last = block[-1]
    kind = kind_of(detail)
    if kind not in ("reasoning.text", "reasoning.summary") or kind != kind_of(last):
        return False
    return not last.get("signature") and last.get("index") == detail.get("index")
