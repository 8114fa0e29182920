"""The stored messages of a conversation, as its engine sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everthread.compaction.engine import Original
from everthread.store.records import StoredMessage
from everthread.store.store import Store
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.lookup.summary_originals import load_message


class SessionArchive(StoreLookup):
    """`Lookup` and `Archive` of one conversation, for its engine."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        thread: str,
        list_messages_in_view: Callable[[], Sequence[StoredMessage]],
    ) -> None:
        super().__init__(store, tenant, thread, reach="all")
        self._thread = thread
        self._list_messages_in_view = list_messages_in_view

    async def originals(self, ids: Sequence[int]) -> list[Original]:
        """Return the originals of these messages; messages in view are not read again.

        For a shortened message, return the message that it replaces.
        """
        in_view = {message.id: message for message in self._list_messages_in_view()}
        originals: list[Original] = []
        for message_id in ids:
            stored_message = in_view.get(message_id) or await load_message(
                self.store, message_id, self.tenant
            )
            if stored_message is not None and stored_message.origin is not None:
                stored_message = await load_message(self.store, stored_message.origin, self.tenant)
            if stored_message is not None:
                originals.append(
                    Original(stored_message.id, stored_message.body, stored_message.created)
                )
        return originals

    async def covered(self) -> list[int]:
        records = await self.store.list_compactions(self._thread)
        covered_ids: set[int] = set()
        for record in records:
            if record.reverted_at is None:
                covered_ids.update(record.record.covered)
        return sorted(covered_ids)
