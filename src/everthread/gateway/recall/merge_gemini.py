"""Merge the rounds of an answer in Gemini's protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.types import Api
from everthread.gateway.recall.merged_stream import (
    RECALL,
    MergedStream,
    read_count,
    replace_data,
)
from everthread.wire import gemini
from everthread.wire.gemini.field_names import get_object_field
from everthread.wire.sse import SseEvent


class MergedGeminiStream(MergedStream):
    """Merges streams of Gemini's protocol."""

    api: Api = "gemini"

    def _begin_round(self) -> None:
        """Do nothing: this protocol has no indexes to reset."""

    def _count_output_tokens(self, usage: Mapping[str, Any]) -> int:
        return read_count(usage.get("candidatesTokenCount")) + read_count(
            usage.get("thoughtsTokenCount")
        )

    def _convert_event(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        self._decoder.feed(event)
        parts = _list_parts(data)
        client_parts = [part for part in parts if not _is_recall(part)]
        self.recall_count += len(parts) - len(client_parts)
        self.client_call_count += sum(
            get_object_field(part, "functionCall") is not None for part in client_parts
        )
        candidates = data.get("candidates")
        first = candidates[0] if isinstance(candidates, list) and candidates else {}
        chunk = data if client_parts == parts else _replace_parts(data, client_parts)
        usage = data.get("usageMetadata")
        if isinstance(usage, dict) and self._earlier_output_tokens:
            chunk = {
                **chunk,
                "usageMetadata": _merge_gemini_usage(
                    [{"candidatesTokenCount": self._earlier_output_tokens}, usage]
                ),
            }
        if self.recall_count and isinstance(first, dict) and first.get("finishReason") is not None:
            return self._finish_round(event, chunk, client_parts)
        if parts and not client_parts:
            return None
        return event if chunk is data else replace_data(event, chunk)

    def _finish_round(
        self, event: SseEvent, chunk: dict[str, Any], client_parts: list[Any]
    ) -> SseEvent | None:
        """Return the last text of a round, and hold the end back."""
        self._hold_event(replace_data(event, _replace_parts(chunk, [])))
        if not client_parts:
            return None
        text_fields = {key: value for key, value in chunk.items() if key != "usageMetadata"}
        [candidate] = text_fields["candidates"][:1]
        other_fields = {key: value for key, value in candidate.items() if key != "finishReason"}
        return replace_data(event, {**text_fields, "candidates": [other_fields]})


def merge_gemini_bodies(bodies: Sequence[Any]) -> Any:
    """Merge whole bodies of Gemini's protocol. If they are JSON arrays of chunks, return an array too."""
    whole_bodies = [gemini.join_chunks(body) if isinstance(body, list) else body for body in bodies]
    parts = [part for body in whole_bodies for part in _list_parts(body) if not _is_recall(part)]
    merged = whole_bodies[-1]
    if merged.get("candidates"):
        merged = _replace_parts(merged, gemini.merge_parts(parts))
    usages = [
        body["usageMetadata"]
        for body in whole_bodies
        if isinstance(body.get("usageMetadata"), dict)
    ]
    if usages:
        merged = {**merged, "usageMetadata": _merge_gemini_usage(usages)}
    return [merged] if isinstance(bodies[-1], list) else merged


def _merge_gemini_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    output_tokens = sum(read_count(usage.get("candidatesTokenCount")) for usage in usages)
    thoughts = sum(read_count(usage.get("thoughtsTokenCount")) for usage in usages)
    last = usages[-1]
    total = read_count(last.get("promptTokenCount")) + output_tokens + thoughts
    return {
        **last,
        "candidatesTokenCount": output_tokens,
        **({"thoughtsTokenCount": thoughts} if thoughts else {}),
        "totalTokenCount": total,
    }


def _list_parts(data: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a response's first candidate."""
    candidates = data.get("candidates")
    first = candidates[0] if isinstance(candidates, list) and candidates else None
    content = first.get("content") if isinstance(first, dict) else None
    parts = content.get("parts") if isinstance(content, dict) else None
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _replace_parts(data: Mapping[str, Any], parts: list[Any]) -> dict[str, Any]:
    """Return a response whose first candidate has these parts; without content if there are none."""
    first, *others = data["candidates"]
    other_fields = {key: value for key, value in first.items() if key != "content"}
    content = {"content": {**(first.get("content") or {}), "parts": parts}} if parts else {}
    return {**data, "candidates": [{**content, **other_fields}, *others]}


def _is_recall(part: Mapping[str, Any]) -> bool:
    call = get_object_field(part, "functionCall")
    return call is not None and call.get("name") == RECALL
