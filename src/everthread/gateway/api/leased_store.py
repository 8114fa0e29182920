"""A store whose writes to one thread need the thread's lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.errors import LeaseLostError
from everthread.store.records import (
    Continuation,
    Lease,
    NewMessage,
    Session,
    StoredMessage,
)
from everthread.store.store import Store


class LeasedStore:
    """A store that writes to one thread under the thread's lease. Other threads (subagents, branches) need no lease.

    Other calls, which only read or are safe to repeat, are passed to the store unchanged.
    """

    def __init__(self, store: Store, thread_id: str) -> None:
        self.lease: Lease | None = None
        self._store = store
        self._thread_id = thread_id
        self._thread_id_by_session_id = {thread_id: thread_id}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(
        self, session_id: str, messages: Sequence[NewMessage], **_lease: Any
    ) -> list[StoredMessage]:
        return await self._store.append(
            session_id, messages, lease=await self._find_lease(session_id)
        )

    async def continue_session(
        self, session_id: str, *entries: Any, **options: Any
    ) -> Continuation:
        return await self._store.continue_session(
            session_id,
            *entries,
            **options | {"lease": await self._find_lease(session_id)},
        )

    async def undo(self, session_id: str, **_lease: Any) -> Session:
        return await self._store.undo(session_id, lease=await self._find_lease(session_id))

    async def end_session(self, session_id: str, reason: str, **_lease: Any) -> Session:
        return await self._store.end_session(
            session_id, reason, lease=await self._find_lease(session_id)
        )

    async def _find_lease(self, session_id: str) -> Lease | None:
        thread_id = self._thread_id_by_session_id.get(session_id)
        if thread_id is None:
            thread_id = self._thread_id_by_session_id[session_id] = (
                await self._store.load_session(session_id)
            ).thread
        if thread_id != self._thread_id:
            return None
        if self.lease is None:
            raise LeaseLostError(
                f"the thread {thread_id} is not held by this process; nothing was written"
            )
        return self.lease
