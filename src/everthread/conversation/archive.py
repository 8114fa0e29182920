"""What the store keeps of a running thread, for an engine that works on more than the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everthread.compaction.engine import Original
from everthread.conversation.lookup import StoreLookup
from everthread.conversation.originals import ThreadGraph
from everthread.errors import UnknownIdError
from everthread.store.base import StoredMessage

if TYPE_CHECKING:
    from everthread.conversation.live import Live


class SessionArchive(ThreadGraph):
    """`engines.base.Archive` of one conversation."""

    def __init__(self, live: Live, lookup: StoreLookup) -> None:
        super().__init__(lookup)
        self._live = live

    async def originals(self, ids: Sequence[int]) -> list[Original]:
        """What is in view is at hand; of a smaller form the message it stands for is given."""
        shown = {stored.id: stored for stored in self._live.stored}
        found: list[Original] = []
        for number in ids:
            stored = shown.get(number) or await self._stored(number)
            if stored is not None and stored.origin is not None:
                stored = await self._stored(stored.origin)
            if stored is not None:
                found.append(Original(stored.id, stored.body, stored.created))
        return found

    async def covered(self) -> list[int]:
        records = await self._live.setup.store.compactions(self._live.session.thread)
        return sorted({number for record in records if record.reverted is None for number in record.record.covered})

    async def _stored(self, number: int) -> StoredMessage | None:
        try:
            return await self._live.setup.store.message(number, tenant=self._live.session.tenant)
        except UnknownIdError:
            return None
