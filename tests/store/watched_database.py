"""A real database whose writer a test can watch and hold."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from everthread.store.store import Store
from everthread.store.writer import StoreWriter

MAX_WAIT_SECONDS = 60.0


class WatchedDatabase:
    """A database that counts commits, and can keep its writer waiting."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.commits = 0
        self.writer_waits = threading.Event()
        self.writer_may_begin = threading.Event()
        self.writer_may_begin.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def connect_writer(self) -> Any:
        connection = self._database.connect_writer()
        begin = connection.begin
        commit = connection.commit

        def wait_and_begin() -> None:
            if not self.writer_may_begin.is_set():
                self.writer_waits.set()
                self.writer_may_begin.wait(MAX_WAIT_SECONDS)
            begin()

        def count_and_commit() -> None:
            self.commits += 1
            commit()

        connection.begin = wait_and_begin
        connection.commit = count_and_commit
        return connection

    @contextlib.asynccontextmanager
    async def hold_writer(self, write: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
        """Keep the writer busy with one write, so that calls made meanwhile become one batch."""
        self.writer_may_begin.clear()
        first = asyncio.ensure_future(write)
        await asyncio.to_thread(self.writer_waits.wait, MAX_WAIT_SECONDS)
        yield
        await asyncio.sleep(0)  # every started call has been queued
        assert not first.done()
        self.writer_waits.clear()
        self.writer_may_begin.set()
        await first


def keep_busy(store: Store) -> Any:
    """Hold the writer of a store with a watched database."""
    database: Any = store.database
    return database.hold_writer(store.state.put_state("scope", "first", 1))


async def call_together(store: Store, *calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return the results, or errors, of calls that are queued while the writer of a store is busy."""
    async with keep_busy(store):
        tasks = [asyncio.ensure_future(call) for call in calls]
    return await asyncio.gather(*tasks, return_exceptions=True)


async def write_together(
    database: Any, writer: StoreWriter, *works: Callable[[Any], None]
) -> list[Any]:
    """Return the results, or errors, of writes that are queued while the writer is busy."""
    async with database.hold_writer(writer.write(lambda _: None)):
        tasks = [asyncio.ensure_future(writer.write(work)) for work in works]
    return await asyncio.gather(*tasks, return_exceptions=True)
