"""The desk: takes a message for a thread, has it answered in its turn, tells what happens meanwhile.

    desk = TurnDesk(store, open_agent)
    await desk.start()
    thread = await desk.create(tenant, NewThread(title="Hello"))
    turn = await desk.submit(tenant, thread.id, "Hello")
    async for event in desk.events(turn):
        ...                                   # what happens, as it happens; the last one has the turn's end
    turn = await desk.wait(turn)              # or only the end
    await desk.close(patience=30)

Nothing here knows of HTTP: a webhook or a chat adapter uses it as the API does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from everthread.conversation.requests import Given, as_messages
from everthread.core.redaction import redact
from everthread.errors import EverthreadError, UnknownIdError
from everthread.gateway.access import Refused
from everthread.gateway.native.agents import AgentPool, NewThread, OpenAgent
from everthread.gateway.native.logs import TurnEvent, TurnLog, TurnLogs
from everthread.gateway.native.options import DeskOptions
from everthread.gateway.native.working import Workers
from everthread.store.models import NewQueuedTurn, QueuedTurn, Session, new_id
from everthread.store.store import Store

__all__ = ["NewThread", "TurnDesk", "TurnEvent", "answer_text"]

_LOG = logging.getLogger("everthread.gateway")


class TurnDesk:
    """Answers the messages of every thread in order, together with whoever else works on the same store."""

    def __init__(self, store: Store, open_agent: OpenAgent, options: DeskOptions | None = None) -> None:
        self.store = store
        self.options = options or DeskOptions()
        self.agents = AgentPool(store, open_agent, self.options)
        self._logs = TurnLogs(self.options.kept_logs, self.options.log_events)
        self._workers = Workers(store, self.agents, self._logs, self.options)
        self._sweeping: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self) -> None:
        """Look after messages whose process went away, from now on."""
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self, patience: float = 0.0) -> None:
        """Take nothing more; let running turns end within the patience, and interrupt those that did not."""
        self._closing = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self._workers.close(patience)
        self._logs.close()
        await self.agents.close()

    # Threads

    async def thread(self, tenant: str, thread: str) -> Session:
        """The first session of the thread any of whose ids this is. `Refused` 404 for a foreign one as for none."""
        try:
            session = await self.store.session(thread)
            if session.tenant == tenant:
                return session if session.id == session.thread else await self.store.session(session.thread)
        except UnknownIdError:
            pass
        raise Refused(404, "not_found", "There is no such thread.")

    async def create(self, tenant: str, new: NewThread | None = None, *, tools: bool = False) -> Session:
        """A new thread. `tools`: as for a message; an agent is made ready for them."""
        if self._closing:
            raise _ending()
        return await self.agents.create(tenant, new or NewThread(), tools=tools)

    # Turns

    async def submit(  # noqa: PLR0913 - whose, where, what, and three choices by their names
        self,
        tenant: str,
        thread: str,
        message: Given,
        *,
        key: str | None = None,
        tools: bool = False,
        payer: str | None = None,
    ) -> QueuedTurn:
        """Queue a message: text, content parts or a message of the user. It is stored when this returns.

        `key`: the same request given again is one turn. `tools`: the sender may use commands and files. A text that is
        a slash command is done in its turn, and not sent to the model. `payer`: the id of the key whose account the
        turn's calls go to.
        """
        if self._closing:
            raise _ending()
        known = await self.thread(tenant, thread)
        (body,) = [dict(item) for item in as_messages(message)] or [{}]
        if body.get("role") != "user":
            raise Refused(400, "invalid_message", "Only a message of the user can be sent.")
        fresh = new_id()
        new = NewQueuedTurn(fresh, known.id, tenant, body, key or fresh, {"tools": tools, "payer": payer})
        turn = await self.store.queue_turn(new, most=self.options.queue)
        if turn is None:
            words = f"{self.options.queue} messages of this thread wait for their answer already; try again later."
            raise Refused(429, "queue_full", words, retry_after=self.options.full_seconds)
        if turn.id != fresh and turn.message != body:
            raise Refused(409, "key_reused", "Another message was sent with this Idempotency-Key.")
        self._follow(turn)
        return turn

    async def turn(self, tenant: str, turn_id: str) -> QueuedTurn:
        """How it stands. `Refused` 404 for a foreign one as for none."""
        try:
            return await self.store.turn(turn_id, tenant=tenant)
        except UnknownIdError:
            raise Refused(404, "not_found", "There is no such turn.") from None

    async def events(self, turn: QueuedTurn, *, after: int = 0) -> AsyncGenerator[TurnEvent, None]:
        """What happens in a turn, from after the event of this number on; the last is its end.

        A turn of another process has only its end. Who stops reading stops nothing else. Without an end where the
        desk was closed first.
        """
        log = self._follow(turn)
        async for event in log.read(after):
            yield event

    async def wait(self, turn: QueuedTurn, *, seconds: float | None = None) -> QueuedTurn:
        """The turn when it is over, or as it is after these seconds or when the desk closes."""
        log = self._follow(turn)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await log.over.wait()
        return await self.store.turn(turn.id, tenant=turn.tenant)

    async def cancel(self, tenant: str, turn_id: str) -> QueuedTurn:
        """Stop it, or take it out of the queue. A turn that is over stays as it is."""
        await self.turn(tenant, turn_id)
        turn = await self.store.cancel_turn(turn_id, tenant=tenant)
        if turn.open:
            self._workers.cancel(turn)
        self._follow(turn)
        return turn

    # Inside

    def _follow(self, turn: QueuedTurn) -> TurnLog:
        """What is told of a turn; somebody looks after it from now on."""
        log = self._logs.of(turn)
        if not turn.open:
            log.end(turn)
        elif self._closing:
            log.close()
        else:
            self._workers.wake(turn.thread)
        return log

    async def _sweep(self) -> None:
        """Threads whose messages nobody answers: their process is gone."""
        while True:
            try:
                for thread in await self.store.idle_queues():
                    self._workers.wake(thread)
                await self.agents.shrink()
            except EverthreadError as error:
                _LOG.warning("waiting messages could not be looked for: %s", redact(str(error)))
            await asyncio.sleep(self.options.sweep_seconds)


def _ending() -> Refused:
    return Refused(503, "shutting_down", "The gateway is shutting down; send it again.", retry_after=1)


def answer_text(turn: QueuedTurn) -> str:
    """What a person is told of a turn that is over: the answer, or why there is none."""
    result: Mapping[str, Any] = turn.result or {}
    return str(result.get("text") or result.get("message") or "")
