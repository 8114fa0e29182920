"""Find the usage and the model in an answer that is not part of a conversation, such as embeddings."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.encoding import DECODING_ERRORS, make_decoder
from everthread.wire.sse import SseParser

MAX_WHOLE_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 64 * 1024
"""Bytes read from the end of an answer longer than `MAX_WHOLE_BYTES`, to find its usage."""
MAX_DECODED_BYTES = 1 << 40
_USAGE_PATTERN = re.compile(rb'"usage"\s*:\s*(?={)')


class ReportedUsageReader:
    """Reads the usage in an answer, fed piece by piece: a JSON object or a stream of events."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._decoder = make_decoder(headers.get("content-encoding", ""), MAX_DECODED_BYTES)
        self._events = (
            SseParser() if headers.get("content-type", "").startswith("text/event-stream") else None
        )
        self._text = b""
        self._is_whole = True
        self._usage: dict[str, Any] = {}
        self.event_count = 0
        """Number of events of a stream."""
        self.model = ""
        """Model named in the response; used for billing."""

    def feed(self, piece: bytes) -> None:
        if self._decoder is None:
            return
        try:
            data = self._decoder.feed(piece)
        except (RequestRefused, *DECODING_ERRORS):
            self._decoder = None
            return
        if self._events is not None:
            for event in self._events.feed(data):
                self._read_event(event.data)
            return
        self._text += data
        if len(self._text) > (MAX_WHOLE_BYTES if self._is_whole else 2 * TAIL_BYTES):
            self._text = self._text[-TAIL_BYTES:]
            self._is_whole = False

    def find_usage(self) -> CanonicalUsage | None:
        if self._events is None and self._is_whole:
            self._read(self._text)
        if not self._is_whole:
            self._read_tail()
        return normalize_usage(self._usage) if self._usage else None

    def _read_tail(self) -> None:
        """Read the last usage in the end of a long answer."""
        for match in _USAGE_PATTERN.finditer(self._text):
            # The match may be inside of a text.
            with contextlib.suppress(ValueError, RecursionError):
                end = self._text[match.end() :].decode("utf-8", "replace")
                self._usage = json.JSONDecoder().raw_decode(end)[0]

    def _read_event(self, data: str) -> None:
        self.event_count += 1
        if '"usage"' in data or not self.model:
            self._read(data.encode("utf-8", "replace"))

    def _read(self, text: bytes) -> None:
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError):
            return  # no JSON
        if not isinstance(value, dict):
            return
        # Providers report usage and model at one of these levels.
        for part in (value, value.get("response"), value.get("message")):
            if not isinstance(part, dict):
                continue
            model = part.get("model")
            if isinstance(model, str):
                self.model = model
            usage = part.get("usage")
            if isinstance(usage, dict):
                self._usage |= usage
