"""Server-sent events: parse and write them.

The parser is incremental: however the bytes are cut, also inside a character or between CR and LF, the same
events result. `id` and `retry` are not used by model streams and are ignored, as are comments.
"""

from __future__ import annotations

import codecs
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
    """Its name; None if the stream gave none."""
    data: str


class SseSplitter:
    """Split a stream into events, as bytes. An incomplete event waits for the next chunk."""

    def __init__(self) -> None:
        self.pending = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that this chunk completes, each with its closing blank line."""
        data = self.pending + chunk
        ends = [0, *(match.end() for match in _EVENT_END_PATTERN.finditer(data))]
        self.pending = data[ends[-1] :]
        return [data[start:end] for start, end in pairwise(ends)]

    def pop_pending(self) -> bytes:
        """Return the incomplete event at the end of the stream."""
        incomplete_event = self.pending
        self.pending = b""
        return incomplete_event


class SseParser:
    """Parse a stream of bytes into events, each as soon as it is complete."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending_text: list[str] = []
        self._event = ""
        self._data: list[str] = []
        self._has_started = False
        self._skip_newline = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that this chunk completes."""
        return self._read_text(self._decoder.decode(chunk))

    def close(self) -> list[SseEvent]:
        """Return the last event if the stream ended without its closing blank line."""
        events = self._read_text(self._decoder.decode(b"", final=True))
        self._read_line("".join(self._pending_text))
        self._pending_text = []
        return events + self._finish_event()

    def _read_text(self, text: str) -> list[SseEvent]:
        if text and not self._has_started:
            self._has_started = True
            text = text.removeprefix("\ufeff")
        if text and self._skip_newline:
            self._skip_newline = False
            text = text.removeprefix("\n")
        self._skip_newline = self._skip_newline or text.endswith("\r")
        *lines, partial_line = _LINE_END_PATTERN.split(text)
        events: list[SseEvent] = []
        for line in lines:
            full_line = "".join((*self._pending_text, line))
            self._pending_text = []
            if full_line:
                self._read_line(full_line)
            else:
                events += self._finish_event()
        if partial_line:
            self._pending_text.append(partial_line)
        return events

    def _read_line(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value

    def _finish_event(self) -> list[SseEvent]:
        """Return the collected event; none if it has no data, for example a comment that keeps the connection alive."""
        event = self._event
        data = self._data
        self._event = ""
        self._data = []
        return [SseEvent(event or None, "\n".join(data))] if data else []


def parse_event(event: SseEvent | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON object of a stream event; None for the mark that ends the stream."""
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
    head = f"event: {event.event}\n" if event.event else ""
    return (
        head + "".join(f"data: {line}\n" for line in _LINE_END_PATTERN.split(event.data)) + "\n"
    ).encode("utf-8", "replace")


_EVENT_END_PATTERN = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END_PATTERN = re.compile(r"\r\n|\r|\n")
