"""Events of a streamed response -> what they say, piece by piece, and the assembled reply; a reply -> events.

The last event holds the whole response, and each item comes whole when it is done: those are the truth. Pieces matter
for what is shown meanwhile, and for a stream that broke off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.types import DeltaKind, Reply, StreamDelta
from everthread.wire.openai_items import CALLS, Item, call_id
from everthread.wire.openai_responses import decode_reply, encode_reply
from everthread.wire.shape import an_object, error_text, event_object
from everthread.wire.sse import SseEvent


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where words go: a field of the item, or of a part in one of its lists."""

    kind: DeltaKind | None
    field: str
    list: str = ""
    index: str = ""
    part: str = ""


_SLOTS = {
    "output_text": _Slot("text", "text", "content", "content_index", "output_text"),
    "refusal": _Slot("refusal", "refusal", "content", "content_index", "refusal"),
    "reasoning_text": _Slot("reasoning", "text", "content", "content_index", "reasoning_text"),
    "reasoning_summary_text": _Slot("reasoning", "text", "summary", "summary_index", "summary_text"),
    "function_call_arguments": _Slot("call", "arguments"),
    "custom_tool_call_input": _Slot("call", "input"),
    "mcp_call_arguments": _Slot(None, "arguments"),
    "code_interpreter_call_code": _Slot(None, "code"),
}
_BY_PART = {slot.part: name for name, slot in _SLOTS.items() if slot.part}
_BY_ITEM = {
    "function_call": "function_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
    "mcp_call": "mcp_call_arguments",
    "code_interpreter_call": "code_interpreter_call_code",
}
_PARTS = {"content_part": ("content", "content_index"), "reasoning_summary_part": ("summary", "summary_index")}
_ENDS = ("completed", "incomplete", "failed")
_LIFE = ("created", "queued", "in_progress", *_ENDS)


class StreamDecoder:
    """Takes the events of one stream; `reply()` may be asked for at any time, also when the stream broke off.

    `model` is the name under which the reply was asked for.
    """

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._response: dict[str, Any] = {}
        self._items: dict[int, _Growing] = {}
        self._calls = count()

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        data = event_object(event)
        if data is None:
            return []
        kind = str(data.get("type") or (event.event if isinstance(event, SseEvent) else None) or "")
        if kind == "error" or (data.get("error") and not kind):
            return [_error(data.get("error") or data)]
        name, _, what = kind.removeprefix("response.").rpartition(".")
        if not name and what in _LIFE:
            return list(self._live(what, an_object(data.get("response"), f"the response of {kind}")))
        item = self._items.setdefault(_place(data, "output_index"), _Growing())
        if name == "output_item":
            return self._take_item(item, an_object(data.get("item"), f"the item of {kind}"), done=what == "done")
        if name in _SLOTS:
            return self._take_words(item, _SLOTS[name], data, done=what == "done")
        if name in _PARTS:
            of, at = _PARTS[name]
            item.parts[of, _place(data, at)] = an_object(data.get("part"), f"the part of {kind}")
        return []

    def reply(self) -> Reply:
        """What came so far, in the form of a whole reply."""
        output = self._response.get("output")
        if not output or self._response.get("status") not in _ENDS:
            items = [self._items[index].whole() for index in sorted(self._items)]
            output = [item for item in items if item is not None]
        return decode_reply({**self._response, "output": output}, model=self._model)

    def _live(self, what: str, response: Mapping[str, Any]) -> Iterator[StreamDelta]:
        self._response = dict(response)
        if what not in _ENDS:
            return
        self._response.setdefault("status", what)
        if isinstance(response.get("usage"), dict):
            yield StreamDelta("usage", raw=response["usage"])
        if what == "failed":
            yield _error(response.get("error"))
        stop = {key: self._response.get(key) for key in ("status", "incomplete_details")}
        yield StreamDelta("stop", text=self.reply().stop or "", raw=stop)

    def _take_item(self, item: _Growing, value: Mapping[str, Any], *, done: bool) -> list[StreamDelta]:
        item.start, item.done = dict(value), done
        if kind_of(value) not in CALLS or not call_id(value):
            return []
        whole = value.get("arguments", value.get("input")) if done and not item.words else ""
        arguments = whole if isinstance(whole, str) else ""
        if item.call is not None:
            return [StreamDelta("call", index=item.call, arguments=arguments)] if arguments else []
        item.call = next(self._calls)
        name = str(value.get("name") or value["type"])
        return [StreamDelta("call", index=item.call, id=call_id(value), name=name, arguments=arguments)]

    def _take_words(self, item: _Growing, slot: _Slot, data: Mapping[str, Any], *, done: bool) -> list[StreamDelta]:
        words = data.get(slot.field if done else "delta")
        if not isinstance(words, str):
            return []
        pieces = item.words.setdefault((slot, _place(data, slot.index)), [])
        said = done and bool(pieces)
        if done:
            pieces.clear()
        pieces.append(words)
        if said or not words or slot.kind is None:
            return []
        if slot.kind != "call":
            return [StreamDelta(slot.kind, text=words)]
        if item.call is None:
            item.call = next(self._calls)
        return [StreamDelta("call", index=item.call, arguments=words)]


@dataclass(slots=True)
class _Growing:
    """An item while it arrives. Words are collected and joined once, when they are asked for."""

    start: Item | None = None
    done: bool = False
    call: int | None = None
    """Which of the message's calls it is, if it is one."""
    parts: dict[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    words: dict[tuple[_Slot, int], list[str]] = field(default_factory=dict)

    def whole(self) -> Item | None:
        """The item; None where what came cannot be sent back: reasoning broken off, words of an unknown item."""
        if self.done:
            return self.start
        item: Item = self.start or {"type": "message", "role": "assistant", "status": "in_progress"}
        if kind_of(item) == "reasoning" or (self.start is None and not self._speaks()):
            return None
        item = {**item, "status": "incomplete"} if "status" in item else dict(item)
        lists: dict[str, dict[int, dict[str, Any]]] = {}
        for (of, at), part in self.parts.items():
            lists.setdefault(of, {})[at] = dict(part)
        for (slot, at), pieces in self.words.items():
            target = lists.setdefault(slot.list, {}).setdefault(at, {"type": slot.part}) if slot.list else item
            target[slot.field] = "".join(pieces)
        return item | {of: [parts[at] for at in sorted(parts)] for of, parts in lists.items()}

    def _speaks(self) -> bool:
        return any(slot.kind in ("text", "refusal") for slot, _ in self.words)


def encode_stream(reply: Reply) -> Iterator[SseEvent]:
    """The events of a stream that says the reply."""
    body = encode_reply(reply)
    numbers = count()

    def event(kind: str, **fields: Any) -> SseEvent:
        data = {"type": f"response.{kind}", "sequence_number": next(numbers), **fields}
        return SseEvent(data["type"], json.dumps(data, ensure_ascii=False))

    unknown = dict.fromkeys({"usage", "error", "incomplete_details"} & body.keys())
    opening = {**body, **unknown, "status": "in_progress", "output": []}
    yield event("created", response=opening)
    yield event("in_progress", response=opening)
    for index, item in enumerate(body["output"]):
        for kind, fields in _item_events(item):
            yield event(kind, output_index=index, **fields)
    if body.get("status") in _ENDS:
        yield event(body["status"], response=body)


def _item_events(item: Item) -> Iterator[tuple[str, dict[str, Any]]]:
    name = _BY_ITEM.get(kind_of(item), "")
    lists = {of: item[of] for of in ("summary", "content") if isinstance(item.get(of), list)}
    started: Item = {**item, **{of: [] for of in lists}}
    if "status" in item:
        started["status"] = "in_progress"
    if name:
        started[_SLOTS[name].field] = ""
    yield "output_item.added", {"item": started}
    about = {"item_id": item.get("id", "")}
    for event, (of, index) in _PARTS.items():
        for at, part in enumerate(lists.get(of, [])):
            for kind, fields in _part_events(event, part):
                yield kind, {**about, index: at, **fields}
    if name:
        yield from ((kind, {**about, **fields}) for kind, fields in _word_events(name, item))
    yield "output_item.done", {"item": item}


def _part_events(event: str, part: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = _BY_PART.get(kind_of(part), "")
    yield f"{event}.added", {"part": {**part, _SLOTS[name].field: ""} if name else part}
    if name:
        yield from _word_events(name, part)
    yield f"{event}.done", {"part": part}


def _word_events(name: str, holder: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The words at once: a stream made from a whole reply has nothing to wait for."""
    slot = _SLOTS[name]
    words = holder.get(slot.field) or ""
    extra: dict[str, Any] = {"logprobs": []} if name == "output_text" else {}
    yield f"{name}.delta", {"delta": words, **extra}
    yield f"{name}.done", {slot.field: words, **extra}


def _place(data: Mapping[str, Any], key: str) -> int:
    """An index; what is not about one of several is about the first."""
    value = data.get(key)
    return value if isinstance(value, int) else 0


def _error(error: Any) -> StreamDelta:
    raw = error if isinstance(error, dict) else {"message": error_text(error)}
    return StreamDelta("error", text=error_text(raw), raw=raw)
