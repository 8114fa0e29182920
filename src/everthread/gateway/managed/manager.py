"""Decide on the request to send upstream, for a client that sends its whole history each time.

    manager = ProxyManager(CallerSetup(store, engine, engine_key, summarizer, window))
    turn = await manager.prepare(incoming)          # turn.sent: the client's bytes, or the beginning rewritten
    again = await turn.recover(400, error)          # after an error of the provider
    await turn.record(outcome)

The manager reads requests. What to do about them is decided in `thread/caller`.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from everthread.compaction.compaction_result import CompactionLevel
from everthread.errors import StoreError
from everthread.gateway.contracts import (
    Incoming,
    Outgoing,
    ProxyTurn,
    UnmanagedTurn,
)
from everthread.gateway.identify import find_scope
from everthread.gateway.managed.compaction_items import (
    TRIGGER,
    expand_items,
    make_item,
    may_have_item,
    read_item_key,
)
from everthread.gateway.managed.forwarded_turn import ForwardedTurn
from everthread.gateway.managed.forwarding import BodyMemories, forward, has_plans
from everthread.gateway.managed.managed_turn import ManagedTurn, TurnServices
from everthread.gateway.recall.recall_offer import RecallOffers
from everthread.gateway.request.client_request import ClientRequest
from everthread.gateway.request.known_bodies import BodyOrigin
from everthread.gateway.request.request_reader import (
    OUR_NAME,
    BodyOutline,
    RequestReader,
)
from everthread.thread.caller.caller_setup import CallerSetup
from everthread.thread.caller.caller_threads import CallerThreads
from everthread.thread.caller.message_caches import SizeCache
from everthread.thread.caller.sent_history import Replacement
from everthread.thread.finding.thread_match import Family


class ProxyManager:
    """The `Manager` that stores, matches and rewrites requests.

    `cache_markers`: whether to set cache marks for clients that set none. `recall`: whether to offer the tool `recall`.
    """

    def __init__(
        self, setup: CallerSetup, *, cache_markers: bool = True, recall: bool = True
    ) -> None:
        self.setup = setup
        sizes = SizeCache()
        self.threads = CallerThreads(setup, sizes)
        self.reader = RequestReader(
            sizes, call_in_process=self.threads.runner.call_if_free
        )
        self._bodies = BodyMemories()
        self._recall = RecallOffers(enabled=recall)
        mark_ttl = setup.options.cache_ttl if cache_markers else None
        self._services = TurnServices(self.threads, mark_ttl)

    # Reading

    def _locate(self, incoming: Incoming) -> BodyOutline:
        origin = BodyOrigin.of(incoming.api, incoming.tenant, incoming.headers)
        match = self.reader.find_known(origin, incoming.body)
        return self.reader.locate(origin, incoming.body, match)

    async def _open(self, incoming: Incoming, outline: BodyOutline) -> ManagedTurn:
        """Read a request and find its thread. Requests of a known thread are read in their order."""
        thread = None if outline.match is None else outline.match.known.thread
        async with self.threads.hold_thread_while_opening(thread):
            parsed_request = await self.reader.read(outline)
            tool = self._recall.choose_tool(
                incoming, parsed_request.sliced, parsed_request.frame
            )
            request = ClientRequest(incoming, parsed_request, tool)
            call = await self.threads.open(request.sent, request.frame)
            self.reader.remember(call.thread, outline, parsed_request)
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
            outline=None,
            replacement=Replacement(expanded.item_key, expanded.end),
        )

    # The moments of a request

    def forward_first(self, incoming: Incoming) -> ProxyTurn | None:
        outline = incoming.outline
        if outline is None or outline.match is None:
            return None
        thread = outline.match.known.thread
        memory = self.threads.find_memory(thread)
        if memory is None or has_plans(memory):
            return None
        outgoing = forward(
            incoming,
            outline,
            self._bodies.of(thread),
            reader=self.reader,
            ttl=self._services.mark_ttl,
        )
        if outgoing is None:
            return None
        scope = find_scope(incoming.headers, outline.sliced.fields)
        family = Family(incoming.tenant, scope)
        return ForwardedTurn(
            thread,
            outgoing,
            read=functools.partial(self._read_forwarded, incoming, outline, outgoing),
            hold_session=functools.partial(
                self.threads.hold_session_while_reading, family
            ),
        )

    async def _read_forwarded(
        self,
        incoming: Incoming,
        outline: BodyOutline,
        outgoing: Outgoing,
        is_answered: bool,  # noqa: FBT001 - given by `ForwardedTurn`
    ) -> ManagedTurn:
        """Read a request that was forwarded already, and start storing it."""
        turn = await self._open(incoming, outline)
        turn.sent = outgoing
        self.threads.start_storing(turn.call, is_answered=is_answered)
        return turn

    async def prepare(self, incoming: Incoming) -> ProxyTurn:
        if incoming.mode == "off":
            return UnmanagedTurn(incoming)
        outline = incoming.outline or self._locate(incoming)
        expanded_request = (
            self._expand_own_items(incoming)
            if OUR_NAME in outline.watched_words
            else incoming
        )
        if expanded_request is not incoming:
            outline = self._locate(expanded_request)
        turn = await self._open(expanded_request, outline)
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
                "the conversation cannot be stored, and what is not stored is not taken out of it"
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
        """End the background compactions and record their usage."""
        await self.threads.close()


def _compacted_messages(turn: ManagedTurn) -> list[Any]:
    """Return the system messages, then the compacted messages."""
    request = turn.request
    system_messages = [
        element.value for element in request.sliced.elements[: request.system_count]
    ]
    return [*system_messages, *turn.call.list_messages_to_send()]
