"""Pass a stream on unchanged until the model calls `recall`, which most answers never do."""

from __future__ import annotations

import re

_NAME_PATTERN = re.compile(rb'"name"\s*:\s*"(?:recall?|reca|rec|re|r|)"')
"""The name of our tool or its beginning, because some servers stream a name in pieces."""
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
MAX_WATCHED_BYTES = 4 * 1024 * 1024
"""Maximum bytes that are kept for a later merge; longer answers are merged from here on."""


def may_call_recall(data: bytes) -> bool:
    """Return whether these bytes of an answer may contain the beginning of a call of our tool."""
    return b'"name"' in data and _NAME_PATTERN.search(data) is not None


class RecallWatch:
    """Look for a call of our tool in the complete events of a stream."""

    def __init__(self) -> None:
        self.must_merge = False
        """Whether `held_bytes` may call the tool, so that the rounds have to be merged."""
        self.held_bytes = b""
        """Bytes that were not passed on."""
        self._passed_pieces: list[bytes] = []
        self._passed_size = 0

    @property
    def passed_bytes(self) -> bytes:
        """All bytes that were passed on."""
        return b"".join(self._passed_pieces)

    def feed(self, piece: bytes) -> bytes:
        """Add a piece and return the events that are complete now; return nothing once the tool may be called."""
        data = self.held_bytes + piece
        end = _end_of_events(data)
        events = data[:end]
        self._passed_size += len(events)
        if may_call_recall(events) or self._passed_size > MAX_WATCHED_BYTES:
            self.must_merge = True
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
