"""What was fetched again, over any SQL database: the part of `SqlStore` that is about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from everthread.store.database import Tx
from everthread.store.operations import regrets
from everthread.store.regretted import RegretRecord

T = TypeVar("T")


class SqlRegrets(ABC):
    """`RegrettingStore` over a database."""

    _clock: Callable[[], float]

    @abstractmethod
    async def _write(self, work: Callable[[Tx], T], *, session: str | None = None) -> T: ...

    @abstractmethod
    async def _read(self, work: Callable[[Tx], T]) -> T: ...

    async def note_regret(self, session_id: str, kind: str, what: str, *, call_id: str = "") -> bool:
        record = RegretRecord(session_id, kind, what, call_id, self._clock())
        return await self._write(lambda tx: regrets.note(tx, record), session=session_id)

    async def regrets(self, thread: str) -> list[RegretRecord]:
        return await self._read(lambda tx: regrets.of_thread(tx, thread))
