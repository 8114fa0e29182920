"""Forward requests before they are read, and read and record them later.

`forwarding.py` decides which ones; `deferred_records.py` delays their records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from everthread.core.types import Reply
from everthread.gateway.contracts import Incoming, Outgoing
from everthread.gateway.identify import find_client_scope
from everthread.gateway.managed.deferred_records import (
    DeferredRecord,
    DeferredRecords,
    ForwardedRequest,
)
from everthread.gateway.managed.forwarding import (
    continue_terms,
    forward,
    is_compaction_planned,
)
from everthread.gateway.managed.managed_handler import ManagedHandler
from everthread.gateway.managed.request_opener import RequestOpener
from everthread.gateway.request.body_reading import MAX_LOOP_BYTES
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.caller.recorder import identify_answer

READ_DELAY_SECONDS = 1.0
"""Seconds after which a forwarded request is read, if it is not answered earlier."""


class ForwardedRequests:
    """The requests that were forwarded before they were read.

    `record_delay`: maximum seconds for which the record of a request is delayed.
    """

    def __init__(
        self, opener: RequestOpener, *, is_sole_writer: Callable[[], bool], record_delay: float
    ) -> None:
        self.threads = opener.services.threads
        self._is_sole_writer = is_sole_writer
        self._opener = opener
        self.deferred_records = DeferredRecords(self._record_deferred, delay=record_delay)

    def forward(self, incoming: Incoming) -> ForwardedHandler | None:
        """Return the handler of a request that can be forwarded before it is read; None if it cannot."""
        located_body = incoming.located_body
        if located_body is None or located_body.match is None:
            return None
        thread = located_body.match.cached_body.thread
        memory = self.threads.memories.find(thread)
        if memory is None or is_compaction_planned(memory):
            return None
        body_memory = self._opener.body_memories.find_or_create(thread)
        terms = body_memory.forwarding_terms
        outgoing = forward(
            incoming,
            located_body,
            body_memory,
            reader=self._opener.reader,
            ttl=self._opener.services.mark_ttl,
        )
        if terms is None or outgoing is None:
            return None
        client_scope = find_client_scope(
            incoming.tenant, incoming.headers, located_body.sliced_body.fields
        )
        request = ForwardedRequest(
            thread, client_scope, incoming, located_body, outgoing=outgoing, terms=terms
        )
        return ForwardedHandler(self, request)

    async def read(self, request: ForwardedRequest, *, is_answered: bool) -> ManagedHandler:
        """Read a request and start storing it, after the delayed records of its thread are made."""
        await self.deferred_records.flush_thread(request.thread)
        return await self._read_now(request, request.terms.message_count, is_answered=is_answered)

    async def _read_now(
        self, request: ForwardedRequest, known_length: int, *, is_answered: bool
    ) -> ManagedHandler:
        handler = await self._opener.open(
            request.incoming,
            request.located_body,
            request.client_scope,
            known_length=known_length,
        )
        handler.outgoing = request.outgoing
        self.threads.start_storing(handler.call, is_answered=is_answered)
        return handler

    async def try_record_later(self, request: ForwardedRequest, outcome: Outcome) -> bool:
        """Record an unread request in a moment, perhaps with the next one; return False if it must be recorded now."""
        reply = outcome.reply
        usage = outcome.usage
        if reply is None or usage is None or not self._may_wait(request, outcome):
            return False
        terms = request.terms
        identities = identify_answer(request.incoming.api, reply, terms.model)
        if not identities:
            return False
        located_body = request.located_body
        history = self._opener.reader.read_history(located_body, len(located_body.elements))
        self._opener.reader.remember_history(request.thread, located_body, history)
        next_terms = continue_terms(
            terms, located_body, usage, answered_history=history.extend(identities)
        )
        self._opener.body_memories.find_or_create(request.thread).forwarding_terms = next_terms
        await self.deferred_records.defer(request, outcome, next_terms.digest)
        return True

    def _may_wait(self, request: ForwardedRequest, outcome: Outcome) -> bool:
        """Return whether a record may wait: the thread ends where it did, and no other process gets its next call."""
        terms = self._opener.body_memories.find_or_create(request.thread).forwarding_terms
        reply = outcome.reply
        return (
            terms is not None
            and terms.digest == request.terms.digest
            and outcome.is_success
            and reply is not None
            and reply.stop is not None
            and not outcome.estimated
            and not outcome.hidden_usage
            and request.located_body.new_bytes <= MAX_LOOP_BYTES
            and self.deferred_records.can_defer(request)
            and self._is_sole_writer()
        )

    async def _record_deferred(self, record: DeferredRecord) -> None:
        """Record the last request of a thread with everything since the previous record."""
        request = record.request
        with self.threads.pending_links.hold_session_while_reading(request.client_scope):
            handler = await self._read_now(request, record.stored_count, is_answered=True)
        await handler.record(record.outcome, record.earlier_usage)


class ForwardedHandler:
    """Handle a forwarded request: read it while the upstream answers, or after that."""

    def __init__(self, requests: ForwardedRequests, request: ForwardedRequest) -> None:
        self.thread = request.thread
        self.outgoing = request.outgoing
        self._requests = requests
        self._request = request
        self._read_task: asyncio.Task[ManagedHandler] | None = None
        self._timer = asyncio.get_running_loop().call_later(READ_DELAY_SECONDS, self._start_read)

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        handler = await asyncio.shield(self._start_read())
        return await handler.recover(status, body)

    async def resume_after_recall(self, reply: Reply) -> Outgoing | None:
        handler = await asyncio.shield(self._start_read())
        return await handler.resume_after_recall(reply)

    async def retry_without_recall(self, reply: Reply) -> Outgoing | None:
        handler = await asyncio.shield(self._start_read())
        return await handler.retry_without_recall(reply)

    async def response_headers(self) -> Mapping[str, str]:
        return self.outgoing.headers

    async def record(self, outcome: Outcome) -> None:
        self._timer.cancel()
        requests = self._requests
        request = self._request
        if self._read_task is None and await requests.try_record_later(request, outcome):
            return
        with requests.threads.pending_links.hold_session_while_reading(request.client_scope):
            if self._read_task is None:
                # Nothing else will wait for it, so no task is needed.
                handler = await requests.read(request, is_answered=True)
            else:
                handler = await asyncio.shield(self._read_task)
        await handler.record(outcome)

    def _start_read(self) -> asyncio.Task[ManagedHandler]:
        """Read the request in the background, once."""
        self._timer.cancel()
        if self._read_task is None:
            reading = self._requests.read(self._request, is_answered=False)
            self._read_task = asyncio.get_running_loop().create_task(reading)
        return self._read_task
