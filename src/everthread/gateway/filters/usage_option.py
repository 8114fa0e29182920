"""Ask the upstream for the usage of a chat stream, and hide the extra chunk that the client did not ask for."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any

from everthread.gateway.answers import Answer
from everthread.gateway.contracts import IncomingRequest
from everthread.gateway.exchange import Exchange, UpstreamRequest
from everthread.gateway.features import Feature, Filter
from everthread.gateway.managed_exchange import ManagedExchange
from everthread.gateway.request.outer_fields import OuterFields, peek_field
from everthread.wire.sse import SseSplitter

MAX_EVENT_BYTES = 1024 * 1024
"""Longer events are passed on unread."""
INVALID_STATUSES = (400, 422)


class UsageOptionFeature(Feature):
    """Asks for the usage of chat streams, as the setting `gateway.include_usage` allows."""

    def __init__(self) -> None:
        self.refusing_upstreams: set[str] = set()
        """Names of upstreams that refuse `stream_options`."""

    def make_managed_filter(self, managed_exchange: ManagedExchange) -> Filter | None:
        incoming = managed_exchange.incoming
        if incoming.api != "openai_chat" or incoming.mode != "managed":
            return None
        return _UsageOptionFilter(managed_exchange.exchange, incoming, self.refusing_upstreams)


class _UsageOptionFilter(Filter):
    def __init__(
        self, exchange: Exchange, incoming: IncomingRequest, refusing_upstreams: set[str]
    ) -> None:
        self._exchange = exchange
        self._body = incoming.body
        self._refusing_upstreams = refusing_upstreams
        self._is_added = False
        self._chunk_remover: UsageChunkRemover | None = None

    def change_request(self, request: UpstreamRequest) -> UpstreamRequest:
        body = self._add_option(request)
        self._is_added = body is not None
        if body is None:
            return request
        self._exchange.services.metrics.count("rewrites", kind="include_usage")
        return replace(request, body=body, is_changed=True, is_plain=True)

    async def retry_after_refusal(self, status: int, body: bytes) -> bool:
        """Send the request again without the option if the upstream does not know it."""
        is_about_option = b"stream_options" in body or b"include_usage" in body
        if not self._is_added or status not in INVALID_STATUSES or not is_about_option:
            return False
        self._refusing_upstreams.add(self._exchange.request.upstream.name)
        return True

    async def change_answer(self, answer: Answer) -> Answer:
        if not self._is_added or not answer.is_stream or answer.is_own:
            return answer
        self._chunk_remover = UsageChunkRemover()
        return replace(answer, is_changed=True)

    def convert_piece(self, piece: bytes) -> bytes:
        return piece if self._chunk_remover is None else self._chunk_remover.feed(piece)

    def release_held_bytes(self) -> bytes:
        return b"" if self._chunk_remover is None else self._chunk_remover.end()

    def _add_option(self, request: UpstreamRequest) -> bytes | None:
        """Return the body with `include_usage`.

        Return None if the request does not stream, the client has set the option, or the upstream refuses it.
        """
        if self._exchange.request.upstream.name in self._refusing_upstreams:
            return None
        if isinstance(request.body, bytes) and request.is_changed:
            return add_usage_option(request.body)
        return add_usage_option(self._body.plain, self._body.outer)


def add_usage_option(body: bytes, outer: OuterFields | None = None) -> bytes | None:
    """Add `include_usage` to a streaming chat request; return None if the client has set it, or asks for no stream.

    `outer`: the fields of the body, if they were read before.
    """
    find = outer.find if outer is not None else functools.partial(peek_field, body)
    stream = find("stream")
    if stream is None or stream.value is not True:
        return None
    options = find("stream_options")
    if options is None:
        text = body.rstrip()
        if not text.endswith(b"}"):
            return None
        return text[:-1] + b',"stream_options":{"include_usage":true}}'
    if not isinstance(options.value, dict) or "include_usage" in options.value or options.start < 0:
        return None
    separator = b"," if options.value else b""
    position = options.start + 1
    return body[:position] + b'"include_usage":true' + separator + body[position:]


class UsageChunkRemover:
    """Remove the usage chunk at the end of a chat stream."""

    def __init__(self) -> None:
        self._events = SseSplitter()

    def feed(self, chunk: bytes) -> bytes:
        """Return the events that are complete; keep the beginning of an event until its end arrives."""
        events = [event for event in self._events.feed(chunk) if not _is_usage_chunk(event)]
        if len(self._events.pending) > MAX_EVENT_BYTES:
            events.append(self.end())
        return b"".join(events)

    def end(self) -> bytes:
        return self._events.pop_pending()


def _is_usage_chunk(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        chunk: Any = json.loads(event[5:])
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(chunk, dict)
        and chunk.get("choices") == []
        and isinstance(chunk.get("usage"), dict)
    )
