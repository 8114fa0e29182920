"""Read the reply and the usage in an answer that is passed on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from everthread.core.caching.provider_diagnosis import with_diagnosis
from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.types import Api, ModelReply, StreamDelta
from everthread.errors import WireError
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.encoding import DECODING_ERRORS, Decoder, make_decoder
from everthread.wire.codecs import CODECS
from everthread.wire.sse import SseParser

_LOG = logging.getLogger("everthread.gateway")
MAX_DECODED_BYTES = 64 * 1024 * 1024


class AnswerReader:
    """Reads reply and usage from one response, fed piece by piece. Logs an answer that cannot be read."""

    def __init__(
        self,
        api: Api,
        status: int,
        headers: Mapping[str, str],
        *,
        model: str | None,
    ) -> None:
        self.api = api
        self._model = model
        self._decoder: Decoder | None = None
        if status < 300:
            encoding = headers.get("content-encoding", "")
            self._decoder = make_decoder(encoding, MAX_DECODED_BYTES)
        self.is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self._parser = SseParser()
        self._stream = CODECS[api].stream_decoder(model=model)
        self._pieces: list[bytes] = []
        self._has_events = False

    def feed(self, chunk: bytes) -> list[StreamDelta]:
        """Return the deltas in a piece of a stream; none for a piece of a whole answer."""
        if self._decoder is None:
            return []
        try:
            data = self._decoder.feed(chunk)
            if not self.is_stream:
                self._pieces.append(data)
                return []
            return self._read_deltas(data)
        except (WireError, RequestRefused, *DECODING_ERRORS) as error:
            self._give_up(error)
            return []

    def end(self) -> ModelReply | None:
        """Return the reply as far as it arrived, or None if nothing could be read."""
        if self._decoder is None and not self._has_events:
            return None
        try:
            if self.is_stream:
                return self._stream.reply() if self._has_events else None
            body: Any = json.loads(b"".join(self._pieces))
            return CODECS[self.api].decode_reply(body, model=self._model)
        except (WireError, ValueError, RecursionError) as error:
            self._give_up(error)
            return None

    def _read_deltas(self, data: bytes) -> list[StreamDelta]:
        deltas: list[StreamDelta] = []
        for event in self._parser.feed(data):
            deltas += self._stream.feed(event)
            self._has_events = True
        return deltas

    def _give_up(self, error: Exception) -> None:
        self._decoder = None
        _LOG.warning(
            "an answer could not be read (%s); it is forwarded unchanged",
            type(error).__name__,
        )


def read_usage(api: Api, reply: ModelReply | None) -> CanonicalUsage | None:
    """Return the usage that the provider reported, or None if it reported none, or a prompt of no tokens."""
    if reply is None or not reply.usage:
        return None
    usage = with_diagnosis(normalize_usage(reply.usage, api=api), reply.raw)
    return usage if usage.prompt_tokens else None
