"""The faithful proxy: what needs no rewriting goes upstream and comes back byte for byte, as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from everthread.gateway.access import Caller, Refused
from everthread.gateway.admission import Admission
from everthread.gateway.base import NOTICE, Incoming, Manager, Outcome
from everthread.gateway.encodings import decoded
from everthread.gateway.glance import glance, refuse_duplicates
from everthread.gateway.guarded import FailOpenManager
from everthread.gateway.incoming import Call, ClientGone, Upload, read_body, until_gone
from everthread.gateway.limits import Limits
from everthread.gateway.metering import Tally, charged_model, used_in
from everthread.gateway.metrics import Metrics
from everthread.gateway.passage import Desk, Passage
from everthread.gateway.routes import Routes, family_of
from everthread.gateway.upstream import (
    UpstreamClient,
    UpstreamDisconnectedError,
    UpstreamTimeoutError,
    for_client,
    for_upstream,
)
from everthread.gateway.writing import Writer

if TYPE_CHECKING:
    from everthread.gateway.telemetry import Telemetry

_LOG = logging.getLogger("everthread.gateway")
_MODELS = "/v1/models/"
_RATIO, _RATIO_FREE = 50, 4 * 1024 * 1024
_MESSAGES, _OBJECTS = 10_000, 400_000
"""Above these a request goes on unmanaged: looking into it would keep the others waiting."""
_ARRIVALS = 4
"""So many times as many bodies may be on their way as requests are answered at once."""


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
    ) -> None:
        self.limits = limits or Limits()
        self.metrics = metrics or Metrics()
        self._routes = routes
        self._client = UpstreamClient(self.limits)
        guarded = FailOpenManager(manager, self.metrics, self.limits.manage_seconds)
        self._desk = Desk(self._client, guarded, self.metrics, self.limits, include_usage, set(), telemetry)
        self._admission = Admission(self.limits.concurrent)
        self._arrivals = Admission(_ARRIVALS * self.limits.concurrent)
        """Bodies on their way here: one that comes slowly takes no place of those that are there."""
        self._telling: set[asyncio.Task[None]] = set()

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        call = Call.of(scope, caller)
        writer = Writer(send, call, self.metrics, self.limits.write_seconds)
        try:
            caller.admit()
            await self._serve(call, receive, writer)
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
        finally:
            self.metrics.in_flight = self._admission.inside
            writer.log()

    async def close(self) -> None:
        """After what is still being recorded."""
        if self._telling:
            await asyncio.wait(self._telling)
        await self._client.close()

    async def _serve(self, call: Call, receive: Receive, writer: Writer) -> None:
        key = call.caller.key_id
        if call.conversation is None and not (self._routes.differ and call.is_json):
            upload = Upload(receive, call, self.limits.body_seconds)
            with self._arrivals.enter(key):
                await _while_there(self._pass(call, upload, _model_in(call.path), writer), receive, upload.done)
            return
        with self._arrivals.enter(key):
            raw = await read_body(receive, call, self.limits)
        with self._admission.enter(key):
            self.metrics.in_flight = self._admission.inside
            if call.conversation is not None:
                await _while_there(self._converse(call, raw, writer), receive)
            else:
                body = decoded(raw, call.headers.get("content-encoding", ""), self.limits.body_bytes)
                refuse_duplicates(body or b"")
                await _while_there(self._pass(call, raw, _model(body), writer), receive)

    async def _converse(self, call: Call, raw: bytes, writer: Writer) -> None:
        api = call.conversation
        body = decoded(raw, call.headers.get("content-encoding", ""), self.limits.body_bytes)
        refuse_duplicates(body or b"")
        model = _model(body)
        upstream = self._routes.choose(model, family_of(call.speaks))
        mode = call.caller.mode or upstream.mode
        if api is None or body is None or mode == "off":
            await self._pass(call, raw, model, writer)
            return
        if why := _excess(raw, body):
            self.metrics.count("unmanaged", why=why)
            _LOG.warning("a request is passed on unmanaged: %s", why)
            await self._pass(call, raw, model, writer, {NOTICE: f"passed on unmanaged: {why}"})
            return
        caller = call.caller
        incoming = Incoming(
            api, call.path, call.headers, raw, body, caller.tenant, upstream.root, mode, caller.account
        )  # fmt: skip
        passage = Passage(self._desk, call, upstream, incoming, model)
        try:
            await passage.run(writer)
        finally:
            outcome = self._tell(passage, incoming, model or "")
            writer.note(**passage.facts(outcome))

    async def _pass(
        self,
        call: Call,
        body: bytes | Upload,
        model: str | None,
        writer: Writer,
        notice: Mapping[str, str] | None = None,
    ) -> None:
        """A request nobody looks into."""
        family = family_of(call.speaks)
        upstream = self._routes.choose(model, family)
        headers = for_upstream(call.raw_headers, upstream, family, trusted=call.caller.passthrough)
        content = body if isinstance(body, bytes) else body.pieces() if body.is_there else None
        response = await self._client.send(upstream, call.method, call.target, headers, content)
        if response.status_code >= 400:
            self.metrics.count("upstream_errors", upstream=upstream.name, status=str(response.status_code))
        tally = Tally(call, model, body, response.status_code, response.headers)
        try:
            await writer.start(response.status_code, for_client(response.headers.raw), notice)
            async for piece in response.aiter_raw():
                await writer.body(piece)
                tally.feed(piece)
            await writer.end()
        finally:
            await response.aclose()
            tally.settle()

    def _tell(self, passage: Passage, incoming: Incoming, model: str) -> Outcome:
        """Let the manager know, when the client has its answer; also of one that broke off, or never came."""
        outcome = passage.outcome()
        if incoming.account is not None and (used := used_in(outcome, passage.sent)) is not None:
            answered = outcome.reply.model if outcome.reply is not None else ""
            incoming.account.spend(used, charged_model(model, answered))
        task = asyncio.create_task(passage.record(outcome))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return outcome


def _excess(raw: bytes, body: bytes) -> str:
    """Why a request would cost more to look into than it may; empty: it would not."""
    if len(body) > _RATIO * len(raw) + _RATIO_FREE:
        return f"its body is more than {_RATIO} times as large as it came"
    if body.count(b'"role"') > _MESSAGES:
        return f"it has more than {_MESSAGES:,} messages"
    if body.count(b"{") > _OBJECTS:
        return f"it has more than {_OBJECTS:,} objects"
    return ""


async def _while_there(
    work: Coroutine[Any, Any, None], receive: Receive, uploaded: asyncio.Event | None = None
) -> None:
    """Do the work while the client is there; its leaving cancels it, and the upstream's part with it."""
    doing = asyncio.create_task(work)
    gone = asyncio.create_task(until_gone(receive, uploaded))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        left = not doing.done()
    finally:
        gone.cancel()
        doing.cancel()
        await asyncio.wait({doing, gone})
    if left and (doing.cancelled() or doing.exception()):
        raise ClientGone
    doing.result()


def _model_in(path: str) -> str | None:
    """The model a path asks about: who has it knows."""
    return path.removeprefix(_MODELS) or None if path.startswith(_MODELS) else None


def _model(body: bytes | None) -> str | None:
    found = glance(body, "model") if body else None
    return found.value if found is not None and isinstance(found.value, str) else None
