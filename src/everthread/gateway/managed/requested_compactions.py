"""Compact a conversation because its client asks for it, at `/v1/compact` or in the Responses protocol."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from everthread.compaction.compaction_result import CompactionLevel
from everthread.errors import StoreError
from everthread.gateway.compaction_items import COMPACTION_TRIGGER, make_item, read_item_key
from everthread.gateway.contracts import IncomingRequest
from everthread.gateway.managed.managed_handler import ManagedHandler
from everthread.thread.caller.caller_threads import CallerThreads

OpenRequest = Callable[[IncomingRequest], Coroutine[Any, Any, ManagedHandler]]
"""Reads a request and finds its thread."""


class RequestedCompactions:
    """Make compactions at the client's request."""

    def __init__(
        self,
        threads: CallerThreads,
        open_request: OpenRequest,
        *,
        derive_summary_key: Callable[[str], bytes],
        is_enabled: bool,
    ) -> None:
        self._threads = threads
        self._open_request = open_request
        self._derive_summary_key = derive_summary_key
        self._is_enabled = is_enabled

    async def compact(self, incoming: IncomingRequest, window: int | None = None) -> dict[str, Any]:
        """Compact a conversation now for this window.

        Return its messages, a receipt, and the thread for recall.
        """
        handler = await self._open_and_store(incoming)
        call = handler.call
        tokens_before = self._threads.count_tokens(call)
        reason = await self._compact_unless_forbidden(handler, window)
        receipt = {
            "changed": call.rewrite is not None,
            "reason": reason,
            "tokens_before": tokens_before,
            "tokens_after": self._threads.count_tokens(call),
            "messages_covered": call.covered_count,
            "thread": call.thread_id,
            "system_note": call.note,
        }
        return {
            "messages": _list_compacted_messages(handler),
            "receipt": receipt,
            "handle": call.thread_id,
        }

    async def make_item(self, incoming: IncomingRequest) -> tuple[dict[str, Any], int]:
        """Return an item that replaces a conversation, and the tokens of the messages in it.

        A later history that begins with the item continues the thread.
        """
        handler = await self._open_and_store(incoming)
        await self._compact_unless_forbidden(handler)
        key = self._derive_summary_key(incoming.head.caller.tenant)
        item = make_item(_list_compacted_messages(handler), key)
        await self._threads.keep_replacement(handler.call, read_item_key(item))
        return item, self._threads.count_tokens(handler.call)

    async def _open_and_store(self, incoming: IncomingRequest) -> ManagedHandler:
        handler = await self._open_request(incoming)
        await handler.call.recorder.store_request()
        if not handler.call.recorder.is_stored:
            raise StoreError("the conversation cannot be stored, so it is not compacted")
        return handler

    async def _compact_unless_forbidden(
        self, handler: ManagedHandler, window: int | None = None
    ) -> str:
        """Compact a conversation; return why it stays as it was, or an empty string if it was compacted."""
        return self._find_refusal_reason(handler) or await self._threads.compact_manually(
            handler.call, CompactionLevel.NORMAL, window
        )

    def _find_refusal_reason(self, handler: ManagedHandler) -> str:
        """Return why this conversation may not be compacted, or an empty string if it may."""
        mode = handler.request.incoming.mode
        reason = handler.request.unmanaged_reason
        if not self._is_enabled:
            return "compression is disabled (compression.enabled: false)"
        if mode != "managed":
            return f"requests of this key are not managed (mode {mode})"
        if reason not in ("", COMPACTION_TRIGGER):
            return f"the provider keeps or changes this history itself ({reason})"
        return ""


def _list_compacted_messages(handler: ManagedHandler) -> list[Any]:
    """Return the system messages, then the compacted messages."""
    request = handler.request
    system_messages = [message.value for message in request.slices.messages[: request.system_count]]
    return [*system_messages, *handler.call.list_messages_to_send()]
