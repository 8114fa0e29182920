"""The stored messages of a conversation, as its engine sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everthread.compaction.engine import Original
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.lookup.summary_originals import load_message

if TYPE_CHECKING:
    from everthread.conversation.conversation_state import ConversationState


class SessionArchive(StoreLookup):
    """`Lookup` and `Archive` of one conversation, for its engine."""

    def __init__(self, state: ConversationState) -> None:
        super().__init__(
            state.setup.store,
            state.session.tenant,
            state.session.thread,
            reach="all",
        )
        self._state = state

    async def originals(self, ids: Sequence[int]) -> list[Original]:
        """Return the originals of these messages; messages in view are not read again.

        For a shortened message, return the message that it replaces.
        """
        in_view = {stored_message.id: stored_message for stored_message in self._state.stored}
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
        records = await self.store.compactions(self._state.session.thread)
        return sorted(
            {
                number
                for record in records
                if record.reverted_at is None
                for number in record.record.covered
            }
        )
