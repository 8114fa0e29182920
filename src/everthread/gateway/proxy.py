"""The faithful proxy: what needs no rewriting goes upstream and comes back byte for byte, as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import Receive, Scope, Send

from everthread.core.messages import calls_of
from everthread.core.pricing import CanonicalUsage
from everthread.core.redaction import redact
from everthread.core.types import Api, Reply
from everthread.errors import WireError
from everthread.gateway.auth import Caller
from everthread.gateway.base import (
    CREDENTIAL_HEADERS,
    NOTICE_HEADER,
    Incoming,
    Limits,
    Manager,
    Outcome,
    Outgoing,
    ProxyTurn,
    UnmanagedTurn,
)
from everthread.gateway.body import ExcessError, OuterFields
from everthread.gateway.deadlines import run_within
from everthread.gateway.encoding import decode_body
from everthread.gateway.errors import Refused, error_body, error_event
from everthread.gateway.management.compaction_items import PATH as COMPACT_PATH
from everthread.gateway.management.compaction_items import (
    asks_compaction,
    compact_body,
    is_refusal,
    response_body,
    response_events,
)
from everthread.gateway.management.notice import NoticeStream, with_notice
from everthread.gateway.management.rounds import MERGED, RECALL, merge_bodies
from everthread.gateway.middleware import Admission
from everthread.gateway.observability import (
    FORWARDED,
    REFUSED,
    FailureLog,
    Metrics,
    StoreWatch,
    about_thread,
    printable,
)
from everthread.gateway.quotas import PassthroughMeter, charged_model, usage_to_charge
from everthread.gateway.requests import ClientGone, RequestHead, Upload, read_body, run_while_connected
from everthread.gateway.router import Routes, Upstream, family_of
from everthread.gateway.streaming import (
    Filters,
    Pieces,
    ResponseHead,
    ResponseWriter,
    StreamKeepAlive,
    UsageChunkFilter,
    UsageReader,
    ask_for_usage,
    usage_of,
)
from everthread.gateway.upstream import (
    Headers,
    UpstreamClient,
    UpstreamDisconnectedError,
    UpstreamResponse,
    UpstreamTimeoutError,
    drop_body_headers,
    for_client,
    for_upstream,
)
from everthread.wire.codecs import CODECS

if TYPE_CHECKING:
    from everthread.gateway.management.reader import BodyOutline
    from everthread.gateway.telemetry import ObservedCall, Telemetry


_LOG = logging.getLogger("everthread.gateway")
T = TypeVar("T")
_ITEM_NOTICE = "compacted by the gateway: the upstream makes no compactions"
_HEADER_SECONDS = 1.0
"""Seconds for what an answer's headers say of us."""


class FailOpenManager:
    """The manager, except that it never fails: a failure is logged and counted, and changes nothing."""

    def __init__(
        self,
        manager: Manager,
        metrics: Metrics,
        seconds: float,
        watch: StoreWatch | None = None,
        failures: FailureLog | None = None,
    ) -> None:
        self._manager = manager
        self.failures = failures
        self._metrics = metrics
        self._seconds = seconds
        self._watch = watch

    def locate(self, api: Api, body: bytes) -> BodyOutline | None:
        """Where the fields and messages of a body are; None where that fails."""
        try:
            return self._manager.locate(api, body)
        except Exception as error:  # noqa: BLE001  its fields are read in another way then; it is seen
            self._metrics.count("failed_open", step="locate")
            _LOG.error("a body could not be taken apart: %s", type(error).__name__)
            return None

    async def prepare(self, incoming: Incoming) -> FailOpenTurn:
        turn = await self.attempt("prepare", incoming, self._prepare(incoming))
        if turn is None or (incoming.mode != "managed" and turn.sent.rewritten):
            unmanaged = UnmanagedTurn(incoming)
            if turn is None:
                unmanaged.sent = replace(
                    unmanaged.sent, headers={NOTICE_HEADER: "passed on unmanaged: the gateway failed"}
                )
            turn = unmanaged
        return FailOpenTurn(self, incoming, turn)

    async def _prepare(self, incoming: Incoming) -> ProxyTurn:
        """What is no request that can be read here is the upstream's to refuse: nothing of ours failed."""
        try:
            return await self._manager.prepare(incoming)
        except WireError as error:
            why = str(error) if isinstance(error, ExcessError) else "it cannot be read here"
            self._metrics.count("unmanaged", why="excess" if isinstance(error, ExcessError) else "unreadable")
            _LOG.info("a request is passed on unmanaged: %s", _without_credentials(str(error), incoming))
            turn = UnmanagedTurn(incoming)
            turn.sent = replace(turn.sent, headers={NOTICE_HEADER: f"passed on unmanaged: {printable(why)}"})
            return turn

    async def attempt(
        self, step: str, incoming: Incoming, work: Coroutine[Any, Any, T], *, is_awaited: bool = True
    ) -> T | None:
        """The result of the work; None where it fails, takes too long, or a client waits and the store is away."""
        try:
            guarded = self._watch.during(work) if self._watch is not None and is_awaited else work
            return await run_within(self._seconds, guarded)
        except Exception as error:  # noqa: BLE001  the client must get its answer whatever fails here; it is seen
            self._metrics.count("failed_open", step=step)
            if self.failures is not None:
                self.failures.note(FORWARDED, tenant=incoming.tenant)
            words = _without_credentials(str(error), incoming)
            _LOG.error("%s failed, the original goes: %s: %s", step, type(error).__name__, words)
            return None


class FailOpenTurn:
    """A turn whose steps never fail."""

    def __init__(self, manager: FailOpenManager, incoming: Incoming, turn: ProxyTurn) -> None:
        self._manager = manager
        self._incoming = incoming
        self._turn = turn

    @property
    def thread(self) -> str:
        return self._turn.thread

    @property
    def sent(self) -> Outgoing:
        return self._turn.sent

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        if self._incoming.mode != "managed":
            return None
        return await self._manager.attempt("refused", self._incoming, self._turn.recover(status, body))

    async def resume(self, reply: Reply) -> Outgoing | None:
        return await self._manager.attempt("recall", self._incoming, self._turn.resume(reply))

    async def withdraw(self, reply: Reply) -> Outgoing | None:
        return await self._manager.attempt("recall", self._incoming, self._turn.withdraw(reply))

    async def response_headers(self) -> Mapping[str, str]:
        """The headers for the client; without the thread id where the store does not answer in time."""
        headers: Mapping[str, str] | None
        try:
            headers = await run_within(
                _HEADER_SECONDS, self._manager.attempt("headers", self._incoming, self._turn.response_headers())
            )
        except TimeoutError:  # nothing failed: the thread is stored after the answer has begun
            headers = None
        return self.sent.headers if headers is None else headers

    async def record(self, outcome: Outcome) -> None:
        await self._manager.attempt("answered", self._incoming, self._turn.record(outcome), is_awaited=False)


def _without_credentials(words: str, incoming: Incoming) -> str:
    """An error's words for the log: the client's own credential cannot be in them, whatever it looks like."""
    for name in CREDENTIAL_HEADERS:
        for secret in incoming.headers.get(name, "").split():
            if len(secret) >= 8:  # a shorter one is no secret, and may be a part of any word
                words = words.replace(secret, "[REDACTED]")
    return redact(words)[:300]


MakeItem = Callable[[Incoming], Coroutine[Any, Any, tuple[dict[str, Any], int]]]
_ATTEMPTS = 3
_SIZE_STATUSES = (400, 413, 422)
"""With which an upstream may refuse a request's size."""
_ERROR_BYTES = 1024 * 1024
"""An error longer than this is not looked at."""


@dataclass(slots=True)
class ProxyServices:
    """What every request needs, and what was learnt about upstreams."""

    client: UpstreamClient
    manager: FailOpenManager
    metrics: Metrics
    limits: Limits
    include_usage: bool
    refuse_usage: set[str]
    """Upstreams that take no `stream_options`."""
    telemetry: Telemetry | None = None
    make_item: MakeItem | None = None
    """Answers requests for a compaction that an upstream refuses."""


class ProxyExchange:
    """One request on its way through the proxy: what was sent last, and what came back."""

    def __init__(
        self, services: ProxyServices, call: RequestHead, upstream: Upstream, incoming: Incoming, outer: OuterFields
    ) -> None:
        self._services = services
        self._call = call
        self._upstream = upstream
        self._incoming = incoming
        self._outer = outer
        self._model = outer.model
        self._asks_usage = False
        self._usage_reader: UsageReader | None = None
        self._usage: CanonicalUsage | None = None
        """Of the last of several rounds."""
        self._hidden: list[CanonicalUsage] = []
        """Of those before it."""
        self._observed: ObservedCall | None = None
        self._added = 0.0
        """Seconds that a client waited for our own part, until its request was sent."""
        self.turn: ProxyTurn = UnmanagedTurn(incoming)
        self.sent = self.turn.sent
        self.status = 0

    async def run(self, writer: ResponseWriter) -> None:
        services = self._services
        keep_alive = StreamKeepAlive(writer, services.limits, services.metrics, self._streams)
        if services.telemetry is not None:
            family = family_of(self._incoming.api)
            self._observed = services.telemetry.begin(self._upstream, family, self._model, self._incoming.headers)
        if await self._introduce(writer, keep_alive):
            return
        started_at = time.monotonic()
        self.turn = await keep_alive.wait_for_gateway(services.manager.prepare(self._incoming))
        self._added = time.monotonic() - started_at
        self.sent = self.turn.sent
        about_thread(self.turn.thread)
        self._count_rewrite("managed")
        try:
            for attempt in range(_ATTEMPTS + 1):
                response = (
                    await keep_alive.wait_for_gateway(self._send(plain=True))
                    if keep_alive.has_started
                    else await self._send()
                )
                if not await self._handle_response(response, writer, keep_alive, last=attempt == _ATTEMPTS):
                    return
        except Refused as refused:
            if not keep_alive.has_started:
                raise
            await writer.end(error_event(self._incoming.api, refused.status, error_body(self._incoming.api, refused)))

    def facts(self, outcome: Outcome) -> dict[str, Any]:
        """For the request's line in the log."""
        usage = outcome.usage
        facts: dict[str, Any] = {"model": self._model or "", "added_ms": round(1_000 * self._added, 1)}
        if self.turn.thread:
            facts["thread"] = self.turn.thread
        if usage is not None:
            facts |= {
                "tokens": usage.prompt_tokens, "cached": usage.cache_read_tokens, "output": usage.output_tokens,
            }  # fmt: skip
        elif self.sent.tokens is not None:
            facts["tokens"] = self.sent.tokens
        if outcome.hidden:
            facts["recall_rounds"] = len(outcome.hidden)
        return facts

    async def _introduce(self, writer: ResponseWriter, keep_alive: StreamKeepAlive) -> bool:
        """Forward as it came what shows a credential that no upstream has accepted; whether it is answered.

        Anybody can make one up, so nothing is summarised, stored or learnt for it. An upstream that refuses the size
        has accepted the credential: then the request is managed and sent again. One that it answers is recorded from
        then on, so that the client's next request, which may come before this answer's last byte, goes on from it.
        """
        credential = self._call.caller.credential
        if credential is None or await credential.is_accepted():
            return False
        response = await self._send()
        if response.status_code not in (401, 403):
            credential.accept()
        if response.status_code in _SIZE_STATUSES:
            await response.aclose()
            return False
        if response.status_code < 300:
            self.turn = await self._services.manager.prepare(replace(self._incoming, mode="observe"))
            self.sent = self.turn.sent
        await self._handle_response(response, writer, keep_alive, last=True)
        return True

    def _streams(self) -> bool:
        return self._outer.streams

    def outcome(self) -> Outcome:
        """How the exchange ended, as far as the answer was read."""
        reply = self._usage_reader.end() if self._usage_reader else None
        usage = self._usage or usage_of(self._incoming.api, reply)
        hidden = tuple(self._hidden)
        for used in (*hidden, *([usage] if usage is not None else [])):
            for bucket in ("input", "output", "cache_read", "cache_write"):
                if tokens := getattr(used, f"{bucket}_tokens"):
                    self._services.metrics.count("tokens", tokens, bucket=bucket, task="main")
        outcome = Outcome(self.status, reply, usage, estimated=reply is not None and usage is None, hidden=hidden)
        if self._observed is not None:
            self._observed.end(self.sent, outcome, self.turn.thread)
        return outcome

    async def _handle_response(
        self, response: UpstreamResponse, writer: ResponseWriter, keep_alive: StreamKeepAlive, *, last: bool
    ) -> bool:
        """Relay a response to the client; True where the request is to be sent again instead."""
        pieces = Pieces(response.aiter_raw())
        try:
            retry = None if last else await self._find_retry(response, pieces, keep_alive)
            if retry is None and await self._answer_item(response, pieces, writer, keep_alive):
                return False
            if retry is None and self._has_rounds(response):
                await self._relay_rounds(response, pieces, writer, keep_alive)
                return False
            if retry is None:
                await self._relay(response, pieces, writer, has_started=keep_alive.has_started)
                return False
        finally:
            await pieces.drop()
            await response.aclose()
        if retry is not self.sent:
            self.sent = retry
            self._count_rewrite("repaired")
        return True

    async def _answer_item(
        self, response: UpstreamResponse, pieces: Pieces, writer: ResponseWriter, keep_alive: StreamKeepAlive
    ) -> bool:
        """Answer a request for a compaction that the upstream refuses; whether that was done."""
        make, incoming = self._services.make_item, self._incoming
        if make is None or response.status_code < 400 or incoming.mode != "managed":
            return False
        if incoming.api != "openai_responses" or not asks_compaction(incoming.body):
            return False
        refusal = _readable(await pieces.read_all(_ERROR_BYTES), response) or b""
        answer = None
        if is_refusal(response.status_code, refusal):
            answer = await keep_alive.wait_for_gateway(
                self._services.manager.attempt("compaction", incoming, make(incoming))
            )
        if answer is None:
            return False
        body = response_body(answer[0], self._model or "", answer[1])
        streams = self._streams()
        text = response_events(body) if streams else json.dumps(body).encode()
        if not keep_alive.has_started:
            kind = b"text/event-stream" if streams else b"application/json"
            await writer.start(200, [(b"content-type", kind)], {NOTICE_HEADER: _ITEM_NOTICE})
        await writer.end(text)
        return True

    async def _send(self, *, plain: bool = False) -> UpstreamResponse:
        """Send the current request upstream. `plain`: ask for an uncompressed answer."""
        call, sent = self._call, self.sent
        headers = for_upstream(
            call.raw_headers, self._upstream, family_of(self._incoming.api), trusted=call.caller.passthrough
        )
        body = sent.body
        usage_body = self._add_usage_option()
        self._asks_usage = usage_body is not None
        if (
            plain or sent.recall or sent.notice or usage_body is not None
        ):  # so that the extra chunk can be taken out again, or comments put between
            headers = [(name, value) for name, value in headers if name != b"accept-encoding"]
            headers.append((b"accept-encoding", b"identity"))
        if usage_body is not None:
            body = usage_body
            self._services.metrics.count("rewrites", kind="include_usage")
        if sent.rewritten or usage_body is not None:
            headers = drop_body_headers(headers)
        response = await self._services.client.send(self._upstream, call.method, call.target, headers, body)
        self.status = response.status_code
        self._usage_reader = UsageReader(self._incoming.api, self.status, response.headers, model=self._model)
        return response

    def _add_usage_option(self) -> bytes | None:
        """The body with `include_usage`, where that is ours to add."""
        services, incoming = self._services, self._incoming
        if not services.include_usage or incoming.api != "openai_chat" or incoming.mode != "managed":
            return None
        if self._upstream.name in services.refuse_usage:
            return None
        if self.sent.rewritten:
            return ask_for_usage(self.sent.body)
        return ask_for_usage(incoming.body, self._outer)

    async def _find_retry(
        self, response: UpstreamResponse, pieces: Pieces, keep_alive: StreamKeepAlive
    ) -> Outgoing | None:
        """What to send instead of what was refused; None where the client gets this answer."""
        services, usage_reader = self._services, self._usage_reader
        if response.status_code >= 400:
            raw = await pieces.read_all(_ERROR_BYTES)
            services.metrics.count("upstream_errors", upstream=self._upstream.name, status=str(response.status_code))
            if services.manager.failures is not None:
                services.manager.failures.note(REFUSED, tenant=self._incoming.tenant)
            body = _readable(raw, response)
            if body is None:
                return None
            if self._asks_usage and response.status_code in (400, 422) and _is_about_usage(body):
                services.refuse_usage.add(self._upstream.name)
                return self.sent
            status = response.status_code
            return await keep_alive.wait_for_gateway(self.turn.recover(status, body))
        if usage_reader is None or not (self.sent.hold and usage_reader.streams):
            return None
        compressed = response.headers.get("content-encoding", "identity") != "identity"
        head = None
        if not compressed:
            await self._update_headers()
            head = ResponseHead(response.status_code, _drop_length(for_client(response.headers.raw)), self.sent.headers)
        error = await keep_alive.wait_for_words(pieces.peek_error(usage_reader, services.limits.hold_seconds), head)
        if error is None:
            return None
        services.metrics.count("upstream_errors", upstream=self._upstream.name, status="stream")
        body = json.dumps({"error": dict(error.raw)}).encode()
        return await keep_alive.wait_for_gateway(self.turn.recover(response.status_code, body))

    async def _relay(
        self, response: UpstreamResponse, pieces: Pieces, writer: ResponseWriter, *, has_started: bool
    ) -> None:
        usage_reader = self._usage_reader
        streams = usage_reader is not None and usage_reader.streams
        drop = UsageChunkFilter() if self._asks_usage and streams else None
        if has_started and not (streams and response.status_code < 300):
            body = _readable(await pieces.read_all(_ERROR_BYTES), response) or b""
            await writer.end(error_event(self._incoming.api, response.status_code, body))
            return
        notice = self._notice(response)
        await self._update_headers()
        if not has_started:
            headers = for_client(response.headers.raw)
            await writer.start(
                response.status_code, _drop_length(headers) if drop or notice else headers, self.sent.headers
            )
        else:
            await writer.send_late_headers(self.sent.headers)
        if notice and not streams:
            body = b"".join([piece async for piece in pieces.all()])
            if usage_reader is not None:
                usage_reader.feed(body)
            await writer.end(with_notice(self._incoming.api, body, notice))
            return
        shown = Filters([*([drop] if drop else []), *([NoticeStream(self._incoming.api, notice)] if notice else [])])
        for piece in pieces.buffered:
            data = shown.feed(piece)
            if data:
                await writer.body(data)
        async for piece in pieces.after_buffer():
            data = shown.feed(piece)
            if data:
                await writer.body(data)
            if usage_reader is not None:
                usage_reader.feed(piece)
        await writer.end(shown.end())

    def _notice(self, response: UpstreamResponse) -> str:
        """The line for the person that goes with this answer."""
        encoding = response.headers.get("content-encoding", "identity")
        return self.sent.notice if response.status_code < 300 and encoding == "identity" else ""

    # Rounds in which our own tool is called

    def _has_rounds(self, response: UpstreamResponse) -> bool:
        encoding = response.headers.get("content-encoding", "identity")
        return self.sent.recall and response.status_code < 300 and encoding == "identity"

    async def _relay_rounds(
        self, response: UpstreamResponse, pieces: Pieces, writer: ResponseWriter, keep_alive: StreamKeepAlive
    ) -> None:
        """The rounds of an answer as one response."""
        usage_reader = self._usage_reader = UsageReader(
            self._incoming.api, response.status_code, response.headers, model=self._model
        )
        headers = _drop_length(for_client(response.headers.raw))
        if not usage_reader.streams:
            body = await self._whole_rounds(pieces)
            self._usage_reader = usage_reader
            usage_reader.feed(body)
            await self._update_headers()
            await writer.start(self.status, headers, self.sent.headers)
            notice = self.sent.notice if self.status < 300 else ""
            await writer.end(with_notice(self._incoming.api, body, notice) if notice else body)
            return
        await self._update_headers()
        if not keep_alive.has_started:
            await writer.start(response.status_code, headers, self.sent.headers)
            keep_alive.has_started = True
        else:
            await writer.send_late_headers(self.sent.headers)
        notice = self._notice(response)
        drop = Filters(
            [
                *([UsageChunkFilter()] if self._asks_usage else []),
                *([NoticeStream(self._incoming.api, notice)] if notice else []),
            ]
        )

        async def put(data: bytes) -> None:
            usage_reader.feed(data)
            shown = drop.feed(data)
            if shown:
                await writer.body(shown)

        merged = MERGED[self._incoming.api](model=self._model)
        async for piece in pieces.all():
            await put(merged.feed(piece))
        while True:
            reply, rest = merged.end_round()
            await put(rest)
            following = await self._next_round(reply, merged.recalls, keep_alive)
            self._usage_reader = usage_reader
            if following is None:
                await put(merged.finish())
                break
            try:
                if following.status_code >= 300:
                    raw = await Pieces(following.aiter_raw()).read_all(_ERROR_BYTES)
                    refusal = _readable(raw, following) or b""
                    await put(error_event(self._incoming.api, following.status_code, refusal))
                    break
                merged.go_on()
                async for piece in following.aiter_raw():
                    await put(merged.feed(piece))
            finally:
                await following.aclose()
        await writer.end(drop.end())

    async def _whole_rounds(self, pieces: Pieces) -> bytes:
        """The rounds of an answer that does not stream; an error of a later round is the answer then."""
        api, bodies = self._incoming.api, []
        raw = b"".join([piece async for piece in pieces.all()])
        while True:
            try:
                body: Any = json.loads(raw)
                reply = CODECS[api].decode_reply(body, model=self._model)
            except (WireError, ValueError, RecursionError):
                return raw
            bodies.append(body)
            recalls = sum(call.name == RECALL for call in calls_of(reply.message))
            if not recalls and len(bodies) == 1:
                return raw
            following = await self._next_round(reply, recalls, None)
            if following is None:
                return json.dumps(merge_bodies(api, bodies), ensure_ascii=False).encode("utf-8", "replace")
            try:
                raw = b"".join([piece async for piece in following.aiter_raw()])
            finally:
                await following.aclose()
            if following.status_code >= 300:
                return raw

    async def _next_round(
        self, reply: Reply, recalls: int, keep_alive: StreamKeepAlive | None
    ) -> UpstreamResponse | None:
        """Answer the calls of a round and ask again; None where the response ends with it."""
        self._usage = usage_of(self._incoming.api, reply)
        if not recalls and not self._hidden:
            self._usage = None
            return None
        outgoing = await self.turn.resume(reply)
        if outgoing is None:
            return None
        if self._usage is not None:
            self._hidden.append(self._usage)
        self._services.metrics.count("recalls", recalls)
        self.sent = replace(outgoing, headers=self.sent.headers)
        sending = self._send(plain=True)
        following = await (keep_alive.wait_for_gateway(sending) if keep_alive else sending)
        if following.status_code < 300:
            return following
        less = await self.turn.withdraw(reply)
        if less is None:
            return following
        await following.aclose()
        self.sent = replace(less, headers=self.sent.headers)
        sending = self._send(plain=True)
        return await (keep_alive.wait_for_gateway(sending) if keep_alive else sending)

    async def _update_headers(self) -> None:
        """Read the final headers for the client from the turn."""
        headers = await self.turn.response_headers()
        if headers != self.sent.headers:
            self.sent = replace(self.sent, headers=headers)
        about_thread(self.turn.thread)

    def _count_rewrite(self, kind: str) -> None:
        if self.sent.rewritten:
            self._services.metrics.count("rewrites", kind=kind)


def _readable(raw: bytes | None, response: UpstreamResponse) -> bytes | None:
    """An error as it can be read; None where it is too long, or in an encoding that is not known here."""
    try:
        return decode_body(raw, response.headers.get("content-encoding", ""), _ERROR_BYTES) if raw else raw
    except Refused:
        return None


def _is_about_usage(body: bytes) -> bool:
    return b"stream_options" in body or b"include_usage" in body


def _drop_length(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name != b"content-length"]


_MODELS = "/v1/models/"
_RATIO, _RATIO_FREE = 50, 4 * 1024 * 1024
_MESSAGES, _OBJECTS, _MODEL_NAME = 10_000, 400_000, 300
"""Above these a request goes on unmanaged: looking into it would keep the others waiting."""
_LEAST_EXCESS = 2 * _MESSAGES * len(b'"role"')
"""A shorter body cannot have so many."""
_ARRIVALS = 4
"""So many times as many bodies may be on their way as requests are answered at once."""
_BODIES = 32
"""All bodies together may have so many times the bytes of the largest."""


class Proxy:
    """Answers requests to a provider's protocol, and passes on every other one."""

    def __init__(  # noqa: PLR0913  what a proxy is made of
        self,
        routes: Routes,
        manager: Manager,
        *,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        include_usage: bool = True,
        telemetry: Telemetry | None = None,
        watch: StoreWatch | None = None,
        make_item: MakeItem | None = None,
        failures: FailureLog | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.metrics = metrics or Metrics()
        self._routes = routes
        self._client = UpstreamClient(self.limits)
        guarded = FailOpenManager(manager, self.metrics, self.limits.manage_seconds, watch, failures)
        self._services = ProxyServices(
            self._client, guarded, self.metrics, self.limits, include_usage, set(), telemetry, make_item
        )
        self._admission = Admission(self.limits.concurrent)
        self._arrivals = Admission(_ARRIVALS * self.limits.concurrent)
        """Bodies on their way here: one that comes slowly takes no place of those that are there."""
        self._bytes = Admission(_BODIES * self.limits.body_bytes, "bytes")
        self._recordings: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose caller stands in its state."""
        caller: Caller = scope["state"]["caller"]
        call = RequestHead.of(scope, caller)
        writer = ResponseWriter(send, call, self.metrics, self.limits.write_seconds)
        try:
            caller.admit()
            await self._serve(call, scope, receive, writer)
        except Refused as refused:
            with contextlib.suppress(ClientGone):
                await writer.refuse(refused)
        except ClientGone:
            _LOG.info("%s %s: the client left", call.method, call.path)
        except (
            UpstreamDisconnectedError,
            UpstreamTimeoutError,
        ) as error:  # the upstream broke off; so does the answer, for half of it is not all
            self.metrics.count("upstream_errors", upstream="", status=type(error).__name__)
            _LOG.warning("%s %s: the upstream broke off (%s)", call.method, call.path, type(error).__name__)
            with contextlib.suppress(ClientGone):
                await writer.refuse(Refused(502, "upstream_broke_off", "The upstream broke off; try again."))
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}:{frame.lineno}"  # its words may be a client's
            _LOG.error("%s %s failed in the gateway: %s at %s", call.method, call.path, type(error).__name__, where)
            raise
        finally:
            self.metrics.in_flight = self._admission.inside
            writer.log()

    async def close(self) -> None:
        """Close the client, after the pending records are stored."""
        if self._recordings:
            await asyncio.wait(self._recordings)
        await self._client.close()

    async def _serve(self, call: RequestHead, scope: Scope, receive: Receive, writer: ResponseWriter) -> None:
        key = call.caller.share
        compacts = self._services.make_item is not None and call.path == COMPACT_PATH
        if call.conversation is None and not compacts and not (self._routes.differ and call.is_json):
            upload = Upload(receive, call, self.limits.body_seconds)
            with self._arrivals.enter(key):
                await run_while_connected(self._pass(call, upload, _model_in(call.path), writer), scope)
            return
        with self._bytes.reserve(key) as count:
            with self._arrivals.enter(key):
                raw = await read_body(receive, call, self.limits, count)
            with self._admission.enter(key):
                self.metrics.in_flight = self._admission.inside
                await self._answer(call, raw, scope, writer, compacts=compacts)

    async def _answer(
        self, call: RequestHead, raw: bytes, scope: Scope, writer: ResponseWriter, *, compacts: bool
    ) -> None:
        """Answer a request whose body is there."""
        if call.conversation is not None:
            await run_while_connected(self._converse(call, raw, writer), scope)
            return
        body = decode_body(raw, call.headers.get("content-encoding", ""), self.limits.body_bytes)
        model = OuterFields(body or b"").model
        passing = self._compact(call, raw, body, writer) if compacts and body else None
        await run_while_connected(passing or self._pass(call, raw, model, writer), scope)

    async def _converse(self, call: RequestHead, raw: bytes, writer: ResponseWriter) -> None:
        api = call.conversation
        body = decode_body(raw, call.headers.get("content-encoding", ""), self.limits.body_bytes)
        outline = None
        if api is not None and body and (call.caller.mode or self._routes.mode) != "off":
            outline = self._services.manager.locate(api, body)
        outer = OuterFields(body or b"") if outline is None else OuterFields(body or b"", outline.sliced, outline.known)
        model = outer.model
        upstream = self._routes.choose(model, family_of(call.speaks), login=call.has_login)
        mode = call.caller.mode or upstream.mode
        if api is None or mode == "off":
            await self._pass(call, raw, model, writer)
            return
        if why := "its body cannot be decoded here" if body is None else _excess(raw, body, outer):
            self.metrics.count("unmanaged", why=why)
            _LOG.warning("a request is passed on unmanaged: %s", why)
            await self._pass(call, raw, model, writer, {NOTICE_HEADER: f"passed on unmanaged: {why}"})
            return
        caller = call.caller
        incoming = Incoming(
            api, call.path, call.headers, raw, body or b"", caller.tenant, upstream.root, mode, caller.account, outline
        )  # fmt: skip
        exchange = ProxyExchange(self._services, call, upstream, incoming, outer)
        try:
            await exchange.run(writer)
        finally:
            outcome = self._record_outcome(exchange, incoming, model or "")
            writer.note(**exchange.facts(outcome))

    async def _compact(self, call: RequestHead, raw: bytes, body: bytes, writer: ResponseWriter) -> None:
        """A request for a compaction at its own path: of the upstream, or of ours where that has none."""
        model, family = OuterFields(body).model, family_of(call.speaks)
        upstream = self._routes.choose(model, family, login=call.has_login)
        headers = for_upstream(call.raw_headers, upstream, family, trusted=call.caller.passthrough)
        response = await self._client.send(upstream, call.method, call.target, headers, raw)
        pieces = Pieces(response.aiter_raw())
        try:
            refusal = _readable(await pieces.read_all(_ERROR_BYTES), response) if response.status_code >= 400 else None
            mode, caller, make = call.caller.mode or upstream.mode, call.caller, self._services.make_item
            answer = None
            if (
                make is not None
                and refusal is not None
                and mode == "managed"
                and is_refusal(response.status_code, refusal)
            ):
                incoming = Incoming(
                    "openai_responses", call.path, call.headers, raw, body, caller.tenant, upstream.root, mode,
                    caller.account,
                )  # fmt: skip
                answer = await self._services.manager.attempt("compaction", incoming, make(incoming))
            if answer is not None:
                await writer.start(200, [(b"content-type", b"application/json")], {NOTICE_HEADER: _ITEM_NOTICE})
                await writer.end(json.dumps(compact_body(*answer)).encode())
                return
            meter = PassthroughMeter(call, model, raw, response.status_code, response.headers)
            await writer.start(response.status_code, for_client(response.headers.raw))
            async for piece in pieces.all():
                await writer.body(piece)
                meter.feed(piece)
            await writer.end()
            meter.settle()
        finally:
            await pieces.drop()
            await response.aclose()

    async def _pass(
        self,
        call: RequestHead,
        body: bytes | Upload,
        model: str | None,
        writer: ResponseWriter,
        notice: Mapping[str, str] | None = None,
    ) -> None:
        """Pass a request on without reading it."""
        family = family_of(call.speaks)
        upstream = self._routes.choose(model, family, login=call.has_login)
        headers = for_upstream(call.raw_headers, upstream, family, trusted=call.caller.passthrough)
        content = body if isinstance(body, bytes) else body.pieces() if body.is_there else None
        response = await self._client.send(upstream, call.method, call.target, headers, content)
        if response.status_code >= 400:
            self.metrics.count("upstream_errors", upstream=upstream.name, status=str(response.status_code))
        meter = PassthroughMeter(call, model, body, response.status_code, response.headers)
        try:
            await writer.start(response.status_code, for_client(response.headers.raw), notice)
            async for piece in response.aiter_raw():
                await writer.body(piece)
                meter.feed(piece)
            await writer.end()
        finally:
            await response.aclose()
            meter.settle()

    def _record_outcome(self, exchange: ProxyExchange, incoming: Incoming, model: str) -> Outcome:
        """Have the manager record the outcome once the client has its answer, or the exchange broke off."""
        outcome = exchange.outcome()
        if incoming.account is not None and (used := usage_to_charge(outcome, exchange.sent)) is not None:
            answered = outcome.reply.model if outcome.reply is not None else ""
            for one in (*outcome.hidden, used):
                incoming.account.spend(one, charged_model(model, answered))
        task = asyncio.create_task(exchange.turn.record(outcome))
        self._recordings.add(task)
        task.add_done_callback(self._recordings.discard)
        return outcome


def _excess(raw: bytes, body: bytes, outer: OuterFields) -> str:
    """Why a request would cost more to look into than it may; empty: it would not."""
    if len(outer.model or "") > _MODEL_NAME:
        return f"its model's name has more than {_MODEL_NAME} characters"
    if len(body) > _RATIO * len(raw) + _RATIO_FREE:
        return f"its body is more than {_RATIO} times as large as it came"
    if outer.new_size < _LEAST_EXCESS:
        return ""
    objects = len(body) - len(body.replace(b"{", b""))  # a tenth of what `count` takes
    if objects > _MESSAGES and body.count(b'"role"') > _MESSAGES:
        return f"it has more than {_MESSAGES:,} messages"
    if objects > _OBJECTS:
        return f"it has more than {_OBJECTS:,} objects"
    return "it has too many values" if outer.is_excessive else ""


def _model_in(path: str) -> str | None:
    """The model that a path of the models list names; None for other paths."""
    return path.removeprefix(_MODELS) or None if path.startswith(_MODELS) else None
