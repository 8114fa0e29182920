"""One request of a conversation on its way: sent, sent again where the provider refuses its size, and answered."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from everthread.gateway.access import Refused
from everthread.gateway.base import THREAD, Incoming, Outcome, Outgoing, ProxyTurn, UnmanagedTurn
from everthread.gateway.encodings import decoded
from everthread.gateway.failures import error_body, error_event
from everthread.gateway.glance import glance
from everthread.gateway.guarded import FailOpenManager
from everthread.gateway.incoming import Call
from everthread.gateway.limits import Limits
from everthread.gateway.logs import about_thread
from everthread.gateway.metrics import Metrics
from everthread.gateway.pulse import Head, Pulse
from everthread.gateway.routes import Upstream, family_of
from everthread.gateway.streams import Pieces, WithoutUsage, asking_for_usage
from everthread.gateway.upstream import Headers, UpstreamClient, UpstreamResponse, for_client, for_upstream, rewritten
from everthread.gateway.usage_tap import Tap, usage_of
from everthread.gateway.writing import Writer

if TYPE_CHECKING:
    from everthread.gateway.telemetry import Observed, Telemetry

_ATTEMPTS = 3
_SIZE_STATUSES = (400, 413, 422)
"""With which an upstream may refuse a request's size."""
_ERROR_BYTES = 1024 * 1024
"""An error longer than this is not looked at."""


@dataclass(slots=True)
class Desk:
    """What every request needs, and what was learnt about upstreams."""

    client: UpstreamClient
    manager: FailOpenManager
    metrics: Metrics
    limits: Limits
    include_usage: bool
    refuse_usage: set[str]
    """Upstreams that take no `stream_options`."""
    telemetry: Telemetry | None = None


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
        self._observed: Observed | None = None
        self._added = 0.0
        """Seconds that a client waited for our own part, until its request was sent."""
        self.turn: ProxyTurn = UnmanagedTurn(incoming)
        self.sent = self.turn.sent
        self.status = 0
        self.is_introduced = False
        """It went as it came, and an upstream accepted its credential with it."""

    async def run(self, writer: Writer) -> None:
        desk = self._desk
        pulse = Pulse(writer, desk.limits, desk.metrics, self._streams)
        if desk.telemetry is not None:
            family = family_of(self._incoming.api)
            self._observed = desk.telemetry.begin(self._upstream, family, self._model, self._incoming.headers)
        if await self._introduce(writer, pulse):
            return
        begun = time.monotonic()
        self.turn = await pulse.compacting(desk.manager.prepare(self._incoming))
        self._added = time.monotonic() - begun
        self.sent = self.turn.sent
        about_thread(self.sent.headers.get(THREAD, ""))
        self._counted("managed")
        try:
            for attempt in range(_ATTEMPTS + 1):
                response = await pulse.compacting(self._send(plain=True)) if pulse.begun else await self._send()
                if not await self._answered(response, writer, pulse, last=attempt == _ATTEMPTS):
                    return
        except Refused as refused:
            if not pulse.begun:
                raise
            await writer.end(error_event(self._incoming.api, refused.status, error_body(self._incoming.api, refused)))

    def facts(self, outcome: Outcome) -> dict[str, Any]:
        """For the request's line in the log."""
        usage = outcome.usage
        facts: dict[str, Any] = {"model": self._model or "", "added_ms": round(1_000 * self._added, 1)}
        if usage is not None:
            facts |= {
                "tokens": usage.prompt_tokens, "cached": usage.cache_read_tokens, "output": usage.output_tokens,
            }  # fmt: skip
        elif self.sent.tokens is not None:
            facts["tokens"] = self.sent.tokens
        return facts

    async def _introduce(self, writer: Writer, pulse: Pulse) -> bool:
        """Forward as it came what shows a credential that no upstream has accepted; whether it is answered.

        Anybody can make one up, so nothing is summarised, stored or learnt for it. An upstream that refuses the size
        has accepted the credential: then the request is managed and sent again.
        """
        credential = self._call.caller.credential
        if credential is None or await credential.is_accepted():
            return False
        response = await self._send()
        if response.status_code not in (401, 403):
            await credential.accept()
            self.is_introduced = response.status_code < 300
        if response.status_code in _SIZE_STATUSES:
            await response.aclose()
            return False
        await self._answered(response, writer, pulse, last=True)
        return True

    async def record(self, outcome: Outcome) -> None:
        """Store what was said and used; of a request that introduced its credential what can be recorded now."""
        if self.is_introduced:
            self.turn = await self._desk.manager.prepare(replace(self._incoming, mode="observe"))
        await self.turn.record(outcome)

    def _streams(self) -> bool:
        stream = glance(self._incoming.body, "stream")
        return stream is not None and stream.value is True

    def outcome(self) -> Outcome:
        """How it ended, as far as it was heard."""
        reply = self._tap.end() if self._tap else None
        usage = usage_of(self._incoming.api, reply)
        if usage is not None:
            for bucket in ("input", "output", "cache_read", "cache_write"):
                self._desk.metrics.count("tokens", getattr(usage, f"{bucket}_tokens"), bucket=bucket, task="main")
        outcome = Outcome(self.status, reply, usage, estimated=reply is not None and usage is None)
        if self._observed is not None:
            self._observed.end(self.sent, outcome)
        return outcome

    async def _answered(self, response: UpstreamResponse, writer: Writer, pulse: Pulse, *, last: bool) -> bool:
        """Whether it is to be sent again; else the client has its answer."""
        pieces = Pieces(response.aiter_raw())
        try:
            instead = None if last else await self._instead(response, pieces, pulse)
            if instead is None:
                await self._relay(response, pieces, writer, begun=pulse.begun)
                return False
        finally:
            await pieces.drop()
            await response.aclose()
        if instead is not self.sent:
            self.sent = instead
            self._counted("repaired")
        return True

    async def _send(self, *, plain: bool = False) -> UpstreamResponse:
        """What is sent now: the client's bytes, or ours with headers that say so. `plain`: no compressed answer."""
        call, sent = self._call, self.sent
        headers = for_upstream(
            call.raw_headers, self._upstream, family_of(self._incoming.api), trusted=call.caller.passthrough
        )
        body = sent.body
        asking = self._asking()
        self._asks_usage = asking is not None
        if plain or asking is not None:  # so that the extra chunk can be taken out again, or comments put between
            headers = [(name, value) for name, value in headers if name != b"accept-encoding"]
            headers.append((b"accept-encoding", b"identity"))
        if asking is not None:
            body = asking
            self._desk.metrics.count("rewrites", kind="include_usage")
        if sent.rewritten or asking is not None:
            headers = rewritten(headers)
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

    async def _instead(self, response: UpstreamResponse, pieces: Pieces, pulse: Pulse) -> Outgoing | None:
        """What to send instead of what was refused; None where the client gets this answer."""
        desk, tap = self._desk, self._tap
        if response.status_code >= 400:
            raw = await pieces.whole(_ERROR_BYTES)
            desk.metrics.count("upstream_errors", upstream=self._upstream.name, status=str(response.status_code))
            body = _readable(raw, response)
            if body is None:
                return None
            if self._asks_usage and response.status_code in (400, 422) and _is_about_usage(body):
                desk.refuse_usage.add(self._upstream.name)
                return self.sent
            status = response.status_code
            return await pulse.compacting(self.turn.recover(status, body))
        if tap is None or not (self.sent.hold and tap.streams):
            return None
        compressed = response.headers.get("content-encoding", "identity") != "identity"
        head = None
        if not compressed:
            await self._ascertain()
            head = Head(response.status_code, _unmeasured(for_client(response.headers.raw)), self.sent.headers)
        error = await pulse.holding(pieces.held(tap, desk.limits.hold_seconds), head)
        if error is None:
            return None
        desk.metrics.count("upstream_errors", upstream=self._upstream.name, status="stream")
        body = json.dumps({"error": dict(error.raw)}).encode()
        return await pulse.compacting(self.turn.recover(response.status_code, body))

    async def _relay(self, response: UpstreamResponse, pieces: Pieces, writer: Writer, *, begun: bool) -> None:
        tap = self._tap
        streams = tap is not None and tap.streams
        drop = WithoutUsage() if self._asks_usage and streams else None
        if begun and not (streams and response.status_code < 300):
            body = _readable(await pieces.whole(_ERROR_BYTES), response) or b""
            await writer.end(error_event(self._incoming.api, response.status_code, body))
            return
        if not begun:
            headers = for_client(response.headers.raw)
            await self._ascertain()
            await writer.start(response.status_code, _unmeasured(headers) if drop else headers, self.sent.headers)
        for piece in pieces.seen:
            kept = drop.feed(piece) if drop else piece
            if kept:
                await writer.body(kept)
        async for piece in pieces.after_seen():
            kept = drop.feed(piece) if drop else piece
            if kept:
                await writer.body(kept)
            if tap is not None:
                tap.feed(piece)
        await writer.end(drop.end() if drop else b"")

    async def _ascertain(self) -> None:
        """What the client is told of its thread is certain from here on."""
        self.sent = replace(self.sent, headers=await self.turn.response_headers())
        about_thread(self.sent.headers.get(THREAD, ""))

    def _counted(self, kind: str) -> None:
        if self.sent.rewritten:
            self._desk.metrics.count("rewrites", kind=kind)


def _readable(raw: bytes | None, response: UpstreamResponse) -> bytes | None:
    """An error as it can be read; None where it is too long, or in an encoding that is not known here."""
    try:
        return decoded(raw, response.headers.get("content-encoding", ""), _ERROR_BYTES) if raw else raw
    except Refused:
        return None


def _is_about_usage(body: bytes) -> bool:
    return b"stream_options" in body or b"include_usage" in body


def _unmeasured(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name != b"content-length"]
