"""Read a request and find its thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from everthread.gateway.compaction_items import expand_items, may_have_item
from everthread.gateway.contracts import Incoming
from everthread.gateway.managed.forwarding import BodyMemories
from everthread.gateway.managed.managed_handler import HandlerServices, ManagedHandler
from everthread.gateway.recall.recall_offer import RecallOffers
from everthread.gateway.request.body_cache import BodyOrigin
from everthread.gateway.request.client_request import ClientRequest
from everthread.gateway.request.request_reader import LocatedBody, RequestReader
from everthread.thread.caller.caller_request import LeadingCompaction
from everthread.thread.matching.thread_match import ClientScope


class RequestOpener:
    """Make the handlers of managed requests, which know their thread."""

    def __init__(
        self,
        services: HandlerServices,
        reader: RequestReader,
        recall_offers: RecallOffers,
        find_summary_key: Callable[[str], bytes],
    ) -> None:
        self.services = services
        self.reader = reader
        self.body_memories = BodyMemories()
        self._recall_offers = recall_offers
        self._find_summary_key = find_summary_key

    def locate(self, incoming: Incoming) -> LocatedBody:
        """Locate the fields and messages of a request's body."""
        origin = BodyOrigin.of(incoming.api, incoming.tenant, incoming.headers)
        match = self.reader.bodies.find(origin, incoming.body)
        return self.reader.locate(origin, incoming.body, match)

    async def open(
        self,
        incoming: Incoming,
        located_body: LocatedBody,
        client_scope: ClientScope,
        *,
        known_length: int = 0,
    ) -> ManagedHandler:
        """Read a request and find its thread. Requests of a known thread are read in their order.

        `known_length`: number of messages that are known to be those of the thread and were recorded before.
        """
        match = located_body.match
        thread = None if match is None else match.cached_body.thread
        threads = self.services.threads
        async with threads.hold_thread_while_opening(thread):
            parsed_request = await self.reader.read(located_body)
            tool = self._recall_offers.choose_tool(
                incoming, located_body.sliced_body, parsed_request.settings
            )
            request = ClientRequest(incoming, parsed_request, client_scope, tool)
            call = await threads.open(
                request.caller_history, request.settings, thread or "", known_length
            )
            self.reader.remember(call.thread, parsed_request)
            body_memory = self.body_memories.find_or_create(call.thread)
            return ManagedHandler(self.services, request, call, body_memory)

    def expand_own_items(self, incoming: Incoming) -> Incoming:
        """Replace our compaction items in the request with the messages that they represent."""
        if (
            incoming.mode != "managed"
            or incoming.api != "openai_responses"
            or not may_have_item(incoming.body)
        ):
            return incoming
        key = self._find_summary_key(incoming.tenant)
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
