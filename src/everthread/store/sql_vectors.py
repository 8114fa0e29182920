"""Vectors over any SQL database: the part of `SqlStore` that is about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from everthread.store.database import Tx
from everthread.store.operations import vectors

T = TypeVar("T")


class SqlVectors(ABC):
    """The part of `RecallingStore` that is about vectors, over a database."""

    @abstractmethod
    async def _write(self, work: Callable[[Tx], T], *, session: str | None = None) -> T: ...

    @abstractmethod
    async def _read(self, work: Callable[[Tx], T]) -> T: ...

    @abstractmethod
    async def _index_all(self) -> None: ...

    async def without_vectors(
        self, thread: str, model: str, *, seen: Collection[int] = (), limit: int = 64
    ) -> list[tuple[int, str]]:
        await self._index_all()
        return await self._read(lambda tx: vectors.without(tx, thread, model, frozenset(seen), limit))

    async def put_vectors(self, model: str, made: Sequence[tuple[int, bytes]]) -> None:
        await self._write(lambda tx: vectors.put(tx, model, made))
