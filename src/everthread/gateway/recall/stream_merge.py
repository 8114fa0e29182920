"""Merge several answers of a model into one response, with one start, one end and continuous indexes.

Text is passed on at once; only calls of `recall` are removed. If the first answer has no such call, its events stay
unchanged.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.types import Api, Reply
from everthread.wire import gemini
from everthread.wire.codecs import CODECS
from everthread.wire.gemini.fields import get_object_field
from everthread.wire.sse import SseEvent, SseParser, SseSplitter, encode_event

RECALL = "recall"
_ROUND_SEPARATOR = "\n\n"


class MergedStream(ABC):
    """Merge the streams of several rounds into one response."""

    api: Api

    def __init__(self, *, model: str | None = None) -> None:
        self._model = model
        self._events = SseSplitter()
        self._decoder = CODECS[self.api].stream_decoder(model=model)
        self.finished_rounds = 0
        """Number of rounds that have ended and are followed by another."""
        self.recall_count = 0
        """Number of recall calls removed from this round."""
        self.client_call_count = 0
        """Number of calls of the client's own tools in this round."""
        self._end_events: list[SseEvent] = []
        """The held events that end the response, if no further round follows."""
        self._earlier_output_tokens = 0
        """Output tokens of the earlier rounds."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the events to send to the client; keep the beginning of an event until its end arrives."""
        return b"".join(map(self._convert_raw, self._events.feed(chunk)))

    def end_round(self) -> tuple[Reply, bytes]:
        """Return the model's reply in this round, and the last bytes of its stream."""
        pending_events = self._events.take_pending()
        return self._decoder.reply(), self._convert_raw(
            pending_events
        ) if pending_events else b""

    def continue_round(self) -> None:
        """Begin the next round of the response."""
        self._earlier_output_tokens += self._count_output_tokens(
            self._decoder.reply().usage or {}
        )
        self._decoder = CODECS[self.api].stream_decoder(model=self._model)
        self._end_events = []
        self.finished_rounds += 1
        self.recall_count = self.client_call_count = 0
        self._begin_round()

    def finish(self) -> bytes:
        """Return the held events that end the response, after the last round."""
        events = self._end_events
        self._end_events = []
        return b"".join(map(encode_event, events))

    def _convert_raw(self, raw: bytes) -> bytes:
        parser = SseParser()
        events = parser.feed(raw) + parser.close()
        if not events:
            return raw  # a comment
        event = events[0]
        try:
            data: Any = json.loads(event.data)
        except (ValueError, RecursionError):
            data = None
        converted = (
            self._convert_event(event, data)
            if isinstance(data, dict)
            else self._convert_other(event)
        )
        return (
            raw
            if converted is event
            else encode_event(converted)
            if converted is not None
            else b""
        )

    def _convert_other(self, event: SseEvent) -> SseEvent | None:
        """Convert an event that is not a JSON object, the end of a chat stream; hold it if the round calls `recall`."""
        return self._hold_event(event) if self.recall_count else event

    def _hold_event(self, event: SseEvent) -> SseEvent | None:
        """Hold an event back until it is clear that no round follows; return None, so that nothing is sent."""
        self._end_events.append(event)
        return None

    @abstractmethod
    def _begin_round(self) -> None:
        """Reset the counters of a round."""

    @abstractmethod
    def _convert_event(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        """Return the event to send instead: the same one if nothing changes, None to send none."""

    @abstractmethod
    def _count_output_tokens(self, usage: Mapping[str, Any]) -> int: ...


class MergedAnthropicStream(MergedStream):
    """Merge streams of Anthropic's protocol."""

    api: Api = "anthropic"

    def __init__(self, *, model: str | None = None) -> None:
        super().__init__(model=model)
        self._positions: dict[Any, int | None] = {}
        """By index of a block in this round, its index in the response; None if the block is removed."""
        self._next_index = 0
        self._usage: dict[str, Any] = {}

    def _begin_round(self) -> None:
        self._positions = {}

    def _count_output_tokens(self, usage: Mapping[str, Any]) -> int:
        return _read_count(usage.get("output_tokens"))

    def _convert_event(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        self._decoder.feed(event)
        match data.get("type"):
            case "message_start":
                message = data.get("message")
                usage = message.get("usage") if isinstance(message, dict) else None
                self._usage = dict(usage) if isinstance(usage, dict) else {}
                return None if self.finished_rounds else event
            case "content_block_start":
                return self._begin_block(event, data)
            case "content_block_delta" | "content_block_stop":
                return self._renumber_block(event, data)
            case "message_delta":
                return self._finish_message(event, data)
            case "message_stop" if self.recall_count:
                return self._hold_event(event)
        return event

    def _begin_block(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        if is_recall(data.get("content_block")):
            self._positions[data.get("index")] = None
            self.recall_count += 1
            return None
        self.client_call_count += kind_of(data.get("content_block")) == "tool_use"
        self._positions[data.get("index")] = self._next_index
        self._next_index += 1
        return self._renumber_block(event, data)

    def _renumber_block(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        index = data.get("index")
        position = self._positions.get(index, index)
        if position is None:
            return None
        return (
            event
            if position == index
            else _replace_data(event, {**data, "index": position})
        )

    def _finish_message(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        if not self.finished_rounds and not self.recall_count:
            return event
        round_usage = data.get("usage")
        usage = {
            **self._usage,
            **(round_usage if isinstance(round_usage, dict) else {}),
        }
        usage["output_tokens"] = (
            _read_count(usage.get("output_tokens")) + self._earlier_output_tokens
        )
        delta = dict(data.get("delta") or {})
        if (
            self.recall_count
            and not self.client_call_count
            and delta.get("stop_reason") == "tool_use"
        ):
            delta["stop_reason"] = "end_turn"
        last_event = _replace_data(event, {**data, "delta": delta, "usage": usage})
        return self._hold_event(last_event) if self.recall_count else last_event


class MergedChatStream(MergedStream):
    """Merge streams of chat completion chunks."""

    api: Api = "openai_chat"

    def __init__(self, *, model: str | None = None) -> None:
        super().__init__(model=model)
        self._first_chunk_fields: dict[str, Any] = {}
        self._calls: dict[int, int | None] = {}
        self._unnamed: dict[int, list[dict[str, Any]]] = {}
        """By index, the pieces of calls whose name has not arrived yet."""
        self._next_index = 0
        self._has_earlier_text = False
        self._needs_separator = False

    def _begin_round(self) -> None:
        self._calls = {}
        self._unnamed = {}
        self._needs_separator = self._has_earlier_text

    def _count_output_tokens(self, usage: Mapping[str, Any]) -> int:
        return _read_count(usage.get("completion_tokens"))

    def _convert_event(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        deltas = self._decoder.feed(event)
        chunk = dict(data)
        if not self.finished_rounds:
            self._first_chunk_fields = {
                **{key: data[key] for key in ("id", "created", "model") if key in data},
                **self._first_chunk_fields,
            }
        else:
            chunk |= self._first_chunk_fields
        fragments = [delta for delta in deltas if delta.kind == "call"]
        choices = data.get("choices")
        choice = (
            choices[0]
            if isinstance(choices, list) and choices and isinstance(choices[0], dict)
            else None
        )
        if choice is not None:
            delta = dict(choice.get("delta") or {})
            if isinstance(delta.get("tool_calls"), list):
                delta["tool_calls"] = self._renumber_client_calls(
                    delta["tool_calls"], fragments
                )
                if not delta["tool_calls"]:
                    del delta["tool_calls"]
            if self.finished_rounds:
                delta.pop("role", None)
            if isinstance(delta.get("content"), str) and delta["content"]:
                if self._needs_separator:
                    delta["content"] = _ROUND_SEPARATOR + delta["content"]
                self._needs_separator = False
                self._has_earlier_text = True
            chunk["choices"] = [{**choice, "delta": delta}]
        if isinstance(data.get("usage"), dict) and self._earlier_output_tokens:
            chunk["usage"] = _chat_usage(
                [{"completion_tokens": self._earlier_output_tokens}, data["usage"]]
            )
        if self.recall_count and (
            choice is None or choice.get("finish_reason") is not None
        ):
            return self._finish_round(event, chunk)
        if (
            choice is not None
            and not chunk["choices"][0]["delta"]
            and choice.get("delta")
        ):
            return None
        return event if chunk == data else _replace_data(event, chunk)

    def _finish_round(self, event: SseEvent, chunk: dict[str, Any]) -> SseEvent | None:
        """Return the text of a chunk that ends the round, and hold the end back."""
        if not chunk.get("choices"):
            return self._hold_event(_replace_data(event, chunk))
        choice = chunk["choices"][0]
        reason = choice["finish_reason"]
        reason = (
            "stop" if reason == "tool_calls" and not self.client_call_count else reason
        )
        self._hold_event(
            _replace_data(
                event,
                {
                    **chunk,
                    "choices": [{**choice, "delta": {}, "finish_reason": reason}],
                },
            )
        )
        if not choice["delta"]:
            return None
        text_fields = {key: value for key, value in chunk.items() if key != "usage"}
        return _replace_data(
            event, {**text_fields, "choices": [{**choice, "finish_reason": None}]}
        )

    def _renumber_client_calls(
        self, pieces: Sequence[Any], deltas: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """Return the pieces of calls of the client's own tools, with continuous indexes."""
        calls: list[dict[str, Any]] = []
        for piece, delta in zip(pieces, deltas, strict=False):
            index = delta.index
            if index not in self._calls:
                self._unnamed.setdefault(index, []).append(piece)
                if not delta.name:
                    continue
                pieces_so_far = self._unnamed.pop(index)
                if delta.name == RECALL:
                    self._calls[index] = None
                    self.recall_count += 1
                    continue
                self._calls[index] = self._next_index
                self._next_index += 1
                self.client_call_count += 1
                calls += [
                    {**earlier_piece, "index": self._calls[index]}
                    for earlier_piece in pieces_so_far
                ]
            elif self._calls[index] is not None:
                calls.append({**piece, "index": self._calls[index]})
        return calls


class MergedResponsesStream(MergedStream):
    """Merge streams of the Responses protocol."""

    api: Api = "openai_responses"

    def __init__(self, *, model: str | None = None) -> None:
        super().__init__(model=model)
        self._positions: dict[Any, int | None] = {}
        self._next_index = 0
        self._earlier_items: list[Any] = []
        """The output items of earlier rounds."""
        self._round_items: list[Any] = []
        self._response_id: Any = None
        self._read_count = 0
        self._event_data: dict[str, Any] = {}

    def _begin_round(self) -> None:
        self._positions = {}
        self._earlier_items += self._round_items
        self._round_items = []

    def _count_output_tokens(self, usage: Mapping[str, Any]) -> int:
        return _read_count(usage.get("output_tokens"))

    def _convert_event(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        self._decoder.feed(event)
        self._event_data = data
        kind = str(data.get("type"))
        if kind in ("response.created", "response.in_progress", "response.queued"):
            if self.finished_rounds:
                return None
            response = data.get("response")
            self._response_id = (
                response.get("id") if isinstance(response, dict) else None
            )
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            return self._finish_response(event, data)
        elif "output_index" in data:
            return self._convert_item(event, data, kind)
        return self._renumber_event(event, data)

    def _convert_item(
        self, event: SseEvent, data: dict[str, Any], kind: str
    ) -> SseEvent | None:
        index = data["output_index"]
        if index not in self._positions:
            if is_recall(data.get("item")):
                self._positions[index] = None
                self.recall_count += 1
            else:
                self.client_call_count += kind_of(data.get("item")) in (
                    "function_call",
                    "custom_tool_call",
                )
                self._positions[index] = self._next_index
                self._next_index += 1
        position = self._positions[index]
        if position is None:
            return None
        if kind == "response.output_item.done":
            self._round_items.append(data.get("item"))
        return self._renumber_event(
            event, data if position == index else {**data, "output_index": position}
        )

    def _finish_response(
        self, event: SseEvent, data: dict[str, Any]
    ) -> SseEvent | None:
        response = data.get("response")
        if not isinstance(response, dict) or not (
            self.finished_rounds or self.recall_count
        ):
            return self._renumber_event(event, data)
        usage = response.get("usage")
        merged_response = {
            **response,
            "id": self._response_id or response.get("id"),
            "output": [*self._earlier_items, *self._round_items],
        }
        if isinstance(usage, dict):
            merged_response["usage"] = _responses_usage(
                [{"output_tokens": self._earlier_output_tokens}, usage]
            )
        last_event = self._renumber_event(event, {**data, "response": merged_response})
        return self._hold_event(last_event) if self.recall_count else last_event

    def _renumber_event(self, event: SseEvent, data: dict[str, Any]) -> SseEvent:
        number = data.get("sequence_number")
        if isinstance(number, int) and not (self.finished_rounds or self.recall_count):
            self._read_count = number + 1
        elif isinstance(number, int):
            data = {**data, "sequence_number": self._read_count}
            self._read_count += 1
        return event if data is self._event_data else _replace_data(event, data)


class MergedGeminiStream(MergedStream):
    """Merge streams of Gemini's protocol."""

    api: Api = "gemini"

    def _begin_round(self) -> None:
        """Do nothing: this protocol has no indexes to reset."""

    def _count_output_tokens(self, usage: Mapping[str, Any]) -> int:
        return _read_count(usage.get("candidatesTokenCount")) + _read_count(
            usage.get("thoughtsTokenCount")
        )

    def _convert_event(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        self._decoder.feed(event)
        parts = gemini_parts(data)
        client_parts = [part for part in parts if not is_gemini_recall(part)]
        self.recall_count += len(parts) - len(client_parts)
        self.client_call_count += sum(
            get_object_field(part, "functionCall") is not None for part in client_parts
        )
        candidates = data.get("candidates")
        first = candidates[0] if isinstance(candidates, list) and candidates else {}
        chunk = data if client_parts == parts else with_gemini_parts(data, client_parts)
        usage = data.get("usageMetadata")
        if isinstance(usage, dict) and self._earlier_output_tokens:
            chunk = {
                **chunk,
                "usageMetadata": _gemini_usage(
                    [{"candidatesTokenCount": self._earlier_output_tokens}, usage]
                ),
            }
        if (
            self.recall_count
            and isinstance(first, dict)
            and first.get("finishReason") is not None
        ):
            return self._finish_round(event, chunk, client_parts)
        if parts and not client_parts:
            return None
        return event if chunk is data else _replace_data(event, chunk)

    def _finish_round(
        self, event: SseEvent, chunk: dict[str, Any], client_parts: list[Any]
    ) -> SseEvent | None:
        """Return the last text of a round, and hold the end back."""
        self._hold_event(_replace_data(event, with_gemini_parts(chunk, [])))
        if not client_parts:
            return None
        text_fields = {
            key: value for key, value in chunk.items() if key != "usageMetadata"
        }
        [candidate] = text_fields["candidates"][:1]
        other_fields = {
            key: value for key, value in candidate.items() if key != "finishReason"
        }
        return _replace_data(event, {**text_fields, "candidates": [other_fields]})


def gemini_parts(data: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a response's first candidate."""
    candidates = data.get("candidates")
    first = candidates[0] if isinstance(candidates, list) and candidates else None
    content = first.get("content") if isinstance(first, dict) else None
    parts = content.get("parts") if isinstance(content, dict) else None
    return (
        [part for part in parts if isinstance(part, dict)]
        if isinstance(parts, list)
        else []
    )


def with_gemini_parts(data: Mapping[str, Any], parts: list[Any]) -> dict[str, Any]:
    """Return a response whose first candidate has these parts; without content if there are none."""
    first, *others = data["candidates"]
    other_fields = {key: value for key, value in first.items() if key != "content"}
    content = (
        {"content": {**(first.get("content") or {}), "parts": parts}} if parts else {}
    )
    return {**data, "candidates": [{**content, **other_fields}, *others]}


def is_gemini_recall(part: Mapping[str, Any]) -> bool:
    call = get_object_field(part, "functionCall")
    return call is not None and call.get("name") == RECALL


MERGED_STREAMS: Mapping[Api, type[MergedStream]] = {
    "anthropic": MergedAnthropicStream,
    "openai_chat": MergedChatStream,
    "openai_responses": MergedResponsesStream,
    "gemini": MergedGeminiStream,
}


def is_recall(part: Any) -> bool:
    """Return whether a block or an item calls the gateway's own tool."""
    is_call = kind_of(part) in ("tool_use", "function_call")
    return is_call and part.get("name") == RECALL and not part.get("namespace")


def merge_bodies(api: Api, bodies: Sequence[Any]) -> Any:
    """Merge the whole bodies of several rounds into one, without the calls that the gateway answered."""
    if api == "gemini":
        return _merge_gemini(bodies)
    if api == "openai_chat":
        return _merge_chat(bodies)
    list_name = "content" if api == "anthropic" else "output"
    parts = [
        part
        for body in bodies
        for part in body.get(list_name) or []
        if not is_recall(part)
    ]
    merged = {**bodies[-1], list_name: parts, "id": bodies[0].get("id")}
    usages = [body["usage"] for body in bodies if isinstance(body.get("usage"), dict)]
    if usages and api == "anthropic":
        merged["usage"] = {
            **usages[-1],
            "output_tokens": sum(
                _read_count(usage.get("output_tokens")) for usage in usages
            ),
        }
    elif usages:
        merged["usage"] = _responses_usage(usages)
    if merged.get("stop_reason") == "tool_use" and not any(
        kind_of(part) == "tool_use" for part in parts
    ):
        merged["stop_reason"] = "end_turn"
    return merged


def _merge_gemini(bodies: Sequence[Any]) -> Any:
    """Merge whole bodies of Gemini's protocol. If they are JSON arrays of chunks, return an array too."""
    whole_bodies = [
        gemini.encode_reply(gemini.decode_reply(body))
        if isinstance(body, list)
        else body
        for body in bodies
    ]
    parts = [
        part
        for body in whole_bodies
        for part in gemini_parts(body)
        if not is_gemini_recall(part)
    ]
    merged = (
        with_gemini_parts(whole_bodies[-1], gemini.merge_parts(parts))
        if whole_bodies[-1].get("candidates")
        else whole_bodies[-1]
    )
    usages = [
        body["usageMetadata"]
        for body in whole_bodies
        if isinstance(body.get("usageMetadata"), dict)
    ]
    if usages:
        merged = {**merged, "usageMetadata": _gemini_usage(usages)}
    return [merged] if isinstance(bodies[-1], list) else merged


def _gemini_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    output_tokens = sum(
        _read_count(usage.get("candidatesTokenCount")) for usage in usages
    )
    thoughts = sum(_read_count(usage.get("thoughtsTokenCount")) for usage in usages)
    last = usages[-1]
    total = _read_count(last.get("promptTokenCount")) + output_tokens + thoughts
    return {
        **last,
        "candidatesTokenCount": output_tokens,
        **({"thoughtsTokenCount": thoughts} if thoughts else {}),
        "totalTokenCount": total,
    }


def _merge_chat(bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    choices = [body["choices"][0] for body in bodies]
    message: dict[str, Any] = {}
    for choice in choices:
        for key, value in choice["message"].items():
            earlier_value = message.get(key)
            if (
                key == "content"
                and isinstance(earlier_value, str)
                and earlier_value
                and isinstance(value, str)
                and value
            ):
                message[key] = f"{earlier_value}{_ROUND_SEPARATOR}{value}"
            elif (
                key in ("reasoning", "reasoning_content")
                and isinstance(earlier_value, str)
                and isinstance(value, str)
            ):
                message[key] = earlier_value + value
            elif isinstance(earlier_value, list) and isinstance(value, list):
                message[key] = [*earlier_value, *value]
            elif value is not None or key not in message:
                message[key] = value
    calls = [
        call
        for call in message.pop("tool_calls", None) or []
        if not _is_chat_recall(call)
    ]
    reason = choices[-1].get("finish_reason")
    if calls:
        message["tool_calls"] = calls
    elif reason == "tool_calls":
        reason = "stop"
    merged = {
        **bodies[-1],
        **{key: bodies[0][key] for key in ("id", "created") if key in bodies[0]},
    }
    merged["choices"] = [{**choices[-1], "message": message, "finish_reason": reason}]
    usages = [body["usage"] for body in bodies if isinstance(body.get("usage"), dict)]
    return {**merged, "usage": _chat_usage(usages)} if usages else merged


def _is_chat_recall(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and function.get("name") == RECALL


def _chat_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    output_tokens = sum(_read_count(usage.get("completion_tokens")) for usage in usages)
    return {
        **usages[-1],
        "completion_tokens": output_tokens,
        "total_tokens": _read_count(usages[-1].get("prompt_tokens")) + output_tokens,
    }


def _responses_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    output_tokens = sum(_read_count(usage.get("output_tokens")) for usage in usages)
    return {
        **usages[-1],
        "output_tokens": output_tokens,
        "total_tokens": _read_count(usages[-1].get("input_tokens")) + output_tokens,
    }


def _read_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _replace_data(event: SseEvent, data: Mapping[str, Any]) -> SseEvent:
    return SseEvent(event.event, json.dumps(data, separators=(",", ":")))
