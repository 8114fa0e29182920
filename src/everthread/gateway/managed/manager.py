"""Decide on the request to send upstream, for a client that sends its whole history each time.

    manager = ProxyManager(CallerSetup(store, engine, engine_key, summarizer, window))
    turn = await manager.prepare(incoming)          # turn.sent: the client's bytes, or the beginning rewritten
    again = await turn.recover(400, error)          # after an error of the provider
    await turn.record(outcome)

The manager reads requests. What to do about them is decided in `thread/caller`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from everthread.compaction.compaction_result import CompactionLevel
from everthread.errors import StoreError
from everthread.gateway.compaction_items import (
    TRIGGER,
    expand_items,
    make_item,
    may_have_item,
    read_item_key,
)
from everthread.gateway.contracts import Incoming, ProxyTurn, UnmanagedTurn
from everthread.gateway.identify import find_scope
from everthread.gateway.managed.deferred_records import (
    DELAY_SECONDS,
    DeferredRecord,
    DeferredRecords,
    ForwardedRequest,
)
from everthread.gateway.managed.forwarded_turn import ForwardedTurn
from everthread.gateway.managed.forwarding import (
    BodyMemories,
    continue_terms,
    forward,
    is_compaction_planned,
)
from everthread.gateway.managed.managed_turn import ManagedTurn, TurnServices
from everthread.gateway.recall.recall_offer import RecallOffers
from everthread.gateway.request.body_cache import BodyOrigin
from everthread.gateway.request.body_reading import MAX_LOOP_BYTES
from everthread.gateway.request.client_request import ClientRequest
from everthread.gateway.request.request_reader import (
    OUR_NAME,
    LocatedBody,
    RequestReader,
)
from everthread.thread.caller.caller_setup import CallerSetup
from everthread.thread.caller.caller_threads import CallerThreads
from everthread.thread.caller.message_caches import SizeCache
from everthread.thread.caller.recorder import identify_answer
from everthread.thread.caller.sent_history import LeadingCompaction, Outcome
from everthread.thread.matching.thread_match import Family


class ProxyManager:
    """The `Manager` that stores, matches and rewrites requests.

    `cache_markers`: whether to set cache marks for clients that set none. `recall`: whether to offer the tool `recall`.
    `record_delay`: maximum seconds for which the record of a forwarded request is delayed.
    """

    def __init__(
        self,
        setup: CallerSetup,
        *,
        cache_markers: bool = True,
        recall: bool = True,
        record_delay: float = DELAY_SECONDS,
    ) -> None:
        self.setup = setup
        sizes = SizeCache()
        self.threads = CallerThreads(setup, sizes)
        self.reader = RequestReader(
            sizes, call_in_process=self.threads.runner.call_if_free
        )
        self._bodies = BodyMemories()
        self._recall = RecallOffers(enabled=recall)
        self._deferred = DeferredRecords(self._record_deferred, delay=record_delay)
        mark_ttl = setup.options.cache_ttl if cache_markers else None
        self._services = TurnServices(self.threads, mark_ttl)

    # Reading

    def _locate(self, incoming: Incoming) -> LocatedBody:
        origin = BodyOrigin.of(incoming.api, incoming.tenant, incoming.headers)
        match = self.reader.find_match(origin, incoming.body)
        return self.reader.locate(origin, incoming.body, match)

    async def _open(self, incoming: Incoming, located_body: LocatedBody) -> ManagedTurn:
        """Read a request and find its thread, after the delayed records of its session are made."""
        scope = find_scope(incoming.headers, located_body.sliced.fields)
        await self._deferred.flush_session(Family(incoming.tenant, scope))
        return await self._open_now(incoming, located_body)

    async def _open_now(
        self, incoming: Incoming, located_body: LocatedBody, known_length: int = 0
    ) -> ManagedTurn:
        """Read a request and find its thread. Requests of a known thread are read in their order.

        `known_length`: number of messages that are known to be those of the thread and were recorded before.
        """
        thread = (
            None
            if located_body.match is None
            else located_body.match.cached_body.thread
        )
        async with self.threads.hold_thread_while_opening(thread):
            parsed_request = await self.reader.read(located_body)
            tool = self._recall.choose_tool(
                incoming, located_body.sliced, parsed_request.settings
            )
            request = ClientRequest(incoming, parsed_request, tool)
            call = await self.threads.open(
                request.sent, request.settings, thread or "", known_length
            )
            self.reader.remember(call.thread, parsed_request)
            return ManagedTurn(
                self._services, request, call, self._bodies.of(call.thread)
            )

    def _expand_own_items(self, incoming: Incoming) -> Incoming:
        """Replace our compaction items in the request by the messages that they represent."""
        if (
            incoming.mode != "managed"
            or incoming.api != "openai_responses"
            or not may_have_item(incoming.body)
        ):
            return incoming
        key = self.setup.find_summary_key(incoming.tenant)
        expanded = expand_items(incoming.body, key)
        if expanded is None:
            return incoming
        return replace(
            incoming,
            raw=expanded.body,
            body=expanded.body,
            located_body=None,
            leading_compaction=LeadingCompaction(expanded.item_key, expanded.end),
        )

    # The moments of a request

    def forward_first(self, incoming: Incoming) -> ProxyTurn | None:
        located_body = incoming.located_body
        if located_body is None or located_body.match is None:
            return None
        thread = located_body.match.cached_body.thread
        memory = self.threads.find_memory(thread)
        if memory is None or is_compaction_planned(memory):
            return None
        body_memory = self._bodies.of(thread)
        terms = body_memory.forwarding
        outgoing = forward(
            incoming,
            located_body,
            body_memory,
            reader=self.reader,
            ttl=self._services.mark_ttl,
        )
        if terms is None or outgoing is None:
            return None
        scope = find_scope(incoming.headers, located_body.sliced.fields)
        family = Family(incoming.tenant, scope)
        request = ForwardedRequest(
            thread, family, incoming, located_body, sent=outgoing, terms=terms
        )
        return ForwardedTurn(self, request)

    async def read_forwarded(
        self, request: ForwardedRequest, *, is_answered: bool
    ) -> ManagedTurn:
        """Read a request that was forwarded already, and start storing it."""
        await self._deferred.flush_thread(request.thread)
        return await self._read_forwarded(
            request, request.terms.length, is_answered=is_answered
        )

    async def _read_forwarded(
        self, request: ForwardedRequest, known_length: int, *, is_answered: bool
    ) -> ManagedTurn:
        turn = await self._open_now(
            request.incoming, request.located_body, known_length
        )
        turn.sent = request.sent
        self.threads.start_storing(turn.call, is_answered=is_answered)
        return turn

    def hold_session_while_reading(
        self, family: Family
    ) -> AbstractContextManager[None]:
        """Make other requests of a session wait while one is read that is answered."""
        return self.threads.hold_session_while_reading(family)

    # Records that wait

    async def record_later(self, request: ForwardedRequest, outcome: Outcome) -> bool:
        """Record an unread request in a moment, perhaps with the next one; return False if it must be recorded now."""
        reply = outcome.reply
        usage = outcome.usage
        if reply is None or usage is None or not self._may_wait(request, outcome):
            return False
        terms = request.terms
        identities = identify_answer(request.incoming.api, reply, terms.model)
        if not identities:
            return False
        located_body = request.located_body
        history = self.reader.read_history(located_body, len(located_body.elements))
        self.reader.remember_history(request.thread, located_body, history)
        next_terms = continue_terms(
            terms, located_body, usage, answered_history=history.extend(identities)
        )
        self._bodies.of(request.thread).forwarding = next_terms
        await self._deferred.take(request, outcome, next_terms.digest)
        return True

    def _may_wait(self, request: ForwardedRequest, outcome: Outcome) -> bool:
        """Return whether a record may wait: the thread ends where it did, and no other process gets its next call."""
        terms = self._bodies.of(request.thread).forwarding
        reply = outcome.reply
        return (
            terms is not None
            and terms.digest == request.terms.digest
            and outcome.is_success
            and reply is not None
            and reply.stop is not None
            and not outcome.estimated
            and not outcome.hidden_usage
            and request.located_body.new_bytes <= MAX_LOOP_BYTES
            and self._deferred.can_take(request)
            and self.setup.is_sole_writer()
        )

    async def _record_deferred(self, record: DeferredRecord) -> None:
        """Record the last request of a thread with all that came since the record before."""
        request = record.request
        with self.threads.hold_session_while_reading(request.family):
            turn = await self._read_forwarded(
                request, record.stored_length, is_answered=True
            )
        await turn.record(record.outcome, record.earlier_usage)

    async def finish_records(self) -> None:
        """Make the records that wait."""
        await self._deferred.flush_all()

    async def prepare(self, incoming: Incoming) -> ProxyTurn:
        if incoming.mode == "off":
            return UnmanagedTurn(incoming)
        located_body = incoming.located_body or self._locate(incoming)
        expanded_request = (
            self._expand_own_items(incoming)
            if OUR_NAME in located_body.watched_words
            else incoming
        )
        if expanded_request is not incoming:
            located_body = self._locate(expanded_request)
        turn = await self._open(expanded_request, located_body)
        if not len(turn.call.sent):
            return UnmanagedTurn(incoming)  # a request without messages has no thread
        turn.is_expanded = expanded_request is not incoming
        await turn.prepare()
        return turn

    # Compactions at the client's request

    async def compact_for_client(
        self, incoming: Incoming, level: CompactionLevel, window: int | None = None
    ) -> dict[str, Any]:
        """Compact a conversation now for this window.

        Return its messages, a receipt, and the thread for recall.
        """
        turn = await self._read_to_compact(incoming)
        call = turn.call
        call.limits.window = window or call.limits.window
        tokens_before = self.threads.count_tokens(call, None)
        reason = self._find_refusal_reason(turn) or await self.threads.compact_manually(
            call, level
        )
        receipt = {
            "changed": call.rewrite is not None,
            "reason": reason,
            "tokens_before": tokens_before,
            "tokens_after": self.threads.count_tokens(call, call.rewrite),
            "messages_covered": call.covered_count,
            "thread": call.thread,
            "system_note": call.note,
        }
        return {
            "messages": _compacted_messages(turn),
            "receipt": receipt,
            "handle": call.thread,
        }

    async def make_compaction_item(
        self, incoming: Incoming
    ) -> tuple[dict[str, Any], int]:
        """Return an item that replaces a conversation, and the tokens of the messages in it.

        A later history that begins with the item continues the thread.
        """
        turn = await self._read_to_compact(incoming)
        if not self._find_refusal_reason(turn):
            await self.threads.compact_manually(turn.call, CompactionLevel.NORMAL)
        key = self.setup.find_summary_key(incoming.tenant)
        item = make_item(_compacted_messages(turn), key)
        await self.threads.keep_replacement(turn.call, read_item_key(item))
        return item, self.threads.count_tokens(turn.call, turn.call.rewrite)

    async def _read_to_compact(self, incoming: Incoming) -> ManagedTurn:
        """Read and store a conversation that the client wants to compact."""
        expanded_request = self._expand_own_items(incoming)
        turn = await self._open(expanded_request, self._locate(expanded_request))
        await self.threads.store(turn.call)
        if not turn.call.storage.is_stored:
            raise StoreError(
                "the conversation cannot be stored, so it is not compacted"
            )
        return turn

    def _find_refusal_reason(self, turn: ManagedTurn) -> str:
        """Return why this conversation may not be compacted; empty if it may."""
        mode = turn.request.incoming.mode
        reason = turn.request.unmanaged_reason
        if not self.setup.options.enabled:
            return "compression is disabled (compression.enabled: false)"
        if mode != "managed":
            return f"requests of this key are not managed (mode {mode})"
        if reason not in ("", TRIGGER):
            return f"the provider keeps or changes this history itself ({reason})"
        return ""

    # The process

    def start_worker(self) -> None:
        """Start a process for the first compaction ahead."""
        self.threads.start_worker()

    async def wait_for_background_work(self) -> None:
        """Wait for the background compactions."""
        await self.threads.wait_for_background_work()

    async def close(self) -> None:
        """Make the records that wait; end the background compactions and record their usage."""
        await self.finish_records()
        await self.threads.close()


def _compacted_messages(turn: ManagedTurn) -> list[Any]:
    """Return the system messages, then the compacted messages."""
    request = turn.request
    system_messages = [
        element.value for element in request.sliced.elements[: request.system_count]
    ]
    return [*system_messages, *turn.call.list_messages_to_send()]
