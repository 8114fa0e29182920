"""Decide on the request to send upstream, for a client that sends its whole history each time.

    manager = ProxyManager(CallerSetup(store=store, …))
    handler = await manager.prepare(incoming)          # handler.outgoing: the client's bytes, perhaps rewritten
    again = await handler.recover(400, error)          # after an error of the provider
    await handler.record(outcome)

The manager reads requests; `thread/caller` decides what to do about them. A request that cannot need a change is
forwarded first, and read and recorded later: `forwarding.py` decides which ones, and `deferred_records.py` delays
their records.
"""

from __future__ import annotations

from dataclasses import replace

from everthread.gateway.compaction_items import expand_items, may_have_item
from everthread.gateway.contracts import IncomingRequest
from everthread.gateway.identify import find_client_scope
from everthread.gateway.managed.deferred_records import (
    MAX_DELAY_SECONDS,
    DeferredRecord,
    DeferredRecords,
    ForwardedRequest,
)
from everthread.gateway.managed.forwarded_handler import ForwardedHandler
from everthread.gateway.managed.forwarding import (
    BodyMemories,
    continue_terms,
    forward,
    is_compaction_planned,
)
from everthread.gateway.managed.managed_handler import ManagedHandler
from everthread.gateway.managed.requested_compactions import RequestedCompactions
from everthread.gateway.recall.recall_offer import RecallOffers
from everthread.gateway.request.body_cache import BodyOrigin
from everthread.gateway.request.body_reading import MAX_LOOP_BYTES
from everthread.gateway.request.client_request import ClientRequest
from everthread.gateway.request.request_reader import OUR_NAME, LocatedBody, RequestReader
from everthread.thread.caller.caller_request import LeadingCompaction, Outcome
from everthread.thread.caller.caller_setup import CallerSetup
from everthread.thread.caller.caller_threads import CallerThreads
from everthread.thread.caller.message_caches import SizeCache
from everthread.thread.caller.recorder import identify_answer
from everthread.thread.matching.thread_match import ClientScope


class ProxyManager:
    """The `RequestManager` that stores, matches and rewrites requests.

    `set_cache_marks`: whether to set cache marks for clients that set none. `offer_recall`: whether to offer the tool
    `recall`. `record_delay`: maximum seconds for which the record of a forwarded request is delayed.
    """

    def __init__(
        self,
        setup: CallerSetup,
        *,
        set_cache_marks: bool = True,
        offer_recall: bool = True,
        record_delay: float = MAX_DELAY_SECONDS,
    ) -> None:
        self.setup = setup
        sizes = SizeCache()
        self.threads = CallerThreads(setup, sizes)
        self.reader = RequestReader(sizes, call_in_process=self.threads.runner.call_if_free)
        self._mark_ttl = setup.options.cache_ttl if set_cache_marks else None
        self._recall_offers = RecallOffers(is_enabled=offer_recall)
        self._body_memories = BodyMemories()
        self.deferred_records = DeferredRecords(self._record_deferred, delay=record_delay)
        self.requested_compactions = RequestedCompactions(
            self.threads,
            self._open,
            derive_summary_key=setup.derive_summary_key,
            is_enabled=setup.options.enabled,
        )

    def forward_first(self, incoming: IncomingRequest) -> ForwardedHandler | None:
        """Return the handler of a request that can be forwarded before it is read; None if it cannot."""
        located_body = incoming.body.located_body
        if located_body is None or located_body.match is None:
            return None
        thread = located_body.match.cached_body.thread
        memory = self.threads.memories.find(thread)
        if memory is None or is_compaction_planned(memory):
            return None
        body_memory = self._body_memories.find_or_create(thread)
        terms = body_memory.forwarding_terms
        outgoing = forward(
            incoming, located_body, body_memory, reader=self.reader, ttl=self._mark_ttl
        )
        if terms is None or outgoing is None:
            return None
        client_scope = _find_client_scope(incoming, located_body)
        request = ForwardedRequest(
            thread, client_scope, incoming, located_body, outgoing=outgoing, terms=terms
        )
        return ForwardedHandler(
            request,
            self.threads,
            read=self._read_forwarded,
            try_record_later=self._try_record_later,
        )

    async def prepare(self, incoming: IncomingRequest) -> ManagedHandler | None:
        """Read a request, find its thread and decide which request to send; None if it is not managed."""
        if incoming.mode == "off":
            return None
        handler = await self._open(incoming)
        if not len(handler.call.caller_history):
            return None  # a request without messages has no thread
        await handler.prepare()
        return handler

    async def close(self) -> None:
        """Make all delayed records; end the background compactions and record their usage."""
        await self.deferred_records.flush_all()
        await self.threads.close()

    async def _open(self, incoming: IncomingRequest) -> ManagedHandler:
        """Read a request and find its thread, after the delayed records of its session are made.

        Compaction items made by a gateway are replaced with their messages first.
        """
        request = incoming
        located_body = incoming.body.located_body or self._locate(incoming)
        if OUR_NAME in located_body.watched_words:
            request = self._expand_own_items(incoming)
        if request is not incoming:
            located_body = self._locate(request)
        client_scope = _find_client_scope(incoming, located_body)
        await self.deferred_records.flush_session(client_scope)
        return await self._read(request, located_body, client_scope=client_scope)

    async def _read_forwarded(self, request: ForwardedRequest) -> ManagedHandler:
        """Read a request that was forwarded, after the delayed records of its thread are made."""
        await self.deferred_records.flush_thread(request.thread)
        return await self._read(
            request.incoming,
            request.located_body,
            client_scope=request.client_scope,
            known_length=request.terms.message_count,
        )

    async def _read(
        self,
        incoming: IncomingRequest,
        located_body: LocatedBody,
        *,
        client_scope: ClientScope,
        known_length: int = 0,
    ) -> ManagedHandler:
        """Read a request and find its thread; return its handler. Requests of a known thread are read in their order.

        `known_length`: number of messages that are known to be those of the thread and were recorded before.
        """
        match = located_body.match
        thread = None if match is None else match.cached_body.thread
        threads = self.threads
        async with threads.hold_thread_while_opening(thread):
            parsed_request = await self.reader.read(located_body)
            tool = self._recall_offers.choose_tool(
                incoming, located_body.slices, parsed_request.settings
            )
            request = ClientRequest(
                incoming, located_body, parsed_request, client_scope, recall_tool=tool
            )
            call = await threads.open(
                request.caller_history, request.settings, thread or "", known_length
            )
            self.reader.remember(call.thread_id, located_body, parsed_request)
            return ManagedHandler(
                self.threads,
                request,
                call,
                body_memory=self._body_memories.find_or_create(call.thread_id),
                mark_ttl=self._mark_ttl,
            )

    def _locate(self, incoming: IncomingRequest) -> LocatedBody:
        """Locate the fields and messages of a request's body."""
        origin = BodyOrigin.of(incoming.api, incoming.head.caller.tenant, incoming.head.headers)
        match = self.reader.bodies.find(origin, incoming.body.plain)
        return self.reader.locate(origin, incoming.body.plain, match)

    def _expand_own_items(self, incoming: IncomingRequest) -> IncomingRequest:
        """Replace our compaction items in the request with the messages that they represent."""
        if (
            incoming.mode != "managed"
            or incoming.api != "openai_responses"
            or not may_have_item(incoming.body.plain)
        ):
            return incoming
        key = self.setup.derive_summary_key(incoming.head.caller.tenant)
        expanded = expand_items(incoming.body.plain, key)
        if expanded is None:
            return incoming
        expanded_body = replace(
            incoming.body, raw=expanded.body, plain=expanded.body, located_body=None
        )
        return replace(
            incoming,
            body=expanded_body,
            leading_compaction=LeadingCompaction(expanded.item_key, expanded.end),
        )

    async def _try_record_later(self, request: ForwardedRequest, outcome: Outcome) -> bool:
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
        history = self.reader.read_history(located_body, len(located_body.history_messages))
        self.reader.remember_history(request.thread, located_body, history)
        next_forwarding_terms = continue_terms(
            terms, located_body, usage, answered_history=history.extend(identities)
        )
        self._body_memories.find_or_create(request.thread).forwarding_terms = next_forwarding_terms
        await self.deferred_records.defer(request, outcome, next_forwarding_terms.digest)
        return True

    def _may_wait(self, request: ForwardedRequest, outcome: Outcome) -> bool:
        """Return whether a record may wait: the thread ends where it did, and no other process gets its next call."""
        terms = self._body_memories.find_or_create(request.thread).forwarding_terms
        reply = outcome.reply
        return (
            terms is not None
            and terms.digest == request.terms.digest
            and outcome.is_success
            and reply is not None
            and reply.stop is not None
            and not outcome.estimated
            and not outcome.recall_usage
            and request.located_body.new_bytes <= MAX_LOOP_BYTES
            and self.deferred_records.can_defer(request)
            and self.setup.is_sole_writer()
        )

    async def _record_deferred(self, record: DeferredRecord) -> None:
        """Record the last request of a thread with everything since the previous record."""
        request = record.request
        with self.threads.pending_links.hold_session_while_reading(request.client_scope):
            handler = await self._read(
                request.incoming,
                request.located_body,
                client_scope=request.client_scope,
                known_length=record.stored_count,
            )
            self.threads.start_storing(handler.call, is_answered=True)
        await handler.record(record.outcome, record.earlier_usage)


def _find_client_scope(incoming: IncomingRequest, located_body: LocatedBody) -> ClientScope:
    head = incoming.head
    return find_client_scope(head.caller.tenant, head.headers, located_body.slices.fields)
