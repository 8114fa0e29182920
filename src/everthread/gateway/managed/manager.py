"""Decide on the request to send upstream, for a client that sends its whole history each time.

    manager = ProxyManager(CallerSetup(store=store, …))
    handler = await manager.prepare(incoming)          # handler.sent: the client's bytes, or the beginning rewritten
    again = await handler.recover(400, error)          # after an error of the provider
    await handler.record(outcome)

The manager reads requests. What to do about them is decided in `thread/caller`.
"""

from __future__ import annotations

from everthread.gateway.contracts import Incoming, RequestHandler, UnmanagedHandler
from everthread.gateway.identify import find_client_scope
from everthread.gateway.managed.deferred_records import MAX_DELAY_SECONDS
from everthread.gateway.managed.forwarded_requests import ForwardedRequests
from everthread.gateway.managed.managed_handler import HandlerServices, ManagedHandler
from everthread.gateway.managed.request_opener import RequestOpener
from everthread.gateway.managed.requested_compactions import RequestedCompactions
from everthread.gateway.recall.recall_offer import RecallOffers
from everthread.gateway.request.request_reader import (
    OUR_NAME,
    RequestReader,
)
from everthread.thread.caller.caller_setup import CallerSetup
from everthread.thread.caller.caller_threads import CallerThreads
from everthread.thread.caller.message_caches import SizeCache


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
        mark_ttl = setup.options.cache_ttl if set_cache_marks else None
        services = HandlerServices(self.threads, mark_ttl)
        recall_offers = RecallOffers(is_enabled=offer_recall)
        self._opener = RequestOpener(services, self.reader, recall_offers)
        self._forwarded = ForwardedRequests(self._opener, record_delay=record_delay)
        self.deferred_records = self._forwarded.deferred_records
        self.requested_compactions = RequestedCompactions(self.threads, self._open)

    def forward_first(self, incoming: Incoming) -> RequestHandler | None:
        return self._forwarded.forward(incoming)

    async def prepare(self, incoming: Incoming) -> RequestHandler:
        if incoming.mode == "off":
            return UnmanagedHandler(incoming)
        handler = await self._open(incoming)
        if not len(handler.call.caller_history):
            return UnmanagedHandler(incoming)  # a request without messages has no thread
        await handler.prepare()
        return handler

    async def _open(self, incoming: Incoming) -> ManagedHandler:
        """Read a request and find its thread, after the delayed records of its session are made.

        Compaction items made by a gateway are replaced with their messages first.
        """
        request = incoming
        located_body = incoming.located_body or self._opener.locate(incoming)
        if OUR_NAME in located_body.watched_words:
            request = self._opener.expand_own_items(incoming)
        is_expanded = request is not incoming
        if is_expanded:
            located_body = self._opener.locate(request)
        fields = located_body.sliced_body.fields
        client_scope = find_client_scope(incoming.tenant, incoming.headers, fields)
        await self.deferred_records.flush_session(client_scope)
        handler = await self._opener.open(request, located_body, client_scope)
        handler.is_expanded = is_expanded
        return handler

    async def close(self) -> None:
        """Make all delayed records; end the background compactions and record their usage."""
        await self.deferred_records.flush_all()
        await self.threads.close()
