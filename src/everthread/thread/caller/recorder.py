"""Store a call and its answer.

Every append names the last link that its writer has seen in the thread. If another writer has extended the thread
since, the store refuses the append, and the recorder looks for the thread again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, ModelReply
from everthread.errors import EverthreadError
from everthread.store.records import NewSession
from everthread.store.usage_records import NewUsage
from everthread.thread.caller.caller_request import CallerHistory, CallSettings, Outcome
from everthread.thread.caller.thread_memory import ThreadMemory
from everthread.thread.events import Branched, Listener, RecordFailed
from everthread.thread.matching.history import (
    History,
    MessageIdentity,
    identify_message,
)
from everthread.thread.matching.pending_links import PendingLink
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


@dataclass(slots=True)
class UnstoredOutcome:
    """The outcome of a call, which is stored with its request if that is still possible."""

    answer: PendingAnswer | None = None
    usage: Sequence[NewUsage] = ()
    """The usage of the call; emptied when it is stored, together with the state."""
    state: tuple[str, Any] | None = None
    """The key and value of the thread's new state."""


class CallRecorder:
    """Store the messages of one call, and then its answer, in the thread that they belong to."""

    def __init__(
        self,
        caller_history: CallerHistory,
        settings: CallSettings,
        match: ThreadMatch,
        *,
        memory: ThreadMemory,
        index: ThreadIndex,
        listener: Listener,
    ) -> None:
        self.caller_history = caller_history
        self.settings = settings
        self.match = match
        """The thread of the call. It is certain once the messages are stored."""
        self.is_stored = False
        self._memory = memory
        self._index = index
        self._listener = listener
        self._pending_request: PendingLink | None = None
        """The link at the end of the history, until it is stored."""
        self._storing_task: asyncio.Future[ThreadMatch] | None = None
        """The task that stores the messages, or None while storing waits for the answer."""
        self._delay_timer: asyncio.TimerHandle | None = None
        """The timer that stores the messages if no answer comes in time."""

    @property
    def is_thread_known(self) -> bool:
        """Whether the id of the thread is certain, though its messages may not be stored yet."""
        if self._storing_task is None:
            return True
        return self.match.is_named and not self._storing_task.done()

    def expect_request(self) -> None:
        """Announce the request before it is stored, so that a request that continues it is matched."""
        self._pending_request = self._index.expect_history(self.match, self.caller_history.history)

    def start_storing(self, *, is_sole_writer: bool, is_answered: bool = False) -> None:
        """Store the request in the background, or delay it until there is an answer.

        `is_sole_writer`: whether no other process extends these threads now. If so, a request that continues a thread
        is stored together with its answer, or a moment later if there is none. Otherwise the request is stored at once:
        the store decides which of two processes continues a link, and the response must name the right thread.
        `is_answered`: whether the answer is recorded next.
        """
        if self._storing_task is not None:
            return
        is_certain = (
            self._memory.is_stored
            and not self.match.is_new
            and not self._index.is_previous_pending(self.match)
        )
        is_delayed = is_answered or (is_certain and is_sole_writer)
        if is_delayed and self._pending_request is not None:
            self._pending_request.store_now = self._start_storing_now
            self._delay_timer = asyncio.get_running_loop().call_later(
                _DELAY_SECONDS, self._start_storing_now
            )
        else:
            self._start_storing_now()

    def _start_storing_now(self) -> asyncio.Future[ThreadMatch]:
        if self._storing_task is None:
            self._storing_task = asyncio.get_running_loop().create_task(self._store_request())
        return self._storing_task

    async def store_request(self) -> ThreadMatch:
        """Store the request's new messages, even if the caller is cancelled."""
        return await asyncio.shield(self._start_storing_now())

    def expect_answer(self, outcome: Outcome) -> PendingAnswer | None:
        """Announce a complete answer before it is stored, so that a request that continues it is matched."""
        if not outcome.is_success or outcome.reply is None or outcome.reply.stop is None:
            return None
        history = self.caller_history.history
        identities = identify_answer(self.settings.api, outcome.reply, self.settings.model)
        if not identities:
            return None
        answered_history = history.extend(identities)
        pending_link = self._index.expect_history(self.match.advance_to(history), answered_history)
        pending_link.is_answer = True
        pending_link.waits_for_request = self._storing_task is not None and not self.is_stored
        return PendingAnswer(outcome.reply.message, answered_history, pending_link)

    async def store_outcome(
        self,
        answer: PendingAnswer | None,
        usage: Sequence[NewUsage],
        state: tuple[str, Any],
    ) -> None:
        """Store the answer, usage and state, and the request if storing it was delayed."""
        outcome = UnstoredOutcome(answer, usage, state)
        if self._storing_task is None:
            self._storing_task = storing = asyncio.get_running_loop().create_future()
            try:
                await self._store_call(outcome)
            finally:
                storing.set_result(self.match)
        else:
            await asyncio.shield(self._storing_task)
            await self._store_call(outcome)

    def drop_answer(self, answer: PendingAnswer) -> None:
        """Stop waiting for an announced answer, because it will not be stored."""
        self._index.finish_pending(answer.pending_link, None)

    async def _store_request(self) -> ThreadMatch:
        """Store the request; report a failure as an event."""
        # Let the task that writes to the upstream run first: it was made after this one.
        await asyncio.sleep(0)
        try:
            await self._store_call(UnstoredOutcome())
        except EverthreadError as error:
            self._listener(RecordFailed(self.match.thread_id, str(error)))
        return self.match

    async def _store_call(self, outcome: UnstoredOutcome) -> None:
        """Store the outcome, and the request before it unless that is stored already."""
        if self._delay_timer is not None:
            self._delay_timer.cancel()
            self._delay_timer = None
        try:
            if not self.is_stored:
                await self._store_request_steps(outcome)
            await self._store_rest(outcome)
        finally:
            if self._pending_request is not None:
                # The callable refers to the recorder: break the cycle, or its messages stay in memory.
                self._pending_request.store_now = None
                is_kept = self.is_stored and not self.match.is_inside
                self._index.finish_pending(
                    self._pending_request, self.match.thread_id if is_kept else None
                )

    async def _store_request_steps(self, outcome: UnstoredOutcome) -> None:
        """Store the request, and its outcome in the same transaction unless another writer interferes."""
        if not await self._index.wait_for_others(self.match):
            await self._match_again()
        while not self.is_stored:
            request_steps = await self._make_request_steps()
            request_end: ThreadMatch | None = self.match
            if request_steps:
                request_end = await self._extend_thread(outcome, request_steps)
            if request_end is None:
                await self._match_again()
            else:
                self._set_stored(request_end)

    async def _store_rest(self, outcome: UnstoredOutcome) -> None:
        """Store the parts of the outcome that were not stored with the request."""
        answer = outcome.answer
        if answer is not None and not answer.is_stored and not self.match.is_inside:
            await self._extend_thread(outcome)
        if outcome.usage or outcome.state is not None:
            await self._index.store(self.match, usage=outcome.usage, state=outcome.state)
        if answer is not None and not answer.is_stored:
            # The answer is stored with the client's next request, if that continues it.
            await self._index.note_other_answer(self.match, answer.history)

    async def _extend_thread(
        self, outcome: UnstoredOutcome, request_steps: Sequence[ThreadStep] = ()
    ) -> ThreadMatch | None:
        """Store steps of the request and the outcome in one transaction.

        Return the match at the end of the request, or None if another writer extended the thread first.
        """
        answer = outcome.answer
        answer_step = None if answer is None else self._make_answer_step(answer)
        stored_steps = await self._index.store(
            self.match,
            request_steps,
            answer_step,
            usage=outcome.usage,
            state=outcome.state,
        )
        if stored_steps.has_stored_usage:
            outcome.usage = ()
            outcome.state = None
        if answer is not None and stored_steps.answer_thread_id is not None:
            answer.is_stored = True
            self._index.finish_pending(answer.pending_link, stored_steps.answer_thread_id)
        return stored_steps.request_end

    def _set_stored(self, request_end: ThreadMatch) -> None:
        """Note that the request is stored, and in which thread."""
        self.is_stored = True
        self._memory.is_stored = True
        if self.match.branch_of is not None:
            parent_id = self.match.branch_of[0]
            self._listener(Branched(request_end.thread_id, parent_id, self.match.matched_count))
        self.match = request_end

    async def _match_again(self) -> None:
        """Find the thread of the request again, only in the store."""
        self._index.forget_links(self.match)
        self.match = await self._index.find_match(
            self.caller_history, self.settings, uses_memory=False
        )

    async def _make_request_steps(self) -> list[ThreadStep]:
        """List the steps of the request. Decode many new messages off the event loop."""
        new_count = len(self.caller_history) - self.match.matched_count
        if new_count <= MAX_LOOP_MESSAGES:
            return self._list_request_steps()
        return await asyncio.to_thread(self._list_request_steps)

    def _list_request_steps(self) -> list[ThreadStep]:
        """List the steps that the thread lacks up to the end of the request.

        A new thread also has a link at the end of its opening: another process may be about to store that request.
        """
        match = self.match
        length = len(self.caller_history)
        if match.matched_count == length and not match.is_new:
            return []
        if match.is_new and not match.previous_digest and match.branch_of is None:
            opening_count = count_opening_messages(self.caller_history.wire_messages)
            return [
                self._make_request_step(start, end)
                for start, end in ((0, opening_count), (opening_count, length))
                if start < end
            ]
        return [self._make_request_step(match.matched_count, length)]

    def _make_request_step(self, start: int, end: int) -> ThreadStep:
        """Return the step that stores these messages of the request."""
        match = self.match
        caller_history = self.caller_history
        settings = self.settings
        client = caller_history.client
        session = NewSession(
            id=match.thread_id,
            kind="side" if match.side_of else caller_history.kind,
            parent=match.side_of or None,
            tenant=match.tenant,
            platform=client.platform,
            model=settings.model,
            system=settings.request.system,
            client=client.client,
            client_session=client.session,
        )
        wire_messages = [message.value for message in caller_history.messages[start:end]]
        previous_message = None
        if start and match.branch_of is None:
            previous_message = caller_history.messages[start - 1].value
        messages = decode_messages(
            settings.api, wire_messages, settings.model, previous_message=previous_message
        )
        return ThreadStep(
            caller_history.history.first_messages(end),
            messages,
            sizes=caller_history.sizes[start:end],
            session=session,
            client_parent=client.parent or client.session,
        )

    def _make_answer_step(self, answer: PendingAnswer) -> ThreadStep:
        """Return the step that stores the answer."""
        session = NewSession(
            id=self.match.thread_id,
            tenant=self.match.tenant,
            platform=self.caller_history.client.platform,
        )
        size = TokenCounter(self.settings.model).message(answer.message)
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
