"""Streams of OpenAI's Responses protocol: decode them event by event, and encode a reply as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from everthread.core.json_values import as_text
from everthread.core.messages import kind_of
from everthread.core.types import DeltaKind, ModelReply, StreamDelta
from everthread.wire.openai_responses.responses_items import (
    RESULT_KIND_BY_CALL_KIND,
    ResponseItem,
    get_call_id,
    get_call_name,
)
from everthread.wire.openai_responses.responses_replies import decode_reply
from everthread.wire.payload_checks import require_object
from everthread.wire.reply_fields import make_error_delta
from everthread.wire.sse import SseEvent, make_json_event, parse_event


@dataclass(frozen=True, slots=True)
class _TextLocation:
    """The location of a streamed text: a field of the item, or of a part in one of the item's lists."""

    delta_kind: DeltaKind | None
    field_name: str
    list_name: str = ""
    index_name: str = ""
    part_kind: str = ""


_TEXT_LOCATIONS = {
    "output_text": _TextLocation("text", "text", "content", "content_index", "output_text"),
    "refusal": _TextLocation("refusal", "refusal", "content", "content_index", "refusal"),
    "reasoning_text": _TextLocation(
        "reasoning", "text", "content", "content_index", "reasoning_text"
    ),
    "reasoning_summary_text": _TextLocation(
        "reasoning", "text", "summary", "summary_index", "summary_text"
    ),
    "function_call_arguments": _TextLocation("call", "arguments"),
    "custom_tool_call_input": _TextLocation("call", "input"),
    "mcp_call_arguments": _TextLocation(None, "arguments"),
    "code_interpreter_call_code": _TextLocation(None, "code"),
}
_TEXT_EVENT_BY_PART_KIND = {
    location.part_kind: name for name, location in _TEXT_LOCATIONS.items() if location.part_kind
}
_TEXT_EVENT_BY_ITEM_KIND = {
    "function_call": "function_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
    "mcp_call": "mcp_call_arguments",
    "code_interpreter_call": "code_interpreter_call_code",
}
_PART_LISTS = {
    "content_part": ("content", "content_index"),
    "reasoning_summary_part": ("summary", "summary_index"),
}
_END_EVENTS = ("completed", "incomplete", "failed")
_STATUS_EVENTS = ("created", "queued", "in_progress", *_END_EVENTS)


class ResponsesStreamDecoder:
    """Decodes the events of one stream. `reply()` works at any time, even after the stream broke off.

    `model` is the requested name.
    """

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._response: dict[str, Any] = {}
        self._items: dict[int, _StreamedItem] = {}
        self._call_numbers = count()

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        data = parse_event(event)
        if data is None:
            return []
        kind = str(data.get("type") or (event.event if isinstance(event, SseEvent) else None) or "")
        if kind == "error" or (data.get("error") and not kind):
            return [make_error_delta(data.get("error") or data)]
        name, _, phase = kind.removeprefix("response.").rpartition(".")
        is_done = phase == "done"
        if not name and phase in _STATUS_EVENTS:
            response = require_object(data.get("response"), f"the response of {kind}")
            return list(self._decode_status_event(phase, response))
        item = self._items.setdefault(_read_index(data, "output_index"), _StreamedItem())
        if name == "output_item":
            value = require_object(data.get("item"), f"the item of {kind}")
            return self._decode_item_event(item, value, is_done=is_done)
        if name in _TEXT_LOCATIONS:
            return self._decode_text_event(item, _TEXT_LOCATIONS[name], data, is_done=is_done)
        if name in _PART_LISTS:
            list_name, index_name = _PART_LISTS[name]
            item.parts[list_name, _read_index(data, index_name)] = require_object(
                data.get("part"), f"the part of {kind}"
            )
        return []

    def reply(self) -> ModelReply:
        """Return the partial answer as a whole reply."""
        output = self._response.get("output")
        if not output or self._response.get("status") not in _END_EVENTS:
            items = [self._items[index].assemble() for index in sorted(self._items)]
            output = [item for item in items if item is not None]
        return decode_reply({**self._response, "output": output}, model=self._model)

    def _decode_status_event(
        self, phase: str, response: Mapping[str, Any]
    ) -> Iterator[StreamDelta]:
        self._response = dict(response)
        if phase not in _END_EVENTS:
            return
        self._response.setdefault("status", phase)
        if isinstance(response.get("usage"), dict):
            yield StreamDelta("usage", raw=response["usage"])
        if phase == "failed":
            yield make_error_delta(response.get("error"))
        stop = {key: self._response.get(key) for key in ("status", "incomplete_details")}
        yield StreamDelta("stop", text=self.reply().stop or "", raw=stop)

    def _decode_item_event(
        self, item: _StreamedItem, value: Mapping[str, Any], *, is_done: bool
    ) -> list[StreamDelta]:
        item.start = dict(value)
        item.is_done = is_done
        if kind_of(value) not in RESULT_KIND_BY_CALL_KIND or not get_call_id(value):
            return []
        arguments = ""
        if is_done and not item.text_pieces:
            arguments = as_text(value.get("arguments", value.get("input")))
        if item.call_index is not None:
            if not arguments:
                return []
            return [StreamDelta("call", index=item.call_index, arguments=arguments)]
        item.call_index = next(self._call_numbers)
        delta = StreamDelta(
            "call",
            index=item.call_index,
            id=get_call_id(value),
            name=str(get_call_name(value) or value["type"]),
            arguments=arguments,
        )
        return [delta]

    def _decode_text_event(
        self,
        item: _StreamedItem,
        location: _TextLocation,
        data: Mapping[str, Any],
        *,
        is_done: bool,
    ) -> list[StreamDelta]:
        text = data.get(location.field_name if is_done else "delta")
        if not isinstance(text, str):
            return []
        pieces = item.text_pieces.setdefault((location, _read_index(data, location.index_name)), [])
        is_repeat = is_done and bool(pieces)
        if is_done:
            pieces.clear()
        pieces.append(text)
        if is_repeat or not text or location.delta_kind is None:
            return []
        if location.delta_kind != "call":
            return [StreamDelta(location.delta_kind, text=text)]
        if item.call_index is None:
            item.call_index = next(self._call_numbers)
        return [StreamDelta("call", index=item.call_index, arguments=text)]


@dataclass(slots=True)
class _StreamedItem:
    """An item while it arrives. Pieces of text are collected and joined once, on demand."""

    start: ResponseItem | None = None
    is_done: bool = False
    call_index: int | None = None
    """Position among the message's calls, if the item is a call."""
    parts: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    text_pieces: dict[tuple[_TextLocation, int], list[str]] = field(default_factory=dict)

    def assemble(self) -> ResponseItem | None:
        """Return the item, or None if it cannot be sent back: cut-off reasoning, text of an unknown item."""
        if self.is_done:
            return self.start
        item: ResponseItem = {"type": "message", "role": "assistant", "status": "incomplete"}
        if self.start is not None:
            item = dict(self.start)
            if "status" in item:
                item["status"] = "incomplete"
        has_text = any(
            location.delta_kind in ("text", "refusal") for location, _ in self.text_pieces
        )
        if kind_of(item) == "reasoning" or (self.start is None and not has_text):
            return None
        lists: dict[str, dict[int, dict[str, Any]]] = {}
        for (list_name, index), part in self.parts.items():
            lists.setdefault(list_name, {})[index] = dict(part)
        for (location, index), pieces in self.text_pieces.items():
            target = item
            if location.list_name:
                parts_by_index = lists.setdefault(location.list_name, {})
                target = parts_by_index.setdefault(index, {"type": location.part_kind})
            target[location.field_name] = "".join(pieces)
        return item | {
            list_name: [parts[index] for index in sorted(parts)]
            for list_name, parts in lists.items()
        }


stream_decoder = ResponsesStreamDecoder


def encode_stream(body: Mapping[str, Any]) -> Iterator[SseEvent]:
    """Yield the events of a stream that sends an encoded reply."""
    sequence_numbers = count()

    def make_event(kind: str, **fields: Any) -> SseEvent:
        name = f"response.{kind}"
        data = {"type": name, "sequence_number": next(sequence_numbers), **fields}
        return make_json_event(data, name)

    unknown_fields = dict.fromkeys({"usage", "error", "incomplete_details"} & body.keys())
    opening_response = {**body, **unknown_fields, "status": "in_progress", "output": []}
    yield make_event("created", response=opening_response)
    yield make_event("in_progress", response=opening_response)
    for index, item in enumerate(body["output"]):
        for kind, fields in _make_item_events(item):
            yield make_event(kind, output_index=index, **fields)
    if body.get("status") in _END_EVENTS:
        yield make_event(body["status"], response=body)


def _make_item_events(item: ResponseItem) -> Iterator[tuple[str, dict[str, Any]]]:
    name = _TEXT_EVENT_BY_ITEM_KIND.get(kind_of(item), "")
    lists = {
        list_name: item[list_name]
        for list_name in ("summary", "content")
        if isinstance(item.get(list_name), list)
    }
    started_item: ResponseItem = {**item, **{list_name: [] for list_name in lists}}
    if "status" in item:
        started_item["status"] = "in_progress"
    if name:
        started_item[_TEXT_LOCATIONS[name].field_name] = ""
    yield "output_item.added", {"item": started_item}
    id_field = {"item_id": item.get("id", "")}
    for event, (list_name, index_name) in _PART_LISTS.items():
        for index, part in enumerate(lists.get(list_name, [])):
            for kind, fields in _make_part_events(event, part):
                yield kind, {**id_field, index_name: index, **fields}
    if name:
        for kind, fields in _make_text_events(name, item):
            yield kind, {**id_field, **fields}
    yield "output_item.done", {"item": item}


def _make_part_events(event: str, part: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = _TEXT_EVENT_BY_PART_KIND.get(kind_of(part), "")
    started_part = {**part, _TEXT_LOCATIONS[name].field_name: ""} if name else part
    yield f"{event}.added", {"part": started_part}
    if name:
        yield from _make_text_events(name, part)
    yield f"{event}.done", {"part": part}


def _make_text_events(name: str, parent: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of a text. It is sent as one delta, because the whole reply exists already."""
    location = _TEXT_LOCATIONS[name]
    text = parent.get(location.field_name) or ""
    extra_fields: dict[str, Any] = {"logprobs": []} if name == "output_text" else {}
    yield f"{name}.delta", {"delta": text, **extra_fields}
    yield f"{name}.done", {location.field_name: text, **extra_fields}


def _read_index(data: Mapping[str, Any], key: str) -> int:
    """Return an index, or 0 if there is none."""
    value = data.get(key)
    return value if isinstance(value, int) else 0
