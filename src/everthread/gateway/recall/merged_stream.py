"""Merge several streams of a model into one response, with one start, one end and continuous indexes.

Text is passed on at once; only calls of `recall` are removed. If the first answer has no such call, its events stay
unchanged.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.types import Api, ModelReply
from everthread.wire.codecs import CODECS
from everthread.wire.sse import SseEvent, SseSplitter, decode_event, encode_event

RECALL = "recall"
ROUND_SEPARATOR = "\n\n"


class MergedStream(ABC):
    """Merges the streams of several rounds into one response."""

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

    def end_round(self) -> tuple[ModelReply, bytes]:
        """Return the model's reply in this round, and the last bytes of its stream."""
        pending_events = self._events.pop_pending()
        return self._decoder.reply(), self._convert_raw(pending_events) if pending_events else b""

    def continue_round(self) -> None:
        """Begin the next round of the response."""
        self._earlier_output_tokens += self._count_output_tokens(self._decoder.reply().usage or {})
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
        event = decode_event(raw)
        if event is None:
            return raw  # a comment
        try:
            data: Any = json.loads(event.data)
        except (ValueError, RecursionError):
            data = None
        converted: SseEvent | None = event
        if isinstance(data, dict):
            converted = self._convert_event(event, data)
        elif self.recall_count:  # the end of a chat stream is not a JSON object
            converted = self._hold_event(event)
        if converted is event:
            return raw
        return b"" if converted is None else encode_event(converted)

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


def is_recall(part: Any) -> bool:
    """Return whether a block or an item calls the gateway's own tool."""
    is_call = kind_of(part) in ("tool_use", "function_call")
    return is_call and part.get("name") == RECALL and not part.get("namespace")


def read_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def merge_usage(
    usages: Sequence[Mapping[str, Any]], *, prompt_key: str, output_key: str
) -> dict[str, Any]:
    """Return the usage of several rounds: the last one's, with the output tokens of all rounds."""
    output_tokens = sum(read_count(usage.get(output_key)) for usage in usages)
    total_tokens = read_count(usages[-1].get(prompt_key)) + output_tokens
    return {**usages[-1], output_key: output_tokens, "total_tokens": total_tokens}


def replace_data(event: SseEvent, data: Mapping[str, Any]) -> SseEvent:
    return SseEvent(event.event, json.dumps(data, separators=(",", ":")))
