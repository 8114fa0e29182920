"""Merge the rounds of an answer in the protocol of chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.types import Api
from everthread.gateway.recall.merged_stream import (
    RECALL,
    ROUND_SEPARATOR,
    MergedStream,
    merge_usage,
    read_count,
    replace_data,
)
from everthread.wire.sse import SseEvent


class MergedChatStream(MergedStream):
    """Merges streams of chat completion chunks."""

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
        return read_count(usage.get("completion_tokens"))

    def _convert_event(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        deltas = self._decoder.feed(event)
        choice = _find_choice(data)
        chunk = {**data, **self._take_shared_fields(data)}
        is_emptied = False
        if choice is not None:
            call_deltas = [delta for delta in deltas if delta.kind == "call"]
            delta = self._convert_delta(choice.get("delta") or {}, call_deltas)
            is_emptied = bool(choice.get("delta")) and not delta
            chunk["choices"] = [{**choice, "delta": delta}]
        if isinstance(data.get("usage"), dict) and self._earlier_output_tokens:
            chunk["usage"] = _merge_chat_usage(
                [{"completion_tokens": self._earlier_output_tokens}, data["usage"]]
            )
        ends_round = choice is None or choice.get("finish_reason") is not None
        if self.recall_count and ends_round:
            return self._finish_round(event, chunk)
        if is_emptied:
            return None
        return event if chunk == data else replace_data(event, chunk)

    def _take_shared_fields(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the first round that all chunks have; remember them in that round."""
        if self.finished_rounds:
            return self._first_chunk_fields
        for key in ("id", "created", "model"):
            if key in data:
                self._first_chunk_fields.setdefault(key, data[key])
        return {}

    def _convert_delta(
        self, chunk_delta: dict[str, Any], call_deltas: Sequence[Any]
    ) -> dict[str, Any]:
        """Return a delta without recall calls, in the place that it has in the whole response."""
        delta = dict(chunk_delta)
        if isinstance(delta.get("tool_calls"), list):
            delta["tool_calls"] = self._renumber_client_calls(delta["tool_calls"], call_deltas)
            if not delta["tool_calls"]:
                del delta["tool_calls"]
        if self.finished_rounds:
            delta.pop("role", None)
        if isinstance(delta.get("content"), str) and delta["content"]:
            if self._needs_separator:
                delta["content"] = ROUND_SEPARATOR + delta["content"]
            self._needs_separator = False
            self._has_earlier_text = True
        return delta

    def _finish_round(self, event: SseEvent, chunk: dict[str, Any]) -> SseEvent | None:
        """Return the text of a chunk that ends the round, and hold the end back."""
        if not chunk.get("choices"):
            return self._hold_event(replace_data(event, chunk))
        choice = chunk["choices"][0]
        reason = choice["finish_reason"]
        if reason == "tool_calls" and not self.client_call_count:
            reason = "stop"
        last_choice = {**choice, "delta": {}, "finish_reason": reason}
        self._hold_event(replace_data(event, {**chunk, "choices": [last_choice]}))
        if not choice["delta"]:
            return None
        text_fields = {key: value for key, value in chunk.items() if key != "usage"}
        return replace_data(event, {**text_fields, "choices": [{**choice, "finish_reason": None}]})

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


def _find_choice(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first choice of a chunk, or None if there is none."""
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        return None
    return choices[0] if isinstance(choices[0], dict) else None


def merge_chat_bodies(bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge whole bodies, without the calls that the gateway answered."""
    choices = [body["choices"][0] for body in bodies]
    message: dict[str, Any] = {}
    for choice in choices:
        for key, value in choice["message"].items():
            message[key] = _merge_values(key, message.get(key), value)
    calls = [call for call in message.pop("tool_calls", None) or [] if not _is_chat_recall(call)]
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
    return {**merged, "usage": _merge_chat_usage(usages)} if usages else merged


def _merge_values(key: str, earlier_value: Any, value: Any) -> Any:
    """Return a field of the whole message, from its value in the earlier rounds and in the next one."""
    if isinstance(earlier_value, str) and isinstance(value, str):
        if key == "content" and earlier_value and value:
            return f"{earlier_value}{ROUND_SEPARATOR}{value}"
        if key in ("reasoning", "reasoning_content"):
            return earlier_value + value
    if isinstance(earlier_value, list) and isinstance(value, list):
        return [*earlier_value, *value]
    return earlier_value if value is None else value


def _is_chat_recall(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and function.get("name") == RECALL


def _merge_chat_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return merge_usage(usages, prompt_key="prompt_tokens", output_key="completion_tokens")
