"""Store requests and their answers.

Every append names the last point of the thread that its writer has seen. If the thread
has another last point by then, the store refuses it and the writer reads the thread again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.errors import EverthreadError
from everthread.gateway.contracts import Outcome, decode_messages, encode_messages
from everthread.gateway.identify import thread_kind
from everthread.gateway.management.gateway_events import Branched, RecordFailed
from everthread.gateway.management.pending_points import PendingPoint
from everthread.gateway.management.thread_index import PLATFORM, ThreadIndex
from everthread.gateway.management.thread_match import (
    ThreadMatch,
    ThreadStep,
    opening_length,
)
from everthread.store.records import NewSession, NewUsage
from everthread.thread.events import Listener
from everthread.thread.history import History, identify

if TYPE_CHECKING:
    from everthread.gateway.management.turn import ManagedTurn

_DELAY_SECONDS = 1.0
"""Seconds that a request waits for its answer, to be stored with it."""


@dataclass(slots=True)
class RequestStorage:
    """The progress of storing a request."""

    expected: PendingPoint | None = None
    """The point at the request's end, until it is stored."""
    storing: asyncio.Future[ThreadMatch] | None = None
    """The task that stores the request; None if storing waits for the answer."""
    delay: asyncio.TimerHandle | None = None
    """The timer that stores the request if no answer comes in time."""
    is_stored: bool = False
    """The request is stored, so its match is certain."""


class PendingAnswer:
    """An answer to be stored, and the history that ends with it."""

    def __init__(
        self, message: Message, history: History, expected: PendingPoint
    ) -> None:
        self.message = message
        self.history = history
        self.expected = expected
        self.is_stored = False


class ThreadRecorder:
    """Store requests and their answers.

    `is_alone`: whether no other process extends these threads now. Then a request that
    continues one is stored with its answer, in one transaction, or a moment later.
    Otherwise it is stored at once: only the store decides which of two processes
    continues a point, and the response names the thread.
    """

    def __init__(
        self, threads: ThreadIndex, listener: Listener, *, is_alone: Callable[[], bool]
    ) -> None:
        self._threads = threads
        self._listener = listener
        self._is_alone = is_alone

    def begin(self, turn: ManagedTurn) -> None:
        """Expect the request in the store, so that one that continues it is matched."""
        turn.storage.expected = self._threads.expect(turn.match, turn.request.history)

    def start(self, turn: ManagedTurn, *, is_answered: bool = False) -> None:
        """Store the request in the background, or put it off until there is an answer.

        `is_answered`: the answer is recorded next.
        """
        if turn.storage.storing is not None:
            return
        is_certain = (
            turn.memory.is_stored
            and not turn.match.is_new
            and not self._threads.is_pending(turn.match)
        )
        is_delayed = is_answered or (is_certain and self._is_alone())
        if is_delayed and turn.storage.expected is not None:
            turn.storage.expected.store_now = functools.partial(self._store_now, turn)
            turn.storage.delay = asyncio.get_running_loop().call_later(
                _DELAY_SECONDS, turn.storage.expected.store_now
            )
        else:
            self._store_now(turn)

    def _store_now(self, turn: ManagedTurn) -> asyncio.Future[ThreadMatch]:
        if turn.storage.storing is None:
            turn.storage.storing = asyncio.get_running_loop().create_task(
                self._store_request(turn)
            )
        return turn.storage.storing

    async def store_request(self, turn: ManagedTurn) -> ThreadMatch:
        """Store the request's new messages; a caller that is cancelled does not cancel this."""
        return await asyncio.shield(self._store_now(turn))

    def expect_answer(
        self, turn: ManagedTurn, outcome: Outcome
    ) -> PendingAnswer | None:
        """Expect a complete answer in the store, so that a request that continues it is matched."""
        if (
            not (200 <= outcome.status < 300)
            or outcome.reply is None
            or outcome.reply.stop is None
        ):
            return None
        message = outcome.reply.message
        api = turn.request.incoming.api
        values = encode_messages(api, [message], turn.request.model)
        pieces = [
            identify(api, value)
            for value in values
            if value.get("role") != "user" and _says_something(value)
        ]
        if not pieces:
            return None
        past = turn.request.history.extend(pieces)
        expected = self._threads.expect(turn.match.after(turn.request.history), past)
        expected.is_answer = True
        expected.waits_for_request = (
            turn.storage.storing is not None and not turn.storage.is_stored
        )
        return PendingAnswer(message, past, expected)

    async def store_outcome(
        self,
        turn: ManagedTurn,
        answer: PendingAnswer | None,
        usage: Sequence[NewUsage],
        state: tuple[str, Any],
    ) -> None:
        """Store the answer, usage and state, and the request if that was put off."""
        if turn.storage.storing is None:
            turn.storage.storing = stored = asyncio.get_running_loop().create_future()
            try:
                await self._store(turn, answer, usage, state)
            finally:
                stored.set_result(turn.match)
        else:
            await asyncio.shield(turn.storage.storing)
            await self._store(turn, answer, usage, state)

    def give_up(self, answer: PendingAnswer) -> None:
        """Stop expecting an answer that is not stored."""
        self._threads.fulfil(answer.expected, None)

    async def _store_request(self, turn: ManagedTurn) -> ThreadMatch:
        """Store the request; report a failure as an event."""
        # Let the task that writes to the upstream run first: it was made after this one.
        await asyncio.sleep(0)
        try:
            await self._store(turn)
        except EverthreadError as error:
            self._listener(RecordFailed(turn.match.thread, str(error)))
        return turn.match

    async def _store(
        self,
        turn: ManagedTurn,
        answer: PendingAnswer | None = None,
        usage: Sequence[NewUsage] = (),
        state: tuple[str, Any] | None = None,
    ) -> None:
        """Store what is not stored yet of a request, its answer, usage and state."""
        if turn.storage.delay is not None:
            turn.storage.delay.cancel()
            turn.storage.delay = None
        try:
            is_certain = turn.storage.is_stored or await self._threads.wait_for_others(
                turn.match
            )
            if not is_certain:
                turn.match = await self._find_again(turn)
            await self._store_steps(turn, answer, usage, state)
            if answer is not None and not answer.is_stored:
                # It is stored when the client continues it.
                await self._threads.note_other_answer(turn.match, answer.history)
        finally:
            if turn.storage.expected is not None:
                # The callable refers to the turn: break the cycle, or the body stays.
                turn.storage.expected.store_now = None
                is_kept = turn.storage.is_stored and not turn.match.is_inside
                self._threads.fulfil(
                    turn.storage.expected, turn.match.thread if is_kept else None
                )

    async def _store_steps(
        self,
        turn: ManagedTurn,
        answer: PendingAnswer | None,
        usage: Sequence[NewUsage],
        state: tuple[str, Any] | None,
    ) -> None:
        """Store the request and its answer; find the thread again if another process was first."""
        while True:
            requests = [] if turn.storage.is_stored else _request_steps(turn)
            reply = (
                _answer_step(turn, answer)
                if answer is not None and not turn.match.is_inside
                else None
            )
            steps = [*requests, *([] if reply is None else [reply])]
            if not steps and not usage and state is None:
                turn.storage.is_stored = turn.memory.is_stored = True
                return
            matches = await self._threads.store(turn.match, steps, usage, state)
            if matches or not steps:
                usage = ()
                state = None
            if len(matches) < len(requests):
                turn.match = await self._find_again(turn)
                continue
            if matches or not steps:
                turn.storage.is_stored = turn.memory.is_stored = True
            if requests:
                if turn.match.branch_of is not None:
                    self._listener(
                        Branched(
                            matches[0].thread,
                            turn.match.branch_of[0],
                            turn.match.matched,
                        )
                    )
                turn.match = matches[len(requests) - 1]
            is_answered = len(matches) > len(requests)
            if is_answered and answer is not None:
                answer.is_stored = True
                self._threads.fulfil(answer.expected, matches[-1].thread)
            if is_answered or not requests:
                answer = None

    async def _find_again(self, turn: ManagedTurn) -> ThreadMatch:
        """Find the thread of a request again, in the store alone."""
        match = turn.match
        self._threads.forget(match)
        return await self._threads.find_match(
            match.family,
            turn.request.history,
            turn.request.wire_messages,
            uses_memory=False,
        )


def _request_steps(turn: ManagedTurn) -> list[ThreadStep]:
    """List the steps to the request's end that its thread lacks.

    A new thread has a point at the end of its opening too: another process may be about
    to store that request.
    """
    match = turn.match
    history = turn.request.history
    if match.matched == len(history) and not match.is_new:
        return []
    opening = opening_length(turn.request.wire_messages.values)
    if match.is_new and not match.previous and match.branch_of is None:
        return [
            _request_step(turn, start, end)
            for start, end in ((0, opening), (opening, len(history)))
            if start < end
        ]
    return [_request_step(turn, match.matched, len(history))]


def _request_step(turn: ManagedTurn, start: int, end: int) -> ThreadStep:
    """Return the step that stores these messages of a request."""
    match = turn.match
    client = turn.request.client
    kind = thread_kind(client, has_tools=bool(turn.request.frame.tools))
    session = NewSession(
        id=match.thread,
        kind="side" if match.side_of else kind,
        parent=match.side_of or None,
        tenant=match.tenant,
        platform=PLATFORM,
        model=turn.request.model,
        system=turn.request.frame.system,
        client=client.client,
        client_session=client.session,
    )
    new = [element.value for element in turn.request.elements[start:end]]
    before = (
        turn.request.elements[start - 1].value
        if start and match.branch_of is None
        else None
    )
    messages = decode_messages(
        turn.request.incoming.api, new, turn.request.model, after=before
    )
    return ThreadStep(
        turn.request.history.until(end),
        messages,
        sizes=turn.request.sizes[start:end],
        session=session,
        client_parent=client.parent or client.session,
    )


def _answer_step(turn: ManagedTurn, answer: PendingAnswer) -> ThreadStep:
    session = NewSession(
        id=turn.match.thread, tenant=turn.match.tenant, platform=PLATFORM
    )
    size = TokenCounter(turn.request.model).message(answer.message)
    return ThreadStep(answer.history, [answer.message], sizes=[size], session=session)


def _says_something(value: Mapping[str, Any]) -> bool:
    """Return whether a message has any content: clients drop or repeat an empty answer."""
    return any(
        content
        for name, content in value.items()
        if name not in ("role", "type", "id", "status")
    )
