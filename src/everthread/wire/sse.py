"""Server-sent events: parse and write them.

The parser is incremental: however the bytes are cut, also inside a character or between CR and LF, the same
events result. `id` and `retry` are not used by model streams and are ignored, as are comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from everthread.errors import WireError
from everthread.wire.payload_checks import require_object


@dataclass(frozen=True, slots=True)
class SseEvent:
    event: str | None
    """Its name, or None if the stream gave none."""
    data: str


class SseSplitter:
    """Splits a stream into events, as bytes. An incomplete event waits for the next chunk."""

    def __init__(self) -> None:
        self.pending = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that this chunk completes, each with its closing blank line."""
        # The blank line may have begun in the last three bytes before this chunk.
        search_start = max(0, len(self.pending) - 3)
        self.pending += chunk
        matches = _EVENT_END_PATTERN.finditer(self.pending, search_start)
        ends = [0, *(match.end() for match in matches)]
        events = [bytes(self.pending[start:end]) for start, end in pairwise(ends)]
        del self.pending[: ends[-1]]
        return events

    def pop_pending(self) -> bytes:
        """Return the incomplete event at the end of the stream."""
        incomplete_event = bytes(self.pending)
        self.pending.clear()
        return incomplete_event


class SseParser:
    """Parses a stream of bytes into events, each as soon as it is complete."""

    def __init__(self) -> None:
        self._splitter = SseSplitter()

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that this chunk completes."""
        events = map(decode_event, self._splitter.feed(chunk))
        return [event for event in events if event is not None]

    def close(self) -> list[SseEvent]:
        """Return the last event if the stream ended without its closing blank line."""
        event = decode_event(self._splitter.pop_pending())
        return [] if event is None else [event]


def decode_event(raw: bytes) -> SseEvent | None:
    """Return one event, or None if it has no data, such as a comment that keeps the connection alive."""
    text = raw.decode("utf-8", "replace").removeprefix("\ufeff")
    event_name = ""
    data: list[str] = []
    for line in _LINE_END_PATTERN.split(text):
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif name == "event":
            event_name = value.removeprefix(" ")
    return SseEvent(event_name or None, "\n".join(data)) if data else None


def parse_event(event: SseEvent | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON object of a stream event, or None for the mark that ends the stream."""
    if not isinstance(event, SseEvent):
        return require_object(event, "the event")
    if event.data.strip() == "[DONE]":
        return None
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError):
        raise WireError(f"an event of the stream is not JSON: {event.data[:80]!r}") from None
    return require_object(value, "the event")


def make_json_event(data: Mapping[str, Any], name: str | None = None) -> SseEvent:
    """Return an event that carries a JSON object."""
    return SseEvent(name, json.dumps(data, ensure_ascii=False))


def encode_event(event: SseEvent) -> bytes:
    """Return the bytes of one event, ready to be sent."""
    lines = [f"data: {line}\n" for line in _LINE_END_PATTERN.split(event.data)]
    if event.event:
        lines.insert(0, f"event: {event.event}\n")
    return "".join([*lines, "\n"]).encode("utf-8", "replace")


_EVENT_END_PATTERN = re.compile(rb"\r?\n\r?\n|\r\r")
_LINE_END_PATTERN = re.compile(r"\r\n|\r|\n")
