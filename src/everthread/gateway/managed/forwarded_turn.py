"""A request that is forwarded before it is read (`forwarding.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from typing import Any

from everthread.core.types import Reply
from everthread.gateway.contracts import Outgoing
from everthread.gateway.managed.managed_turn import ManagedTurn
from everthread.thread.caller.sent_history import Outcome

READ_SECONDS = 1.0
"""Seconds after which a forwarded request is read, if it is not answered earlier."""


class ForwardedTurn:
    """A request that is read while the upstream answers.

    `read`: reads the request and finds its thread; its argument is whether the request is answered already.
    `hold_session`: makes other requests of the session wait while an answered request is read.
    """

    def __init__(
        self,
        thread: str,
        sent: Outgoing,
        *,
        read: Callable[[bool], Coroutine[Any, Any, ManagedTurn]],
        hold_session: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.thread = thread
        self.sent = sent
        self._read_request = read
        self._hold_session = hold_session
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
        with self._hold_session():
            if (
                self._read_task is None
            ):  # nothing else will wait for it: no task is needed
                self._timer.cancel()
                turn = await self._read_request(True)  # noqa: FBT003 - it is answered
            else:
                turn = await asyncio.shield(self._read_task)
        await turn.record(outcome)

    def _start_read(self) -> asyncio.Task[ManagedTurn]:
        """Read the request in the background, once."""
        self._timer.cancel()
        if self._read_task is None:
            loop = asyncio.get_running_loop()
            self._read_task = loop.create_task(self._read_request(False))  # noqa: FBT003 - it is not answered yet
        return self._read_task
