"""One request of a conversation on its way: sent, sent again where the provider refuses its size, and answered."""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx2

from everthread.gateway.base import Incoming, Outcome, Outgoing
from everthread.gateway.encodings import decoded
from everthread.gateway.guarded import Guarded
from everthread.gateway.incoming import Call
from everthread.gateway.limits import Limits
from everthread.gateway.metrics import Metrics
from everthread.gateway.routes import Upstream, family_of
from everthread.gateway.streams import Pieces, WithoutUsage, asking_for_usage
from everthread.gateway.upstream import Headers, UpstreamClient, end_to_end, for_upstream, rewritten
from everthread.gateway.usage_tap import Tap, usage_of
from everthread.gateway.writing import Writer

_ATTEMPTS = 3
_ERROR_BYTES = 1024 * 1024
"""An error longer than this is not looked at."""


@dataclass(slots=True)
class Desk:
    """What every request needs, and what was learnt about upstreams."""

    client: UpstreamClient
    manager: Guarded
    metrics: Metrics
    limits: Limits
    include_usage: bool
    refuse_usage: set[str]
    """Upstreams that take no `stream_options`."""


class Passage:
    """The state of one request: what was sent last, and what was heard."""

    def __init__(self, desk: Desk, call: Call, upstream: Upstream, incoming: Incoming, model: str | None) -> None:
        self._desk = desk
        self._call = call
        self._upstream = upstream
        self._incoming = incoming
        self._model = model
        self._asks_usage = False
        self._tap: Tap | None = None
        self.sent = Outgoing(incoming.raw)
        self.status = 0

    async def run(self, writer: Writer) -> None:
        self.sent = await self._desk.manager.prepare(self._incoming)
        self._counted("managed")
        for attempt in range(_ATTEMPTS + 1):
            response = await self._send()
            if not await self._answered(response, writer, last=attempt == _ATTEMPTS):
                return

    def outcome(self) -> Outcome:
        """How it ended, as far as it was heard."""
        reply = self._tap.end() if self._tap else None
        usage = usage_of(self._incoming.api, reply)
        if usage is not None:
            for bucket in ("input", "output", "cache_read", "cache_write"):
                self._desk.metrics.count("tokens", getattr(usage, f"{bucket}_tokens"), bucket=bucket)
        return Outcome(self.status, reply, usage, estimated=reply is not None and usage is None)

    async def _answered(self, response: httpx2.Response, writer: Writer, *, last: bool) -> bool:
        """Whether it is to be sent again; else the client has its answer."""
        pieces = Pieces(response.aiter_raw())
        try:
            instead = None if last else await self._instead(response, pieces)
            if instead is None:
                await self._relay(response, pieces, writer)
                return False
        finally:
            await pieces.drop()
            await response.aclose()
        if instead is not self.sent:
            self.sent = instead
            self._counted("repaired")
        return True

    async def _send(self) -> httpx2.Response:
        """What is sent now: the client's bytes, or ours with headers that say so."""
        call, sent = self._call, self.sent
        headers = for_upstream(
            call.raw_headers, self._upstream, family_of(self._incoming.api), trusted=call.caller.passthrough
        )
        body = sent.body
        asking = self._asking()
        self._asks_usage = asking is not None
        if asking is not None:
            body = asking
            headers = [(name, value) for name, value in headers if name != b"accept-encoding"]
            headers.append((b"accept-encoding", b"identity"))  # so that the extra chunk can be taken out again
            self._desk.metrics.count("rewrites", kind="include_usage")
        if sent.rewritten or asking is not None:
            headers = rewritten(headers, body)
        response = await self._desk.client.send(self._upstream, call.method, call.target, headers, body)
        self.status = response.status_code
        self._tap = Tap(self._incoming.api, self.status, response.headers, model=self._model)
        return response

    def _asking(self) -> bytes | None:
        """The body with `include_usage`, where that is ours to add."""
        desk, incoming = self._desk, self._incoming
        if not desk.include_usage or incoming.api != "openai_chat" or incoming.mode != "managed":
            return None
        if self._upstream.name in desk.refuse_usage:
            return None
        return asking_for_usage(self.sent.body if self.sent.rewritten else incoming.body)

    async def _instead(self, response: httpx2.Response, pieces: Pieces) -> Outgoing | None:
        """What to send instead of what was refused; None where the client gets this answer."""
        desk, tap = self._desk, self._tap
        if response.status_code >= 400:
            raw = await pieces.whole(_ERROR_BYTES)
            desk.metrics.count("upstream_errors", upstream=self._upstream.name, status=str(response.status_code))
            body = decoded(raw, response.headers.get("content-encoding", ""), _ERROR_BYTES) if raw else raw
            if body is None:
                return None
            if self._asks_usage and response.status_code in (400, 422) and _is_about_usage(body):
                desk.refuse_usage.add(self._upstream.name)
                return self.sent
            return await desk.manager.refused(self._incoming, self.sent, response.status_code, body)
        if tap is None or not (self.sent.hold and tap.streams):
            return None
        error = await pieces.held(tap, desk.limits.hold_seconds)
        if error is None:
            return None
        desk.metrics.count("upstream_errors", upstream=self._upstream.name, status="stream")
        body = json.dumps({"error": dict(error.raw)}).encode()
        return await desk.manager.refused(self._incoming, self.sent, response.status_code, body)

    async def _relay(self, response: httpx2.Response, pieces: Pieces, writer: Writer) -> None:
        tap = self._tap
        drop = WithoutUsage() if self._asks_usage and tap is not None and tap.streams else None
        headers = end_to_end(response.headers.raw)
        if drop is not None:
            headers = _unmeasured(headers)
        await writer.start(response.status_code, headers, self.sent.told)
        for piece in pieces.seen:
            await writer.body(drop.feed(piece) if drop else piece)
        async for piece in pieces.after_seen():
            kept = drop.feed(piece) if drop else piece
            if kept:
                await writer.body(kept)
            if tap is not None:
                tap.feed(piece)
        await writer.end(drop.end() if drop else b"")

    def _counted(self, kind: str) -> None:
        if self.sent.rewritten:
            self._desk.metrics.count("rewrites", kind=kind)


def _is_about_usage(body: bytes) -> bool:
    return b"stream_options" in body or b"include_usage" in body


def _unmeasured(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name != b"content-length"]
