"""One visible line for the person when a compaction takes effect, at the end of the answer (`gateway.notice: true`).

The client keeps the line as the assistant's words and sends it back with every request. It is known by a tag that only
this store can make, and taken out again before anything else looks at the request: the model never reads it, and the
thread stays the one it was.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.types import Api
from everthread.gateway.body import SlicedBody, encode_value, slice_text, splice_text
from everthread.wire.common import SseEvent, SseParser, SseSplitter, encode_event

OPEN = "[everthread "
_LINE = re.compile(r"\[everthread ([0-9a-f]{16}): ([^\[\]\r\n]{1,400})\]")
_ITEM = "msg_everthread_"
_GAP = "\n\n"


def notice_line(words: str, key: bytes) -> str:
    """A notice for the person: one line with its tag."""
    plain = words.replace("[", "(").replace("]", ")")
    return f"{OPEN}{_tag(plain, key)}: {plain}]"


def _tag(words: str, key: bytes) -> str:
    return hmac.new(key, words.encode(), sha256).hexdigest()[:16]


# Back from the client


def has_notice(body: bytes) -> bool:
    """Whether a body may hold a notice of ours."""
    return b"everthread" in body and (OPEN.encode() in body or _ITEM.encode() in body)


def strip_notices(text: str, api: Api, key: bytes) -> str | None:
    """A request's text without our own lines; None where it has none."""
    sliced = slice_text(text, api)
    is_kept: list[bool] = []
    changes: list[tuple[int, int, str]] = []
    for element in sliced.elements:
        value = _strip_line(element.value, key)
        is_kept.append(value is not None)
        if value is not None and value is not element.value:
            changes.append((element.start, element.end, encode_value(value)))
    changes += _removal_changes(sliced, is_kept)
    return splice_text(text, sorted(changes)) if changes else None


def _removal_changes(sliced: SlicedBody, is_kept: Sequence[bool]) -> list[tuple[int, int, str]]:
    """The changes that remove elements, each with one of its commas."""
    elements = sliced.elements
    last = max((index for index, stays in enumerate(is_kept) if stays), default=-1)
    changes = []
    for index, stays in enumerate(is_kept):
        if stays or last < 0:
            continue
        start = elements[index].start if index < last else elements[index - 1].end
        end = elements[index + 1].start if index < last else elements[index].end
        changes.append((start, end, ""))
    return changes


def _strip_line(value: Any, key: bytes) -> Any:
    """An element without our line: itself where it has none, None where nothing else is in it."""
    if not isinstance(value, dict):
        return value
    content = value.get("content")
    if not content and str(value.get("id", "")).startswith(_ITEM):
        return None  # a reference to our line, or what a client left of it
    if value.get("role") != "assistant":
        return value
    words: Any = content
    if isinstance(content, str):
        words = _strip_text(content, key) or None
    elif isinstance(content, list):
        words = [stripped for part in content if (stripped := _strip_part(part, key)) is not None]
    if words == content:
        return value
    return {**value, "content": words} if words or value.get("tool_calls") else None


def _strip_part(part: Any, key: bytes) -> Any:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        return part
    words = _strip_text(text, key)
    return part if words == text else {**part, "text": words} if words else None


def _strip_text(text: str, key: bytes) -> str:
    """The words before our line; a line that is not ours stays."""
    match = _LINE.search(text) if OPEN in text else None
    if match is None or not hmac.compare_digest(match[1], _tag(match[2], key)):
        return text
    before, behind = text[: match.start()], text[match.end() :]
    before = before.removesuffix(_GAP) if before.endswith(_GAP) else before.rstrip()
    return before + behind.rstrip() if behind.strip() else before


# To the client


def takes_notice(api: Api, fields: Mapping[str, Any]) -> bool:
    """Whether a line may stand in the answer: not where a program reads it, or several were asked for."""
    if fields.get("n") not in (None, 1):
        return False
    if api == "openai_responses":
        text_options = fields.get("text")
        form = text_options.get("format") if isinstance(text_options, dict) else None
    elif api == "anthropic":
        form = fields.get("output_format") or fields.get("output_config")
    else:
        form = fields.get("response_format")
    return form is None or kind_of(form) == "text"


def with_notice(api: Api, raw: bytes, line: str) -> bytes:
    """A whole answer with the line at its end; as it came where it cannot be read."""
    try:
        body: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    if not isinstance(body, dict):
        return raw
    if api == "openai_chat":
        choices = body.get("choices")
        message = choices[0].get("message") if choices and isinstance(choices[0], dict) else None
        if not isinstance(message, dict):
            return raw
        message["content"] = f"{message['content']}{_GAP}{line}" if message.get("content") else line
    else:
        listed = body.get("content" if api == "anthropic" else "output")
        if not isinstance(listed, list):
            return raw
        listed.append({"type": "text", "text": line} if api == "anthropic" else _item(line, "completed"))
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _item(line: str, status: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": line, "annotations": []}] if status == "completed" else []
    return {
        "id": f"{_ITEM}{line[len(OPEN) : len(OPEN) + 16]}", "type": "message", "status": status, "role": "assistant",
        "content": content,
    }  # fmt: skip


class NoticeStream:
    """A stream with the line before its end. One that breaks off has none."""

    def __init__(self, api: Api, line: str) -> None:
        self._api = api
        self._line = line
        self._events = SseSplitter()
        self._next = 0
        """The index behind the last block or item."""
        self._has_text = False

    def feed(self, chunk: bytes) -> bytes:
        return b"".join(map(self._take, self._events.feed(chunk)))

    def end(self) -> bytes:
        return self._events.end()

    def _take(self, raw: bytes) -> bytes:
        events = SseParser().feed(raw)
        try:
            data: Any = json.loads(events[0].data) if events else None
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict) or not self._line:
            return raw
        if self._api == "anthropic":
            return self._message(raw, data)
        return self._chunk(raw, data) if self._api == "openai_chat" else self._response(raw, events[0], data)

    def _message(self, raw: bytes, data: dict[str, Any]) -> bytes:
        index = data.get("index")
        if isinstance(index, int):
            self._next = max(self._next, index + 1)
        if data.get("type") != "message_delta":
            return raw
        position, line, self._line = self._next, self._line, ""
        new: list[dict[str, Any]] = [
            {"type": "content_block_start", "index": position, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": position, "delta": {"type": "text_delta", "text": line}},
            {"type": "content_block_stop", "index": position},
        ]
        return b"".join(map(_encode_data, new)) + raw

    def _chunk(self, raw: bytes, data: dict[str, Any]) -> bytes:
        choices = data.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        if choice is None:
            return raw
        delta = choice.get("delta")
        self._has_text = self._has_text or bool(isinstance(delta, dict) and delta.get("content"))
        if choice.get("finish_reason") is None:
            return raw
        words, self._line = (_GAP if self._has_text else "") + self._line, ""
        if isinstance(delta, dict) and delta.get("content"):  # the last words come with the end
            words = delta["content"] + words
            rest = {key: value for key, value in delta.items() if key != "content"}
            raw = _encode_data({**data, "choices": [{**choice, "delta": rest}]}, "")
        head: dict[str, Any] = {key: data[key] for key in ("id", "object", "created", "model") if key in data}
        new: dict[str, Any] = {**head, "choices": [{"index": 0, "delta": {"content": words}, "finish_reason": None}]}
        return _encode_data(new, "") + raw

    def _response(self, raw: bytes, event: SseEvent, data: dict[str, Any]) -> bytes:
        index, kind = data.get("output_index"), data.get("type")
        if isinstance(index, int):
            self._next = max(self._next, index + 1)
        response = data.get("response")
        if kind not in ("response.completed", "response.incomplete") or not isinstance(response, dict):
            return raw
        line, self._line = self._line, ""
        number = data.get("sequence_number")
        new = list(_response_events(line, self._next))
        if isinstance(number, int):
            new = [{**one, "sequence_number": number + step} for step, one in enumerate(new)]
            data = {**data, "sequence_number": number + len(new)}
        output = [*(response.get("output") or []), _item(line, "completed")]
        last = SseEvent(event.event, json.dumps({**data, "response": {**response, "output": output}}))
        return b"".join(map(_encode_data, new)) + encode_event(last)


def _response_events(line: str, index: int) -> Sequence[dict[str, Any]]:
    item = _item(line, "completed")
    part: dict[str, Any] = {"type": "output_text", "text": line, "annotations": []}
    where = {"item_id": item["id"], "output_index": index, "content_index": 0}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": _item(line, "in_progress")},
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **where, "delta": line},
        {"type": "response.output_text.done", **where, "text": line},
        {"type": "response.content_part.done", **where, "part": part},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def _encode_data(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """The bytes of an event; events of the chat protocol have no names."""
    name = str(data["type"]) if event is None else ""
    return encode_event(SseEvent(name, json.dumps(data)))
