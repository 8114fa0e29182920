"""Pass a stream on unchanged until the model calls `recall`: most answers never do."""

from __future__ import annotations

import re

_NAME_PATTERN = re.compile(rb'"name"\s*:\s*"(?:recall?|reca|rec|re|r|)"')
"""The name of our tool, or the beginning of it: some servers stream a name in pieces."""
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
MAX_WATCHED_BYTES = 4 * 1024 * 1024
"""A longer answer is merged from here on, so that what was passed on is not kept."""


def may_call_recall(data: bytes) -> bool:
    """Return whether some bytes of an answer may begin a call of our tool."""
    return b'"name"' in data and _NAME_PATTERN.search(data) is not None


class RecallWatch:
    """Look for a call of our tool in the complete events of a stream."""

    def __init__(self) -> None:
        self.is_found = False
        """Whether the tool may be called in `held_bytes`: the rounds have to be merged."""
        self.held_bytes = b""
        """Bytes that were not passed on."""
        self._passed_pieces: list[bytes] = []
        self._passed_size = 0

    @property
    def passed_bytes(self) -> bytes:
        """Return all bytes that were passed on."""
        return b"".join(self._passed_pieces)

    def feed(self, piece: bytes) -> bytes:
        """Return the complete events so far; empty once the tool may be called."""
        data = self.held_bytes + piece
        end = _end_of_events(data)
        events = data[:end]
        self._passed_size += len(events)
        if may_call_recall(events) or self._passed_size > MAX_WATCHED_BYTES:
            self.is_found = True
            self.held_bytes = data
            return b""
        self.held_bytes = data[end:]
        self._passed_pieces.append(events)
        return events


def _end_of_events(data: bytes) -> int:
    """Return the end of the last complete event; 0 if none is complete."""
    positions = [(data.rfind(mark), len(mark)) for mark in _EVENT_ENDS]
    return max(
        (position + length for position, length in positions if position >= 0),
        default=0,
    )
