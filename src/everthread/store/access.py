"""How the objects of a store read and write: `StoreAccess` has the database's threads, `StoreTopic` uses them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from everthread.store.database import Database, Tx
from everthread.store.reader_pool import ReaderPool
from everthread.store.search.background_indexer import BackgroundIndexer
from everthread.store.writer import RETRY_SECONDS, StoreWriter

P = ParamSpec("P")
T = TypeVar("T")


class StoreAccess:
    """The reading threads, the writing thread and the indexer of one store."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = time.time,
        retry_seconds: float = RETRY_SECONDS,
        max_silence_seconds: float | None = None,
    ) -> None:
        self.database = database
        self.clock = clock
        self.writer = StoreWriter(database, retry_seconds=retry_seconds)
        self.readers = ReaderPool(
            database,
            retry_seconds=retry_seconds,
            max_silence_seconds=max_silence_seconds,
        )
        self.indexer = BackgroundIndexer(database, readers=self.readers, writer=self.writer)

    async def read(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **keywords: P.kwargs
    ) -> T:
        """Run `work` in one snapshot, and return its result."""
        return await self.readers.read(lambda tx: work(tx, *args, **keywords))

    async def write(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **keywords: P.kwargs
    ) -> T:
        """Run `work`, which changes no thread, and return its result once the changes are on the disk."""
        return await self.writer.write(lambda tx: work(tx, *args, **keywords))

    async def change_thread(
        self,
        thread_id: str,
        work: Callable[Concatenate[Tx, P], T],
        *args: P.args,
        **keywords: P.kwargs,
    ) -> T:
        """Run `work`, which changes a thread, and return its result once the changes are on the disk."""
        return await self.writer.write(lambda tx: work(tx, *args, **keywords), thread_id=thread_id)


class StoreTopic:
    """The base of the objects for one topic of a store."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access
