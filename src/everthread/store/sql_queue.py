"""Turns over any SQL database: the part of `SqlStore` that is about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from everthread.store.base import Lease
from everthread.store.database import Tx
from everthread.store.operations import turns_queue
from everthread.store.queued import Begun, NewTurn, Turn, TurnState

T = TypeVar("T")


class SqlQueue(ABC):
    """`QueueStore` over a database."""

    _clock: Callable[[], float]

    @abstractmethod
    async def _write(self, work: Callable[[Tx], T], *, session: str | None = None) -> T: ...

    @abstractmethod
    async def _read(self, work: Callable[[Tx], T]) -> T: ...

    async def queue_turn(self, new: NewTurn, *, most: int) -> Turn | None:
        now = self._clock()
        return await self._write(lambda tx: turns_queue.queue(tx, new, most, now), session=new.thread)

    async def turn(self, turn_id: str, *, tenant: str) -> Turn:
        return await self._read(lambda tx: turns_queue.get(tx, turn_id, tenant))

    async def turns(self, thread: str, *, only_open: bool = False, limit: int = 50, offset: int = 0) -> list[Turn]:
        return await self._read(lambda tx: turns_queue.listed(tx, thread, limit, offset, only_open=only_open))

    async def begin_turn(self, lease: Lease) -> Begun:
        now = self._clock()
        return await self._write(lambda tx: turns_queue.begin(tx, lease, now), session=lease.thread)

    async def end_turn(self, turn_id: str, state: TurnState, result: Mapping[str, Any], *, lease: Lease) -> Turn:
        now = self._clock()
        return await self._write(
            lambda tx: turns_queue.end(tx, turn_id, state, result, lease, now), session=lease.thread
        )

    async def cancel_turn(self, turn_id: str, *, tenant: str) -> Turn:
        now = self._clock()
        return await self._write(lambda tx: turns_queue.cancel(tx, turn_id, tenant, now))

    async def idle_queues(self, *, limit: int = 50) -> list[str]:
        return await self._read(lambda tx: turns_queue.idle(tx, limit))
