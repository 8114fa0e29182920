"""A request that is forwarded before it is read (`forwarding.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from everthread.core.types import Reply
from everthread.gateway.contracts import Outgoing
from everthread.gateway.managed.deferred_records import ForwardedRequest
from everthread.gateway.managed.managed_turn import ManagedTurn
from everthread.thread.caller.sent_history import Outcome
from everthread.thread.matching.thread_match import Family

READ_SECONDS = 1.0
"""Seconds after which a forwarded request is read, if it is not answered earlier."""


class ForwardedRequests(Protocol):
    """An object that reads and records forwarded requests."""

    async def read_forwarded(
        self, request: ForwardedRequest, *, is_answered: bool
    ) -> ManagedTurn:
        """Read a request and find its thread."""
        ...

    def hold_session_while_reading(
        self, family: Family
    ) -> AbstractContextManager[None]:
        """Return a context that makes other requests of a session wait while an answered one is being read."""
        ...

    async def record_later(self, request: ForwardedRequest, outcome: Outcome) -> bool:
        """Delay the record of an unread request; return False if it must be recorded now."""
        ...


class ForwardedTurn:
    """A request that is read while the upstream answers, or after that."""

    def __init__(self, requests: ForwardedRequests, request: ForwardedRequest) -> None:
        self.thread = request.thread
        self.sent = request.sent
        self._requests = requests
        self._request = request
        self._read_task: asyncio.Task[ManagedTurn] | None = None
        self._timer = asyncio.get_running_loop().call_later(
            READ_SECONDS, self._start_read
        )

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        turn = await asyncio.shield(self._start_read())
        return await turn.recover(status, body)

    async def resume_after_recall(self, reply: Reply) -> Outgoing | None:
        turn = await asyncio.shield(self._start_read())
        return await turn.resume_after_recall(reply)

    async def retry_without_recall(self, reply: Reply) -> Outgoing | None:
        turn = await asyncio.shield(self._start_read())
        return await turn.retry_without_recall(reply)

    async def response_headers(self) -> Mapping[str, str]:
        return self.sent.headers

    async def record(self, outcome: Outcome) -> None:
        self._timer.cancel()
        requests = self._requests
        request = self._request
        if self._read_task is None and await requests.record_later(request, outcome):
            return
        with requests.hold_session_while_reading(request.family):
            if (
                self._read_task is None
            ):  # nothing else will wait for it: no task is needed
                turn = await requests.read_forwarded(request, is_answered=True)
            else:
                turn = await asyncio.shield(self._read_task)
        await turn.record(outcome)

    def _start_read(self) -> asyncio.Task[ManagedTurn]:
        """Read the request in the background, once."""
        self._timer.cancel()
        if self._read_task is None:
            reading = self._requests.read_forwarded(self._request, is_answered=False)
            self._read_task = asyncio.get_running_loop().create_task(reading)
        return self._read_task
