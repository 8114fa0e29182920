"""A store in which a thread is written by the holder of its lease only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from everthread.core.nodes import Node
from everthread.errors import LeaseLostError
from everthread.store.models import Continuation, Lease, NewMessage, Session, StoredMessage
from everthread.store.store import Store


class Fenced:
    """Every write to the thread goes with the lease held now. Other threads (subagents, branches) are not held.

    Reads, and writes that can do no harm twice, go to the store as they are.
    """

    def __init__(self, store: Store, thread: str) -> None:
        self.lease: Lease | None = None
        self._store = store
        self._thread = thread
        self._threads = {thread: thread}

    @property
    def as_store(self) -> Store:
        return cast("Store", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(self, session_id: str, new: Sequence[NewMessage], **_lease: Any) -> list[StoredMessage]:
        return await self._store.append(session_id, new, lease=await self._held(session_id))

    async def continue_session(self, session_id: str, *given: Any, **more: Any) -> Continuation:
        return await self._store.continue_session(session_id, *given, **more | {"lease": await self._held(session_id)})

    async def undo(self, session_id: str, **_lease: Any) -> Session:
        return await self._store.undo(session_id, lease=await self._held(session_id))

    async def end_session(self, session_id: str, reason: str, **_lease: Any) -> Session:
        return await self._store.end_session(session_id, reason, lease=await self._held(session_id))

    async def put_nodes(self, nodes: Sequence[Node], **_lease: Any) -> None:
        if nodes:
            await self._store.put_nodes(nodes, lease=await self._held(nodes[0].thread))

    async def _held(self, session_id: str) -> Lease | None:
        thread = self._threads.get(session_id)
        if thread is None:
            thread = self._threads[session_id] = (await self._store.session(session_id)).thread
        if thread != self._thread:
            return None
        if self.lease is None:
            raise LeaseLostError(f"the thread {thread} is not held by this process; nothing was written")
        return self.lease
