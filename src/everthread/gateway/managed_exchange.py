"""Handle a conversation's request: prepare it, send it, send it again after a recovery, record it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from everthread.core.provider_errors.classification import classify_error
from everthread.core.types import ModelReply
from everthread.gateway.answer_reader import AnswerReader
from everthread.gateway.answers import Answer, make_answer
from everthread.gateway.contracts import (
    NOTICE_HEADER,
    THREAD_HEADER,
    IncomingRequest,
    Outgoing,
    RequestHandler,
)
from everthread.gateway.error_answers import RequestRefused, make_error_body
from everthread.gateway.exchange import Exchange, ExchangeRequest, ProxyServices, UpstreamRequest
from everthread.gateway.keep_alive import ResponseHead
from everthread.gateway.monitoring.event_reports import REFUSED
from everthread.gateway.monitoring.log_lines import set_log_thread
from everthread.gateway.request.gemini_path import remove_path_fields
from everthread.gateway.response_writer import ResponseWriter
from everthread.gateway.upstream import UpstreamResponse

T = TypeVar("T")
MAX_RESENDS = 3
MAX_HEADER_WAIT_SECONDS = 1.0
"""Maximum wait of an answer for the headers that the handler adds."""
PROMPT_REFUSAL_STATUSES = (400, 422)
"""Statuses that show that an upstream has counted the prompt. A 413 may come from a server in front of the upstream,
which has not checked the credential."""


class ManagedExchange:
    """A request of a conversation, with the request that was sent last."""

    def __init__(
        self,
        services: ProxyServices,
        request: ExchangeRequest,
        writer: ResponseWriter,
        *,
        incoming: IncomingRequest,
    ) -> None:
        self.exchange = Exchange(services, request, writer, incoming=incoming)
        """Sends requests and relays answers."""
        self.incoming = incoming
        self._services = services
        self.handler: RequestHandler | None = None
        """Decides on the request, or None if it is not managed, and until the manager has prepared it."""
        self.outgoing = Outgoing(incoming.body.raw)
        """The request that was sent last."""
        self._added_seconds = 0.0
        """Time that the gateway added before the request was sent."""

    async def run(self) -> None:
        """Prepare the request, send it (again after each recovery), pass the answer on, and record both."""
        exchange = self.exchange
        exchange.begin_filters(
            feature.make_managed_filter(self) for feature in self._services.features
        )
        try:
            if not await self._forward_for_new_credential():
                await self._prepare()
                await self._send_until_answered()
        finally:
            # Start recording before anything else is awaited: the client may already
            # have its answer, and its next request has to wait for this record.
            self._log_facts()
            outcome = exchange.end_filters()
            if self.handler is not None:
                # Not `self._attempt`, which would keep the exchange in memory until the record is made.
                recording = self._services.fail_open.attempt(
                    "answered", self.incoming, self.handler.record(outcome), is_awaited=False
                )
                self._services.pending_work.start(recording)
            await exchange.close()

    @property
    def thread(self) -> str:
        """The id of the request's thread, or an empty string if the request is not managed."""
        return "" if self.handler is None else self.handler.thread

    async def send_next(self, outgoing: Outgoing) -> UpstreamResponse:
        """Send another request of the handler, keeping the headers for the client."""
        self.outgoing = replace(outgoing, headers=self.outgoing.headers)
        return await self._send_current(is_plain=True)

    async def _make_own_headers(self) -> Mapping[str, str]:
        """Return the headers for the client, without the thread id if the store does not answer in time."""
        handler = self.handler
        if handler is None:
            return self.outgoing.headers
        headers: Mapping[str, str] | None = None
        if THREAD_HEADER not in handler.outgoing.headers:
            # Too long a wait is not a failure: the thread is stored after the answer has begun.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_HEADER_WAIT_SECONDS):
                    headers = await self._attempt("headers", handler.make_response_headers())
        if headers is None:
            headers = handler.outgoing.headers
        if headers != self.outgoing.headers:
            self.outgoing = replace(self.outgoing, headers=headers)
        set_log_thread(handler.thread)
        return self.outgoing.headers

    async def resume_after_recall(self, reply: ModelReply) -> Outgoing | None:
        """Return the handler's next request after a round of the gateway's own tool, or None if there is none."""
        if self.handler is None:
            return None
        return await self._attempt("recall", self.handler.resume_after_recall(reply))

    async def retry_without_recall(self, reply: ModelReply) -> Outgoing | None:
        """Return a smaller request of the handler after the last one was refused, or None if there is none."""
        if self.handler is None:
            return None
        return await self._attempt("recall", self.handler.retry_without_recall(reply))

    async def _attempt(self, step: str, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a step of the handler, or None if it fails or takes too long."""
        return await self._services.fail_open.attempt(step, self.incoming, work)

    async def _send_current(self, *, is_plain: bool = False) -> UpstreamResponse:
        """Send the current request. `is_plain`: ask for an uncompressed answer."""
        body = self.outgoing.body
        if self.outgoing.is_rewritten and self.incoming.api == "gemini":
            body = remove_path_fields(self.incoming.head.path, body)
        request = UpstreamRequest(
            self.exchange.make_headers(self.incoming.api),
            body,
            is_changed=self.outgoing.is_rewritten,
            is_plain=is_plain,
        )
        response = await self.exchange.send(request)
        self._accept_credential()
        return response

    async def _forward_for_new_credential(self) -> bool:
        """Forward a request unchanged if no upstream has accepted its credential yet. Return whether it is answered.

        A client can make up a credential, so nothing is stored, learnt or paid for it. An answer of 2xx shows that the
        credential is good. Such an answer is recorded, because the client's next request may arrive before the answer's
        last byte. A prompt that an upstream has counted and found too long is compacted and sent again, without the
        operator's key (`Caller.authorize`).
        """
        credential = self.incoming.head.caller.credential
        if credential is None or await credential.is_accepted():
            return False
        answer = make_answer(await self._send_current())
        if answer.status < 300:
            preparing = self._services.fail_open.prepare(replace(self.incoming, mode="observe"))
            self._use_handler(*await preparing)
        elif await _is_too_long(answer):
            return False
        await self.exchange.relay(answer, self._make_own_headers)
        return True

    def _accept_credential(self) -> None:
        """Remember the client's credential once an upstream has answered to it with 2xx."""
        credential = self.incoming.head.caller.credential
        if credential is not None and 200 <= self.exchange.status < 300 and not credential.is_known:
            credential.accept()

    async def _prepare(self) -> None:
        """Let the manager decide on the request to send."""
        started_at = time.monotonic()
        fail_open = self._services.fail_open
        handler = fail_open.forward_first(self.incoming)
        unmanaged_reason = ""
        if handler is None:
            handler, unmanaged_reason = await self.exchange.wait(fail_open.prepare(self.incoming))
        self._added_seconds = time.monotonic() - started_at
        self._use_handler(handler, unmanaged_reason)
        set_log_thread(self.thread)
        self._count_rewrite("managed")

    def _use_handler(self, handler: RequestHandler | None, unmanaged_reason: str) -> None:
        """Send the handler's request from now on, or the client's own if there is no handler."""
        self.handler = handler
        if handler is not None:
            self.outgoing = handler.outgoing
        elif unmanaged_reason:
            notice = f"passed on unmanaged: {unmanaged_reason}"
            self.outgoing = replace(self.outgoing, headers={NOTICE_HEADER: notice})

    async def _send_until_answered(self) -> None:
        """Send the request; again after each recovery."""
        keep_alive = self.exchange.keep_alive
        try:
            for attempt in range(MAX_RESENDS + 1):
                sending = self._send_current(is_plain=keep_alive.has_started)
                response = await (
                    self.exchange.wait(sending) if keep_alive.has_started else sending
                )
                if not await self._relay_or_recover(
                    make_answer(response), is_last=attempt == MAX_RESENDS
                ):
                    return
        except RequestRefused as refused:
            if not keep_alive.has_started:
                raise
            error = make_error_body(self.incoming.api, refused)
            await self.exchange.end_with_error(refused.status, error)

    async def _relay_or_recover(self, answer: Answer, *, is_last: bool) -> bool:
        """Pass an answer on to the client, unless a recovery is possible; return whether to send a request again."""
        try:
            if not is_last and await self._recover(answer):
                return True
            await self.exchange.relay(answer, self._make_own_headers)
            return False
        finally:
            await answer.body.stop_reading()

    async def _recover(self, answer: Answer) -> bool:
        """Recover from an error, by a filter or the handler; return whether to send a request again."""
        if answer.status < 400:
            error = await self._hold_for_error(answer)
            return error is not None and await self._recover_with_handler(answer.status, error)
        body = await answer.read_error()
        self.exchange.count_upstream_error(str(answer.status))
        failures = self._services.fail_open.failures
        if failures is not None:
            failures.record(REFUSED, tenant=self.incoming.head.caller.tenant)
        if body is None:
            return False
        for each_filter in self.exchange.filters:
            if await each_filter.retry_after_refusal(answer.status, body):
                return True
        return await self._recover_with_handler(answer.status, body)

    async def _recover_with_handler(self, status: int, body: bytes) -> bool:
        """Ask the handler for another request; return whether there is one."""
        if self.handler is None or self.incoming.mode != "managed":
            return False
        recovering = self._attempt("refused", self.handler.recover(status, body))
        next_request = await self.exchange.wait(recovering)
        if next_request is None:
            return False
        if next_request is not self.outgoing:
            self.outgoing = next_request
            self._count_rewrite("repaired")
        return True

    async def _hold_for_error(self, answer: Answer) -> bytes | None:
        """Hold back the beginning of a stream that may fail; return the error if it begins with one."""
        if not (self.outgoing.should_hold_first_events and answer.is_stream):
            return None
        head = None
        if answer.is_plain:
            own_headers = await self._make_own_headers()
            headers = replace(answer, is_changed=True).client_headers
            head = ResponseHead(answer.status, headers, own_headers)
        reader = AnswerReader(
            self.incoming.api, answer.status, answer.headers, model=self.exchange.request.model
        )
        holding = answer.body.peek_error(reader, self._services.limits.hold_seconds)
        error = await self.exchange.keep_alive.wait_for_content(holding, head)
        if error is None:
            return None
        self.exchange.count_upstream_error("stream")
        return json.dumps({"error": dict(error.raw)}).encode()

    def _count_rewrite(self, kind: str) -> None:
        if self.outgoing.is_rewritten:
            self._services.metrics.count("rewrites", kind=kind)

    def _log_facts(self) -> None:
        """Add model, thread, tokens and delay to the request's log line."""
        facts: dict[str, Any] = {
            "model": self.exchange.request.model or "",
            "added_ms": round(1_000 * self._added_seconds, 1),
        }
        if self.thread:
            facts["thread"] = self.thread
        if self.outgoing.tokens is not None:
            facts["tokens"] = self.outgoing.tokens
        self.exchange.writer.note(**facts)


async def _is_too_long(answer: Answer) -> bool:
    """Return whether an upstream has counted the tokens of a prompt and found it too long."""
    if answer.status not in PROMPT_REFUSAL_STATUSES:
        return False
    body = await answer.read_error()
    if not body:
        return False
    verdict = classify_error(status=answer.status, body=body.decode("utf-8", "replace"))
    return verdict.kind == "prompt_too_long"
