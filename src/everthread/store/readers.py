"""A few threads read, each with a connection of its own and a snapshot for every question."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from everthread.errors import EverthreadError, StoreClosedError
from everthread.store.database import Connection, Database, Tx
from everthread.store.writer import PATIENCE, again

T = TypeVar("T")

THREADS = 4


class Readers:
    """The reading threads of a store. They start when they are needed."""

    def __init__(self, database: Database, *, patience: float = PATIENCE) -> None:
        self._database = database
        self._patience = patience
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="everthread-reader")
        self._local = threading.local()
        self._open: set[Connection] = set()
        self._lock = threading.Lock()
        self._closed = False

    async def read(self, work: Callable[[Tx], T]) -> T:
        if self._closed:
            raise StoreClosedError("the store was closed; open it again to read")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, work)

    def close(self) -> None:
        """Finish what is under way, then stop. Blocks until done."""
        self._closed = True
        self._pool.shutdown(wait=True)
        for connection in self._open:
            connection.close()
        self._open.clear()

    def _read(self, work: Callable[[Tx], T]) -> T:
        deadline = time.monotonic() + self._patience
        attempt = 0
        while True:
            try:
                return self._attempt(work)
            except EverthreadError:
                raise
            except Exception as error:
                self._forget()
                attempt += 1
                if time.monotonic() > deadline or not self._database.is_passing(error):
                    raise self._database.explain(error) from error
                again("a read", error, attempt)

    def _attempt(self, work: Callable[[Tx], T]) -> T:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._database.connect_reader()
            with self._lock:
                self._open.add(connection)
        connection.begin()
        try:
            return work(connection)
        finally:
            connection.rollback()

    def _forget(self) -> None:
        """Give up this thread's connection: whatever happened to it, the next one is fresh."""
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            with self._lock:
                self._open.discard(connection)
            connection.close()
