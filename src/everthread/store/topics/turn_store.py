"""`store.turns`: turns that wait to be answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.store.access import StoreTopic
from everthread.store.records import Lease
from everthread.store.sql import turn_queue
from everthread.store.turn_records import NewQueuedTurn, QueuedTurn, TurnClaim, TurnState


class TurnStore(StoreTopic):
    """Turns that wait to be answered."""

    async def queue_turn(self, new: NewQueuedTurn, *, max_waiting: int) -> QueuedTurn | None:
        """Queue a turn, and return it, or the stored turn with the same key, or None if `max_waiting` turns wait."""
        return await self._access.change_thread(
            new.thread, turn_queue.queue_turn, new, max_waiting, self._access.clock()
        )

    async def load_turn(self, turn_id: str, *, tenant: str) -> QueuedTurn:
        """Return a turn; raise `UnknownIdError` if the tenant has none with this id."""
        return await self._access.read(turn_queue.load_turn, turn_id, tenant=tenant)

    async def list_turns(
        self, thread_id: str, *, only_open: bool = False, limit: int = 50, offset: int = 0
    ) -> list[QueuedTurn]:
        """Return the turns of a thread, the newest first; with `only_open`, the open ones in queue order."""
        return await self._access.read(
            turn_queue.list_turns, thread_id, only_open=only_open, limit=limit, offset=offset
        )

    async def begin_turn(self, lease: Lease) -> TurnClaim:
        """Begin the first waiting turn. If the process of a running turn is gone, return lost turns instead.

        The caller must end lost turns first.
        """
        return await self._access.change_thread(
            lease.thread, turn_queue.begin_turn, lease, self._access.clock()
        )

    async def end_turn(
        self, turn_id: str, state: TurnState, result: Mapping[str, Any], *, lease: Lease
    ) -> QueuedTurn:
        """Record how a running turn ended; a turn that has ended is not changed."""
        return await self._access.change_thread(
            lease.thread,
            turn_queue.end_turn,
            turn_id,
            state,
            result=result,
            lease=lease,
            now=self._access.clock(),
        )

    async def cancel_turn(self, turn_id: str, *, tenant: str) -> QueuedTurn:
        """Cancel a waiting turn. For a running turn, ask the process that runs it to cancel."""
        return await self._access.write(
            turn_queue.cancel_turn, self._access.clock(), turn_id, tenant=tenant
        )

    async def list_idle_queues(self, *, limit: int = 50) -> list[str]:
        """Return threads that have open turns and no valid lease."""
        return await self._access.read(turn_queue.list_idle_queues, limit=limit)
