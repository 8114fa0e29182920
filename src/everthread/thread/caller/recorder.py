"""Store requests and their answers.

Every append names the last link of the thread that its writer has seen. If another writer has extended the thread
since, the store refuses the append, and the writer reads the thread again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, ModelReply
from everthread.errors import EverthreadError
from everthread.store.records import NewSession
from everthread.store.usage_records import NewUsage
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.events import Branched, Listener, RecordFailed
from everthread.thread.matching.history import (
    History,
    MessageIdentity,
    identify_message,
)
from everthread.thread.matching.pending_links import PendingLink, PendingLinks
from everthread.thread.matching.thread_index import ThreadIndex
from everthread.thread.matching.thread_match import (
    ThreadMatch,
    ThreadStep,
    count_opening_messages,
)
from everthread.thread.wire_messages import decode_messages, encode_messages

_DELAY_SECONDS = 1.0
"""Seconds for which storing a request is delayed, so that its answer can be stored with it."""
MAX_LOOP_MESSAGES = 32
"""Maximum new messages that are decoded on the event loop; more are decoded in a thread."""


class PendingAnswer:
    """An answer to be stored, and the history that ends with it."""

    def __init__(self, message: Message, history: History, pending_link: PendingLink) -> None:
        self.message = message
        self.history = history
        self.pending_link = pending_link
        self.is_stored = False


class ThreadRecorder:
    """Store requests and their answers.

    `is_sole_writer`: returns whether no other process extends these threads now. If so, a request that continues a
    thread is stored together with its answer, or a moment later if there is none. Otherwise the request is stored at
    once: the store decides which of two processes continues a link, and the response must name the right thread.
    """

    def __init__(
        self,
        threads: ThreadIndex,
        pending_links: PendingLinks,
        listener: Listener,
        *,
        is_sole_writer: Callable[[], bool],
    ) -> None:
        self._threads = threads
        self._pending_links = pending_links
        self._listener = listener
        self._is_sole_writer = is_sole_writer

    def expect_request(self, call: PreparedCall) -> None:
        """Announce a request before it is stored, so that a request that continues it is matched."""
        call.storage.pending_request = self._threads.expect_history(
            call.match, call.caller_history.history
        )

    def start_storing(self, call: PreparedCall, *, is_answered: bool = False) -> None:
        """Store the request in the background, or delay it until there is an answer.

        `is_answered`: the answer is recorded next.
        """
        if call.storage.storing_task is not None:
            return
        is_certain = (
            call.memory.is_stored
            and not call.match.is_new
            and not self._pending_links.is_previous_pending(call.match)
        )
        is_delayed = is_answered or (is_certain and self._is_sole_writer())
        if is_delayed and call.storage.pending_request is not None:
            call.storage.pending_request.store_now = functools.partial(self._store_now, call)
            call.storage.delay_timer = asyncio.get_running_loop().call_later(
                _DELAY_SECONDS, call.storage.pending_request.store_now
            )
        else:
            self._store_now(call)

    def _store_now(self, call: PreparedCall) -> asyncio.Future[ThreadMatch]:
        if call.storage.storing_task is None:
            call.storage.storing_task = asyncio.get_running_loop().create_task(
                self._store_request(call)
            )
        return call.storage.storing_task

    async def store_request(self, call: PreparedCall) -> ThreadMatch:
        """Store the request's new messages, even if the caller is cancelled."""
        return await asyncio.shield(self._store_now(call))

    def expect_answer(self, call: PreparedCall, outcome: Outcome) -> PendingAnswer | None:
        """Announce a complete answer before it is stored, so that a request that continues it is matched."""
        if not outcome.is_success or outcome.reply is None or outcome.reply.stop is None:
            return None
        identities = identify_answer(call.settings.api, outcome.reply, call.model)
        if not identities:
            return None
        answered_history = call.caller_history.history.extend(identities)
        pending_link = self._threads.expect_history(
            call.match.match_after(call.caller_history.history), answered_history
        )
        pending_link.is_answer = True
        pending_link.waits_for_request = (
            call.storage.storing_task is not None and not call.storage.is_stored
        )
        return PendingAnswer(outcome.reply.message, answered_history, pending_link)

    async def store_outcome(
        self,
        call: PreparedCall,
        answer: PendingAnswer | None,
        usage: Sequence[NewUsage],
        state: tuple[str, Any],
    ) -> None:
        """Store the answer, usage and state, and the request if storing it was delayed."""
        if call.storage.storing_task is None:
            call.storage.storing_task = storing = asyncio.get_running_loop().create_future()
            try:
                await self._store_unstored(call, answer, usage, state)
            finally:
                storing.set_result(call.match)
        else:
            await asyncio.shield(call.storage.storing_task)
            await self._store_unstored(call, answer, usage, state)

    def drop_answer(self, answer: PendingAnswer) -> None:
        """Stop waiting for an announced answer, because it will not be stored."""
        self._threads.finish_pending(answer.pending_link, None)

    async def _store_request(self, call: PreparedCall) -> ThreadMatch:
        """Store the request; report a failure as an event."""
        # Let the task that writes to the upstream run first: it was made after this one.
        await asyncio.sleep(0)
        try:
            await self._store_unstored(call)
        except EverthreadError as error:
            self._listener(RecordFailed(call.match.thread, str(error)))
        return call.match

    async def _store_unstored(
        self,
        call: PreparedCall,
        answer: PendingAnswer | None = None,
        usage: Sequence[NewUsage] = (),
        state: tuple[str, Any] | None = None,
    ) -> None:
        """Store the parts of a call that are not stored yet: request, answer, usage and state."""
        if call.storage.delay_timer is not None:
            call.storage.delay_timer.cancel()
            call.storage.delay_timer = None
        try:
            is_certain = call.storage.is_stored or await self._threads.wait_for_others(call.match)
            if not is_certain:
                call.match = await self._match_again(call)
            await self._store_steps(call, answer, usage, state)
            if answer is not None and not answer.is_stored:
                # The answer is stored with the client's next request, if that continues it.
                await self._threads.note_other_answer(call.match, answer.history)
        finally:
            if call.storage.pending_request is not None:
                # The callable refers to the call: break the cycle, or its messages stay.
                call.storage.pending_request.store_now = None
                is_kept = call.storage.is_stored and not call.match.is_inside
                self._threads.finish_pending(
                    call.storage.pending_request, call.match.thread if is_kept else None
                )

    async def _store_steps(
        self,
        call: PreparedCall,
        answer: PendingAnswer | None,
        usage: Sequence[NewUsage],
        state: tuple[str, Any] | None,
    ) -> None:
        """Store the request and its answer; find the thread again if another process was first."""
        while True:
            requests = [] if call.storage.is_stored else await _make_steps(call)
            steps = [*requests]
            if answer is not None and not call.match.is_inside:
                steps.append(_make_answer_step(call, answer))
            if not steps and not usage and state is None:
                call.storage.is_stored = call.memory.is_stored = True
                return
            matches = await self._threads.store(call.match, steps, usage, state)
            if matches or not steps:
                usage = ()
                state = None
            if len(matches) < len(requests):
                call.match = await self._match_again(call)
                continue
            if matches or not steps:
                call.storage.is_stored = call.memory.is_stored = True
            if requests:
                if call.match.branch_of is not None:
                    self._listener(
                        Branched(
                            matches[0].thread,
                            call.match.branch_of[0],
                            call.match.matched_count,
                        )
                    )
                call.match = matches[len(requests) - 1]
            is_answered = len(matches) > len(requests)
            if is_answered and answer is not None:
                answer.is_stored = True
                self._threads.finish_pending(answer.pending_link, matches[-1].thread)
            if is_answered or not requests:
                answer = None

    async def _match_again(self, call: PreparedCall) -> ThreadMatch:
        """Find the thread of a request again, only in the store."""
        match = call.match
        self._threads.forget_links(match)
        return await self._threads.find_match(call.caller_history, call.settings, uses_memory=False)


async def _make_steps(call: PreparedCall) -> list[ThreadStep]:
    """List the steps of a request; off the event loop if it has many new messages."""
    new_count = len(call.caller_history.history) - call.match.matched_count
    if new_count <= MAX_LOOP_MESSAGES:
        return _list_request_steps(call)
    return await asyncio.to_thread(_list_request_steps, call)


def _list_request_steps(call: PreparedCall) -> list[ThreadStep]:
    """List the steps to the request's end that its thread lacks.

    A new thread also has a link at the end of its opening: another process may be about to store that request.
    """
    match = call.match
    history = call.caller_history.history
    if match.matched_count == len(history) and not match.is_new:
        return []
    if match.is_new and not match.previous and match.branch_of is None:
        opening = count_opening_messages(call.caller_history.wire_messages)
        return [
            _make_request_step(call, start, end)
            for start, end in ((0, opening), (opening, len(history)))
            if start < end
        ]
    return [_make_request_step(call, match.matched_count, len(history))]


def _make_request_step(call: PreparedCall, start: int, end: int) -> ThreadStep:
    """Return the step that stores these messages of a request."""
    match = call.match
    client = call.caller_history.client
    session = NewSession(
        id=match.thread,
        kind="side" if match.side_of else call.caller_history.kind,
        parent=match.side_of or None,
        tenant=match.tenant,
        platform=client.platform,
        model=call.model,
        system=call.settings.request.system,
        client=client.client,
        client_session=client.session,
    )
    wire_messages = [element.value for element in call.caller_history.messages[start:end]]
    previous_message = (
        call.caller_history.messages[start - 1].value if start and match.branch_of is None else None
    )
    messages = decode_messages(
        call.settings.api, wire_messages, call.model, previous_message=previous_message
    )
    return ThreadStep(
        call.caller_history.history.first_messages(end),
        messages,
        sizes=call.caller_history.sizes[start:end],
        session=session,
        client_parent=client.parent or client.session,
    )


def _make_answer_step(call: PreparedCall, answer: PendingAnswer) -> ThreadStep:
    """Return the step that stores an answer."""
    session = NewSession(
        id=call.match.thread,
        tenant=call.match.tenant,
        platform=call.caller_history.client.platform,
    )
    size = TokenCounter(call.model).message(answer.message)
    return ThreadStep(answer.history, [answer.message], sizes=[size], session=session)


def identify_answer(api: Api, reply: ModelReply, model: str) -> list[MessageIdentity]:
    """Return the identities of an answer's messages, as the client will send them back."""
    return [
        identify_message(api, value)
        for value in encode_messages(api, [reply.message], model)
        if value.get("role") != "user" and _has_content(value)
    ]


def _has_content(value: Mapping[str, Any]) -> bool:
    """Return whether a message has any content. Empty answers are not stored: clients drop or repeat them."""
    return any(
        content for name, content in value.items() if name not in ("role", "type", "id", "status")
    )
