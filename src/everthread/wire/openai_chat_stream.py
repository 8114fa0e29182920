"""Chat completion chunks -> what they say, piece by piece, and the assembled reply; a reply -> chunks.

Pieces are collected as they come and put together once, at the end, so the cost is that of the text. The dialects
differ most in tool calls: the index may be missing or wrong, the id repeated, the call sent whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

from everthread.core.messages import as_text, content_text, json_text, kind_of
from everthread.core.types import DeltaKind, Reply, StreamDelta
from everthread.wire.openai_chat import decode_reply, encode_reply, stop_of
from everthread.wire.shape import an_object, error_text, event_object
from everthread.wire.sse import SseEvent

_WORDS = frozenset({"content", "refusal", "reasoning", "reasoning_content", "reasoning_text"})
_JOINED = _WORDS | {"arguments", "input", "transcript", "data", "text", "summary"}
"""Strings that come in pieces. Any other string is said whole, and the last one counts."""
_HEAD = frozenset({"choices", "usage", "error", "object", "obfuscation"})


class StreamDecoder:
    """Takes the events of one stream; `reply()` may be asked for at any time, also when the stream broke off.

    `model` is the name under which the reply was asked for (see `openai_chat.decode_reply`).
    """

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._head: dict[str, Any] = {}
        self._usage: Any = None
        self._choice: list[Mapping[str, Any]] = []
        self._deltas: list[dict[str, Any]] = []
        self._calls = _Calls()

    def feed(self, event: SseEvent | Mapping[str, Any]) -> list[StreamDelta]:
        chunk = event_object(event)
        if chunk is None:
            return []
        said: list[StreamDelta] = []
        self._head |= {k: v for k, v in chunk.items() if k not in _HEAD and (v is not None or k not in self._head)}
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, Mapping) and choice.get("index", 0) in (0, None):
                said += self._take(choice)
        if isinstance(chunk.get("usage"), dict):
            said.append(self._take_usage(chunk["usage"]))
        elif "usage" in chunk:
            self._head.setdefault("usage", None)
        if error := chunk.get("error"):
            raw = error if isinstance(error, dict) else {"message": error_text(error) or str(error)}
            said.append(StreamDelta("error", text=error_text(raw), raw=raw))
        return said

    def reply(self) -> Reply:
        """What came so far, in the form of a whole reply."""
        message = {"role": "assistant", **_fold_fields(self._deltas)}
        if calls := self._calls.fold():
            message["tool_calls"] = calls
        if message.keys() == {"role"}:
            message["content"] = ""
        shell = {"index": 0, "finish_reason": None, **_fold_fields(self._choice)}
        body = {**self._head, "object": "chat.completion", "choices": [{**shell, "message": message}]}
        return decode_reply(body | ({"usage": self._usage} if self._usage else {}), model=self._model)

    def _take(self, choice: Mapping[str, Any]) -> Iterator[StreamDelta]:
        delta = an_object(choice.get("delta") or {}, "choices[0].delta")
        calls = delta.get("tool_calls")
        self._choice.append({key: value for key, value in choice.items() if key not in ("delta", "usage")})
        self._deltas.append({key: value for key, value in delta.items() if key != "tool_calls" or not calls})
        yield from _words(delta)
        for fragment in calls if isinstance(calls, list) else []:
            yield self._calls.take(an_object(fragment, "choices[0].delta.tool_calls[]"))
        if isinstance(choice.get("usage"), dict):
            yield self._take_usage(choice["usage"])
        if choice.get("finish_reason") is not None:
            refusal = any(taken.get("refusal") for taken in self._deltas)
            stop = stop_of(choice["finish_reason"], {"role": "assistant", "refusal": "…" if refusal else None})
            yield StreamDelta("stop", text=stop or "", raw={"finish_reason": choice["finish_reason"]})

    def _take_usage(self, usage: dict[str, Any]) -> StreamDelta:
        self._usage = usage
        return StreamDelta("usage", raw=usage)


@dataclass(slots=True)
class _Call:
    id: str = ""
    names: set[str] = field(default_factory=set)
    fragments: list[Mapping[str, Any]] = field(default_factory=list)


class _Calls:
    """Which call a fragment belongs to, and the calls put together.

    An id seen before decides, whatever the index says. A new id, or a name where no index can tell, begins a call.
    Without either the index decides; one never seen belongs to the call that is being written.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_id: dict[str, int] = {}
        self._by_index: dict[int, int] = {}

    def take(self, fragment: Mapping[str, Any]) -> StreamDelta:
        call_id, index = as_text(fragment.get("id")), fragment.get("index")
        function = fragment.get("function") or fragment.get("custom")
        function = function if isinstance(function, Mapping) else {}
        name = as_text(function.get("name"))
        at = self._place(call_id, index, names=bool(name))
        if at == len(self._calls):
            self._calls.append(_Call())
        if isinstance(index, int):
            self._by_index[index] = at
        call = self._calls[at]
        new_id, new_name = "" if call.id else call_id, "" if name in call.names else name
        if new_id:
            call.id = new_id
            self._by_id[new_id] = at
        call.names.add(name)
        call.fragments.append({key: value for key, value in fragment.items() if key != "index"})
        arguments = json_text(function.get("arguments", function.get("input")))
        return StreamDelta("call", index=at, id=new_id, name=new_name, arguments=arguments)

    def _place(self, call_id: str, index: Any, *, names: bool) -> int:
        if call_id in self._by_id:
            return self._by_id[call_id]
        new, last = len(self._calls), max(len(self._calls) - 1, 0)
        known = self._by_index.get(index) if isinstance(index, int) else None
        if known is not None:
            return new if call_id and self._calls[known].id else known
        return new if call_id or names else last

    def fold(self) -> list[dict[str, Any]]:
        return [_fold_fields(call.fragments) for call in self._calls]


def encode_stream(reply: Reply) -> Iterator[SseEvent]:
    """The chunks of a stream that says the reply."""
    body = encode_reply(reply)
    choice = body["choices"][0]
    message = choice["message"]
    head = {key: value for key, value in body.items() if key not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    if "usage" in body and body["usage"] is None:
        head["usage"] = None
    for delta in _deltas(message):
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    shell = {key: value for key, value in choice.items() if key != "message"}
    yield _event({**head, "choices": [{**shell, "delta": {}}]})
    if body.get("usage"):
        yield _event({**head, "choices": [], "usage": body["usage"]})
    yield SseEvent(None, "[DONE]")


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    words = {key: value for key, value in message.items() if key in _WORDS and isinstance(value, str)}
    calls = message.get("tool_calls") or []
    yield {key: value for key, value in message.items() if key not in words and (key != "tool_calls" or not calls)}
    for key, value in sorted(words.items(), key=lambda item: not item[0].startswith("reasoning")):
        yield {key: value}
    for index, call in enumerate(calls):
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
            yield {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}
        else:
            yield {"tool_calls": [{**call, "index": index}]}


def _event(chunk: Mapping[str, Any]) -> SseEvent:
    return SseEvent(None, json.dumps(chunk, ensure_ascii=False))


def _words(delta: Mapping[str, Any]) -> Iterator[StreamDelta]:
    """Reasoning may come twice in one chunk, as text and as details: it is said once."""
    details = delta.get("reasoning_details")
    thoughts = [delta.get(key) for key in ("reasoning_content", "reasoning", "reasoning_text")]
    thoughts += [detail.get(key) for detail in details or [] if isinstance(detail, dict) for key in ("text", "summary")]
    spoken: dict[DeltaKind, str] = {
        "reasoning": next((text for text in thoughts if isinstance(text, str) and text), ""),
        "text": content_text(delta.get("content")),
        "refusal": content_text(delta.get("refusal")),
    }
    for kind, text in spoken.items():
        if text:
            yield StreamDelta(kind, text=text)


def _fold_fields(fragments: list[Any]) -> dict[str, Any]:
    """Objects of one kind that came one after the other, as one."""
    keys = dict.fromkeys(chain.from_iterable(fragments))
    return {key: _fold(key, [fragment[key] for fragment in fragments if key in fragment]) for key in keys}


def _fold(key: str, values: list[Any]) -> Any:
    given = [value for value in values if value is not None]
    if not given:
        return None
    if key == "arguments":
        return "".join(map(json_text, given))
    if key == "name":
        return "".join(dict.fromkeys(map(str, given)))
    if key == "reasoning_details" and all(isinstance(value, list) for value in given):
        return _fold_details(given)
    if all(isinstance(value, str) for value in given):
        return "".join(given) if key in _JOINED else next(filter(None, reversed(given)), "")
    if all(isinstance(value, dict) for value in given):
        return _fold_fields(given)
    if all(isinstance(value, list) for value in given):
        return list(chain.from_iterable(given))
    return _fold_content(given) if key == "content" else given[-1]


def _fold_content(values: list[Any]) -> list[Any]:
    """Text and lists of parts in turn: text that came together is one part."""
    parts: list[Any] = []
    for is_text, run in groupby(values, key=lambda value: isinstance(value, str)):
        pieces = list(run)
        if not is_text:
            parts += chain.from_iterable(piece for piece in pieces if isinstance(piece, list))
        elif text := "".join(pieces):
            parts.append({"type": "text", "text": text})
    return parts


def _fold_details(chunks: list[list[Any]]) -> list[Any]:
    """Blocks of reasoning. A chunk goes on with the block before if that is of its kind and index and not yet signed;
    what stands together in one chunk are blocks of their own."""
    blocks: list[list[Any]] = []
    for details in chunks:
        for position, detail in enumerate(details):
            if position == 0 and blocks and _continues(blocks[-1], detail):
                blocks[-1].append(detail)
            else:
                blocks.append([detail])
    return [_fold_fields(block) if len(block) > 1 else block[0] for block in blocks]


def _continues(block: list[Any], detail: Any) -> bool:
    last = block[-1]
    if kind_of(detail) not in ("reasoning.text", "reasoning.summary") or kind_of(last) != kind_of(detail):
        return False
    return not last.get("signature") and last.get("index") == detail.get("index")
