"""Reads an answer on its way to the client: what was said and what it used. It never changes or delays a byte."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from everthread.core.exchange import Api, Reply, StreamDelta
from everthread.core.usage import CanonicalUsage, normalize_usage
from everthread.errors import WireError
from everthread.gateway.access import Refused
from everthread.gateway.encodings import UNREADABLE, decoder
from everthread.wire.codecs import CODECS
from everthread.wire.sse import SseParser

_LOG = logging.getLogger("everthread.gateway")


_MOST = 64 * 1024 * 1024


class Tap:
    """One answer. Give it every piece, in order; what it cannot read it leaves alone, and says so in the log."""

    def __init__(self, api: Api, status: int, headers: Mapping[str, str], *, model: str | None = None) -> None:
        self._api = api
        self._model = model
        self._decoder = decoder(headers.get("content-encoding", ""), _MOST) if status < 300 else None
        self.streams = headers.get("content-type", "").startswith("text/event-stream")
        self._parser = SseParser()
        self._stream = CODECS[api].stream_decoder(model=model)
        self._pieces: list[bytes] = []
        self._heard = False

    def feed(self, chunk: bytes) -> list[StreamDelta]:
        """What a piece of a stream says; nothing for pieces of a whole answer."""
        if self._decoder is None:
            return []
        try:
            data = self._decoder.feed(chunk)
            if not self.streams:
                self._pieces.append(data)
                return []
            return self._said(data)
        except (WireError, Refused, *UNREADABLE) as error:
            self._give_up(error)
            return []

    def end(self) -> Reply | None:
        """The reply as far as it came; None where nothing could be read."""
        if self._decoder is None and not self._heard:
            return None
        try:
            if self.streams:
                return self._stream.reply() if self._heard else None
            body: Any = json.loads(b"".join(self._pieces))
            return CODECS[self._api].decode_reply(body, model=self._model)
        except (WireError, ValueError, RecursionError) as error:
            self._give_up(error)
            return None

    def _said(self, data: bytes) -> list[StreamDelta]:
        said: list[StreamDelta] = []
        for event in self._parser.feed(data):
            said += self._stream.feed(event)
            self._heard = True
        return said

    def _give_up(self, error: Exception) -> None:
        self._decoder = None
        _LOG.warning("an answer could not be read on its way (%s); it is forwarded all the same", type(error).__name__)


def usage_of(api: Api, reply: Reply | None) -> CanonicalUsage | None:
    """What the provider reported, in one form; None where it reported nothing, or a prompt of no tokens."""
    usage = normalize_usage(reply.usage, api=api) if reply is not None and reply.usage else None
    return usage if usage is not None and usage.prompt_tokens else None
