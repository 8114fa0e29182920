"""Merge the rounds of an answer in Anthropic's protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.types import Api
from everthread.gateway.recall.merged_stream import (
    MergedStream,
    is_recall,
    read_count,
    replace_data,
)
from everthread.wire.sse import SseEvent


class MergedAnthropicStream(MergedStream):
    """Merges streams of Anthropic's protocol."""

    api: Api = "anthropic"

    def __init__(self, *, model: str | None = None) -> None:
        super().__init__(model=model)
        self._positions: dict[Any, int | None] = {}
        """By index of a block in this round, its index in the response, or None if the block is removed."""
        self._next_index = 0
        self._usage: dict[str, Any] = {}

    def _begin_round(self) -> None:
        self._positions = {}

    def _count_output_tokens(self, usage: Mapping[str, Any]) -> int:
        return read_count(usage.get("output_tokens"))

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
        return event if position == index else replace_data(event, {**data, "index": position})

    def _finish_message(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        if not self.finished_rounds and not self.recall_count:
            return event
        round_usage = data.get("usage")
        usage = {
            **self._usage,
            **(round_usage if isinstance(round_usage, dict) else {}),
        }
        usage["output_tokens"] = (
            read_count(usage.get("output_tokens")) + self._earlier_output_tokens
        )
        delta = dict(data.get("delta") or {})
        if (
            self.recall_count
            and not self.client_call_count
            and delta.get("stop_reason") == "tool_use"
        ):
            delta["stop_reason"] = "end_turn"
        last_event = replace_data(event, {**data, "delta": delta, "usage": usage})
        return self._hold_event(last_event) if self.recall_count else last_event


def merge_anthropic_bodies(bodies: Sequence[Any]) -> Any:
    """Merge whole bodies, without the calls that the gateway answered."""
    blocks = [
        block for body in bodies for block in body.get("content") or [] if not is_recall(block)
    ]
    merged = {**bodies[-1], "content": blocks, "id": bodies[0].get("id")}
    usages = [body["usage"] for body in bodies if isinstance(body.get("usage"), dict)]
    if usages:
        output_tokens = sum(read_count(usage.get("output_tokens")) for usage in usages)
        merged["usage"] = {**usages[-1], "output_tokens": output_tokens}
    has_calls = any(kind_of(block) == "tool_use" for block in blocks)
    if merged.get("stop_reason") == "tool_use" and not has_calls:
        merged["stop_reason"] = "end_turn"
    return merged
