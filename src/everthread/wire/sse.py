"""Server-sent events: parse and write them.

The parser is incremental: however the bytes are cut, also inside a character or between CR and LF, the same
events come out. `id` and `retry` mean nothing to a model's stream and are ignored, as comments are.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class SseEvent:
    event: str | None
    """Its name; None if the stream gave none."""
    data: str


class SseSplitter:
    """Cuts a stream into its events, as bytes. The beginning of one waits for its end."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that this chunk completes, each with its closing blank line."""
        data = self.rest + chunk
        ends = [0, *(match.end() for match in _EVENT_END.finditer(data))]
        self.rest = data[ends[-1] :]
        return [data[start:end] for start, end in pairwise(ends)]

    def end(self) -> bytes:
        """Return the unread rest of the stream."""
        rest = self.rest
        self.rest = b""
        return rest


class SseParser:
    """Split bytes into events as soon as each is complete."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest: list[str] = []
        self._event = ""
        self._data: list[str] = []
        self._started = False
        self._skip_newline = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that this chunk completes."""
        return self._take(self._decoder.decode(chunk))

    def close(self) -> list[SseEvent]:
        """Return the last event if the stream ended without its closing blank line."""
        events = self._take(self._decoder.decode(b"", final=True))
        self._line("".join(self._rest))
        self._rest = []
        return events + self._dispatch()

    def _take(self, text: str) -> list[SseEvent]:
        if text and not self._started:
            self._started = True
            text = text.removeprefix("\ufeff")
        if text and self._skip_newline:
            self._skip_newline = False
            text = text.removeprefix("\n")
        self._skip_newline = self._skip_newline or text.endswith("\r")
        *lines, rest = _LINE_END.split(text)
        events: list[SseEvent] = []
        for line in lines:
            full_line = "".join((*self._rest, line))
            self._rest = []
            if full_line:
                self._line(full_line)
            else:
                events += self._dispatch()
        if rest:
            self._rest.append(rest)
        return events

    def _line(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value

    def _dispatch(self) -> list[SseEvent]:
        """Return the collected event; none without data, as comments that keep a connection alive have none."""
        event = self._event
        data = self._data
        self._event = ""
        self._data = []
        return [SseEvent(event or None, "\n".join(data))] if data else []


def encode_event(event: SseEvent) -> bytes:
    """Return the bytes of one event, ready to be sent."""
    head = f"event: {event.event}\n" if event.event else ""
    return (
        head + "".join(f"data: {line}\n" for line in _LINE_END.split(event.data)) + "\n"
    ).encode("utf-8", "replace")


_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE_END = re.compile(r"\r\n|\r|\n")
