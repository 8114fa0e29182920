"""Delay the records of forwarded requests, because the next request of a thread contains the messages of the last one.

A client that works without pauses sends its next request within milliseconds. If that continues the waiting request, a
single record stores the messages of both, and the usage of each call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.gateway.contracts import IncomingRequest, Outgoing
from everthread.gateway.managed.forwarding import ForwardingTerms
from everthread.gateway.request.body_reading import MAX_LOOP_BYTES
from everthread.gateway.request.request_reader import LocatedBody
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.matching.thread_match import ClientScope

MAX_DELAY_SECONDS = 0.5
"""Maximum time for which a record is delayed."""
MAX_CALLS_PER_RECORD = 16
"""Maximum calls in one record, whose new messages are decoded on the event loop."""
MAX_WAITING_BYTES = 32 * 1024 * 1024
"""Maximum bytes of all waiting requests together."""
MAX_FLUSH_SECONDS = 5.0
"""Maximum wait of a request for earlier records, without which it may seem to begin a new thread."""


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request that was forwarded before it was read."""

    thread: str
    client_scope: ClientScope
    incoming: IncomingRequest
    located_body: LocatedBody
    outgoing: Outgoing
    terms: ForwardingTerms
    """The terms that the request met; they identify the end of its thread."""

    @property
    def size(self) -> int:
        return len(self.incoming.body.plain)


class DeferredRecord:
    """The last answered request of a thread, and the usage of earlier requests that are recorded with it."""

    def __init__(self, request: ForwardedRequest, outcome: Outcome, end_digest: str) -> None:
        self.request = request
        self.outcome = outcome
        self.end_digest = end_digest
        """The digest of the history with the last answer."""
        self.stored_count = request.terms.message_count
        """Number of the request's messages that were recorded before."""
        self.earlier_usage: list[CanonicalUsage] = []
        self.is_due = asyncio.Event()
        self.is_recorded = asyncio.Event()
        self._new_bytes = request.located_body.new_bytes

    @property
    def is_full(self) -> bool:
        is_long = self._new_bytes > MAX_LOOP_BYTES
        return is_long or len(self.earlier_usage) + 1 >= MAX_CALLS_PER_RECORD

    def supersede(self, request: ForwardedRequest, outcome: Outcome, end_digest: str) -> None:
        """Replace the request with one that continues it."""
        if self.outcome.usage is not None:
            self.earlier_usage.append(self.outcome.usage)
        self.request = request
        self.outcome = outcome
        self.end_digest = end_digest
        self._new_bytes += request.located_body.new_bytes


class DeferredRecords:
    """The delayed records of all threads.

    `record`: makes a record. A record is due after `delay` seconds, when it is full, or when another request needs it.
    """

    def __init__(
        self,
        record: Callable[[DeferredRecord], Coroutine[Any, Any, None]],
        *,
        delay: float,
    ) -> None:
        self._record = record
        self._delay = delay
        self._waiting: dict[str, DeferredRecord] = {}
        """The delayed record of each thread."""
        self._unfinished: set[DeferredRecord] = set()
        """The records that are delayed or being made."""
        self._waiting_bytes = 0

    def can_defer(self, request: ForwardedRequest) -> bool:
        """Return whether the record of a request may be delayed, or can join the delayed record of its thread."""
        waiting = self._waiting.get(request.thread)
        if waiting is not None:
            return waiting.end_digest == request.terms.digest
        return self._waiting_bytes + request.size <= MAX_WAITING_BYTES

    async def defer(self, request: ForwardedRequest, outcome: Outcome, end_digest: str) -> None:
        """Make the record of a request later. Return when it is made, or at once if it joins a delayed record."""
        waiting = self._waiting.get(request.thread)
        if waiting is not None:
            self._waiting_bytes += request.size - waiting.request.size
            waiting.supersede(request, outcome, end_digest)
            if waiting.is_full:
                waiting.is_due.set()
            return
        record = DeferredRecord(request, outcome, end_digest)
        self._waiting[request.thread] = record
        self._waiting_bytes += request.size
        self._unfinished.add(record)
        timer = asyncio.get_running_loop().call_later(self._delay, record.is_due.set)
        try:
            try:
                await record.is_due.wait()
            finally:
                timer.cancel()
                del self._waiting[request.thread]
                self._waiting_bytes -= record.request.size
            await self._record(record)
        finally:
            self._unfinished.discard(record)
            record.is_recorded.set()

    async def flush_all(self) -> None:
        """Make all delayed records now, and wait a few seconds until they are stored."""
        await self._flush(list(self._unfinished))

    async def flush_session(self, client_scope: ClientScope) -> None:
        """Make the delayed records of a session now, and wait a few seconds until they are stored."""
        await self._flush(
            [record for record in self._unfinished if record.request.client_scope == client_scope]
        )

    async def flush_thread(self, thread: str) -> None:
        """Make the delayed records of a thread now, and wait at most a few seconds for them to be stored."""
        await self._flush(
            [record for record in self._unfinished if record.request.thread == thread]
        )

    async def _flush(self, records: Sequence[DeferredRecord]) -> None:
        if not records:
            return
        for record in records:
            record.is_due.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAX_FLUSH_SECONDS):
                for record in records:
                    await record.is_recorded.wait()
