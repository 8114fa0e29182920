"""Handle a request that was forwarded before it was read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from everthread.core.types import ModelReply
from everthread.gateway.contracts import THREAD_HEADER, Outgoing
from everthread.gateway.managed.deferred_records import ForwardedRequest
from everthread.gateway.managed.managed_handler import ManagedHandler
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.caller.caller_threads import CallerThreads

READ_DELAY_SECONDS = 1.0
"""Seconds after which a forwarded request is read, if it is not answered earlier."""


class ForwardedHandler:
    """Read a forwarded request when that is needed, after a second, or after its answer; then let its handler decide.

    `read`: reads the request and returns its handler. `try_record_later`: returns False if an answer to the unread
    request must be recorded now.
    """

    def __init__(
        self,
        request: ForwardedRequest,
        threads: CallerThreads,
        *,
        read: Callable[[ForwardedRequest], Coroutine[Any, Any, ManagedHandler]],
        try_record_later: Callable[[ForwardedRequest, Outcome], Coroutine[Any, Any, bool]],
    ) -> None:
        self._request = request
        self._threads = threads
        self._read = read
        self._try_record_later = try_record_later
        self._handler: ManagedHandler | None = None
        """The handler of the request; None until the request has been read."""
        self._read_task: asyncio.Task[ManagedHandler] | None = None
        self._timer = asyncio.get_running_loop().call_later(READ_DELAY_SECONDS, self._start_read)

    @property
    def thread(self) -> str:
        return self._request.thread

    @property
    def outgoing(self) -> Outgoing:
        return self._request.outgoing if self._handler is None else self._handler.outgoing

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        handler = await asyncio.shield(self._start_read())
        return await handler.recover(status, body)

    async def resume_after_recall(self, reply: ModelReply) -> Outgoing | None:
        handler = await asyncio.shield(self._start_read())
        return await handler.resume_after_recall(reply)

    async def retry_without_recall(self, reply: ModelReply) -> Outgoing | None:
        handler = await asyncio.shield(self._start_read())
        return await handler.retry_without_recall(reply)

    async def make_response_headers(self) -> Mapping[str, str]:
        if THREAD_HEADER in self.outgoing.headers:
            return self.outgoing.headers
        handler = await asyncio.shield(self._start_read())
        return await handler.make_response_headers()

    async def record(self, outcome: Outcome) -> None:
        self._timer.cancel()
        if self._read_task is None and await self._try_record_later(self._request, outcome):
            return
        client_scope = self._request.client_scope
        with self._threads.pending_links.hold_session_while_reading(client_scope):
            if self._read_task is None:
                # Nothing else will wait for it, so no task is needed.
                handler = await self._read_and_store(is_answered=True)
            else:
                handler = await asyncio.shield(self._read_task)
        await handler.record(outcome)

    def _start_read(self) -> asyncio.Task[ManagedHandler]:
        """Read the request in the background, once."""
        self._timer.cancel()
        if self._read_task is None:
            reading = self._read_and_store(is_answered=False)
            self._read_task = asyncio.get_running_loop().create_task(reading)
        return self._read_task

    async def _read_and_store(self, *, is_answered: bool) -> ManagedHandler:
        """Read the request and start storing it."""
        handler = await self._read(self._request)
        handler.outgoing = self._request.outgoing
        self._threads.start_storing(handler.call, is_answered=is_answered)
        self._handler = handler
        return handler
