"""Merge the rounds of an answer in the Responses protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.types import Api
from everthread.gateway.recall.merged_stream import (
    MergedStream,
    is_recall,
    merge_usage,
    read_count,
    replace_data,
)
from everthread.wire.sse import SseEvent


class MergedResponsesStream(MergedStream):
    """Merges streams of the Responses protocol."""

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
        return read_count(usage.get("output_tokens"))

    def _convert_event(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        self._decoder.feed(event)
        self._event_data = data
        kind = str(data.get("type"))
        if kind in ("response.created", "response.in_progress", "response.queued"):
            if self.finished_rounds:
                return None
            response = data.get("response")
            self._response_id = response.get("id") if isinstance(response, dict) else None
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            return self._finish_response(event, data)
        elif "output_index" in data:
            return self._convert_item(event, data, kind)
        return self._renumber_event(event, data)

    def _convert_item(self, event: SseEvent, data: dict[str, Any], kind: str) -> SseEvent | None:
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

    def _finish_response(self, event: SseEvent, data: dict[str, Any]) -> SseEvent | None:
        response = data.get("response")
        if not isinstance(response, dict) or not (self.finished_rounds or self.recall_count):
            return self._renumber_event(event, data)
        usage = response.get("usage")
        merged_response = {
            **response,
            "id": self._response_id or response.get("id"),
            "output": [*self._earlier_items, *self._round_items],
        }
        if isinstance(usage, dict):
            merged_response["usage"] = _merge_responses_usage(
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
        return event if data is self._event_data else replace_data(event, data)


def merge_responses_bodies(bodies: Sequence[Any]) -> Any:
    """Merge whole bodies, without the calls that the gateway answered."""
    items = [item for body in bodies for item in body.get("output") or [] if not is_recall(item)]
    merged = {**bodies[-1], "output": items, "id": bodies[0].get("id")}
    usages = [body["usage"] for body in bodies if isinstance(body.get("usage"), dict)]
    if usages:
        merged["usage"] = _merge_responses_usage(usages)
    return merged


def _merge_responses_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return merge_usage(usages, prompt_key="input_tokens", output_key="output_tokens")
