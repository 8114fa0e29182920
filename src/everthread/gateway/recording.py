"""Requests and answers on their way into the store: beside the conversation, and after the client has its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everthread.conversation.events import Listener
from everthread.core.messages import Message
from everthread.errors import EverthreadError
from everthread.gateway.base import Outcome
from everthread.gateway.covering import decoded, encoded
from everthread.gateway.events import Branched, RecordFailed
from everthread.gateway.identity import History, piece_of
from everthread.gateway.sending import THREAD
from everthread.gateway.tracing import Expected, Place, Threads
from everthread.gateway.turns import Turn

DELAY = 0.02
"""Seconds until a request is stored that is not answered yet: an answer that is quicker does not wait for it."""


class Recorder:
    def __init__(self, threads: Threads, listener: Listener) -> None:
        self._threads = threads
        self._tell = listener

    def begin(self, turn: Turn) -> None:
        """Who goes on from this request is known from now on, and it is stored soon."""
        turn.expected = self._threads.expect(turn.place, turn.history)
        asyncio.get_running_loop().call_later(DELAY, self._begun, turn)

    async def request(self, turn: Turn) -> Place:
        """The request's new messages into its thread, now; also where who waits for it leaves."""
        return await asyncio.shield(self._begun(turn))

    def _begun(self, turn: Turn) -> asyncio.Task[Place]:
        if turn.record is None:
            turn.record = asyncio.get_running_loop().create_task(self._record(turn))
        return turn.record

    def said(self, turn: Turn, outcome: Outcome) -> Answer | None:
        """A complete answer: who goes on from it is known from now on."""
        if not (200 <= outcome.status < 300) or outcome.reply is None or outcome.reply.stop is None:
            return None
        message, api = outcome.reply.message, turn.incoming.api
        values = encoded(api, [message], turn.model)
        pieces = [piece_of(api, value) for value in values if value.get("role") != "user" and _says_something(value)]
        if not pieces:
            return None
        past = turn.history.extended(pieces)
        return Answer(message, past, self._threads.expect(_behind(turn.place, turn.history), past))

    async def answer(self, answer: Answer, place: Place, turn: Turn) -> None:
        """The answer into the thread. A second one to the same request is stored when the client goes on with it."""
        stored = None
        try:
            if place.matched == len(turn.history):
                stored = await self._threads.store(place, answer.history, [answer.message])
        finally:
            self._threads.fulfil(answer.expected, stored.thread if stored else None)

    def give_up(self, answer: Answer) -> None:
        """It is not stored."""
        self._threads.fulfil(answer.expected, None)

    async def _record(self, turn: Turn) -> Place:
        """What cannot be stored is told; the request goes on."""
        thread = None
        try:
            turn.place = await self._stored(turn, turn.place)
            thread = turn.place.thread
            turn.kept = True
            turn.told[THREAD] = thread
        except EverthreadError as error:
            self._tell(RecordFailed(turn.place.thread, str(error)))
        finally:
            if turn.expected is not None:
                self._threads.fulfil(turn.expected, thread)
        return turn.place

    async def _stored(self, turn: Turn, place: Place) -> Place:
        certain = await self._threads.settled(place)
        while True:
            if not certain:  # another process went on from there first
                self._threads.forget(place)
                place = await self._threads.place(place.tenant, place.scope, turn.history, remembered=False)
            new = [element.value for element in turn.elements_from(place.matched)]
            messages = decoded(turn.incoming.api, new, turn.model)
            stored = await self._threads.store(
                place, turn.history, messages, system=turn.frame.system, model=turn.model
            )
            if stored is not None:
                if place.branch_of is not None:
                    self._tell(Branched(stored.thread, place.branch_of[0], place.matched))
                return stored
            certain = False


def _says_something(value: Mapping[str, Any]) -> bool:
    """An empty message is nobody's answer: the client asks again, or sends it along with what it says next."""
    return any(content for name, content in value.items() if name not in ("role", "type", "id", "status"))


class Answer:
    """What was answered, and the history with it."""

    def __init__(self, message: Message, history: History, expected: Expected) -> None:
        self.message = message
        self.history = history
        self.expected = expected


def _behind(place: Place, history: History) -> Place:
    """Where a request is once it is stored."""
    return replace(place, matched=len(history), previous=history.digest(len(history)), branch_of=None)
