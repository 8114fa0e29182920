"""Turns: a message sent, read again, stopped; and the commands that wait for their turn as messages do."""

from __future__ import annotations

import asyncio
import contextlib
import re

from everthread.conversation.requests import Given
from everthread.errors import InputError
from everthread.gateway.access import Refused
from everthread.gateway.incoming import ClientGone, until_gone
from everthread.gateway.native import sse
from everthread.gateway.native.asking import Ask
from everthread.gateway.native.desk import TurnDesk
from everthread.gateway.native.options import WAIT_SECONDS
from everthread.gateway.native.outcomes import STATUS
from everthread.gateway.native.replies import Answer
from everthread.gateway.native.views import Cancelled, CommandView, ErrorView, Problem, Turns, paged, turn_view
from everthread.store.models import QueuedTurn

_KEY = re.compile(r"[\x20-\x7e]{1,255}")


class TurnPages:
    """What is asked about turns."""

    def __init__(self, desk: TurnDesk, heartbeat: float) -> None:
        self._desk = desk
        self._heartbeat = heartbeat

    async def send(self, ask: Ask) -> Answer | None:
        content = ask.body.model_dump(mode="json")["content"]
        turn = await self._submitted(ask, {"role": "user", "content": content}, _key(ask))
        if ask.wants_events:
            await self._streamed(ask, turn, 0)
            return None
        return _answer(await self._waited(ask, turn, ask.query.wait))

    async def list(self, ask: Ask) -> Answer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        limit, offset = ask.query.limit, ask.query.offset
        rows, following = paged(await self._desk.store.turns(first.id, limit=limit + 1, offset=offset), limit, offset)
        return Answer(Turns(items=[turn_view(row) for row in rows], next=following))

    async def get(self, ask: Ask) -> Answer:
        return Answer(turn_view(await self._turn(ask)))

    async def events(self, ask: Ask) -> None:
        turn = await self._turn(ask)
        last = ask.headers.get("last-event-id", "")
        await self._streamed(ask, turn, int(last) if re.fullmatch(r"[0-9]{1,15}", last) else 0)

    async def cancel(self, ask: Ask) -> Answer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        found = await self._desk.store.turns(first.id, only_open=True, limit=1_000)
        if ask.body.turn is not None:
            named = await self._turn(ask, ask.body.turn)
            chosen = [named] if named.open else []
        else:
            chosen = [turn for turn in found if turn.state == "running" or ask.body.queued]
        stopped = [await self._desk.cancel(ask.tenant, turn.id) for turn in reversed(chosen)]
        return Answer(Cancelled(turns=[turn_view(turn) for turn in reversed(stopped)]))

    async def compress(self, ask: Ask) -> Answer:
        words = ["/compress", *(["--preview"] if ask.body.preview else []), *(ask.body.focus or "").split()]
        return await self._command(ask, " ".join(words))

    async def undo(self, ask: Ask) -> Answer:
        return await self._command(ask, "/undo")

    # Inside

    async def _command(self, ask: Ask, line: str) -> Answer:
        turn = await self._waited(ask, await self._submitted(ask, line, _key(ask)), WAIT_SECONDS)
        result = turn.result or {}
        if turn.state != "answered":
            return _answer(turn)
        if result.get("failed"):
            raise Refused(STATUS["command_failed"], "command_failed", str(result.get("text")))
        return Answer(CommandView(text=str(result.get("text")), data=dict(result.get("data") or {})))

    async def _submitted(self, ask: Ask, message: Given, key: str | None) -> QueuedTurn:
        try:
            return await self._desk.submit(
                ask.tenant, ask.thread, message, key=key, tools=ask.tools, payer=ask.caller.key_id
            )
        except InputError as error:
            raise Refused(400, "invalid_message", str(error)) from error

    async def _waited(self, ask: Ask, turn: QueuedTurn, seconds: float) -> QueuedTurn:
        """Until it is over; a client that leaves does not stop it."""
        waiting = asyncio.create_task(self._desk.wait(turn, seconds=seconds))
        gone = asyncio.create_task(until_gone(ask.receive, None))
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientGone
            return waiting.result()
        finally:
            for task in (waiting, gone):
                task.cancel()
            await asyncio.gather(waiting, gone, return_exceptions=True)

    async def _turn(self, ask: Ask, turn_id: str | None = None) -> QueuedTurn:
        """A turn of the thread that is named."""
        first = await self._desk.thread(ask.tenant, ask.thread)
        turn = await self._desk.turn(ask.tenant, turn_id or ask.names["turn"])
        if turn.thread != first.id:
            raise Refused(404, "not_found", "There is no such turn.")
        return turn

    async def _streamed(self, ask: Ask, turn: QueuedTurn, after: int) -> None:
        async with contextlib.aclosing(self._desk.events(turn, after=after)) as events:
            await sse.stream(ask.sender, ask.receive, turn, events, self._heartbeat)


def _key(ask: Ask) -> str | None:
    key = ask.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        raise Refused(400, "invalid_key", "An Idempotency-Key has 1 to 255 printable ASCII characters.")
    return key


def _answer(turn: QueuedTurn) -> Answer:
    """200 with the answer, 202 while it is open, else what went wrong."""
    told = {"x-everthread-turn": turn.id}
    shown = turn_view(turn)
    if turn.open:
        return Answer(shown, 202, told | {"location": f"/api/threads/{turn.thread}/turns/{turn.id}"})
    if turn.state == "answered":
        return Answer(shown, 200, told)
    problem = shown.error or Problem(code=turn.state, message="The turn has no answer.")
    return Answer(ErrorView(error=problem, turn=shown), STATUS.get(problem.code, 502), told)
