"""Indexing in a process of its own: killed, failing, or beside another one."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal

import pytest

from everthread.errors import StoreError
from everthread.store.database import Database
from everthread.store.search.index_queue import index_waiting
from everthread.store.sqlite import SqliteDatabase
from everthread.store.store import Store
from everthread.thread.engines.worker_processes import WorkerProcesses
from tests.store.messages import new_thread
from tests.store.searching import search
from tests.store.tables import count_rows

WORDS = [f"needle {number}" for number in range(30)]


def count_waiting(store: Store) -> int:
    return count_rows(store, "unindexed")


async def wait_until_indexed(store: Store) -> None:
    async with asyncio.timeout(60):
        while count_waiting(store):  # noqa: ASYNC110 - changed by another process
            await asyncio.sleep(0.01)


def copy_of(database: Database) -> Database:
    """Return the database as another process gets it."""
    copy: Database = pickle.loads(pickle.dumps(database))  # noqa: S301 - our own
    return copy


def index_all(store: Store) -> None:
    while index_waiting(copy_of(store.database), 5):
        pass


def find_own_id(database: Database, seconds: float) -> int:
    return os.getpid()


class IndexWorker:
    """A worker process that indexes a store; `is_done` is set when nothing is left, or it failed."""

    def __init__(self, store: Store) -> None:
        self.processes = WorkerProcesses(1)
        self.is_done = asyncio.Event()
        store.use_index_process(self.index)

    async def index(self, database: Database, seconds: float) -> bool:
        is_left = False
        try:
            is_left = await self.processes.call(index_waiting, database, seconds)
        finally:
            if not is_left:
                self.is_done.set()
        return is_left


async def test_another_process_indexes_what_is_appended(store: Store) -> None:
    worker = IndexWorker(store)
    await new_thread(store, *WORDS)
    await worker.is_done.wait()
    assert not count_waiting(store)
    found = await search(store, "needle", limit=100)
    assert len(found) == len(WORDS)
    await worker.processes.close(10)


async def test_indexing_continues_after_its_process_was_killed(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    worker = IndexWorker(store)
    await new_thread(store, *WORDS)
    await worker.is_done.wait()
    os.kill(await worker.processes.call(find_own_id, store.database, 0), signal.SIGKILL)
    worker.is_done.clear()
    await new_thread(store, *WORDS)
    await worker.is_done.wait()
    await wait_until_indexed(store)
    hits = await search(store, "needle", limit=100)
    assert len(hits) == 2 * len(WORDS)
    assert all("indexing in this process" in one for one in caplog.messages)
    await worker.processes.close(10)


async def test_a_failing_process_is_replaced_by_this_one(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_database: Database, _seconds: float) -> bool:
        raise StoreError("the folder is gone")

    store.use_index_process(fail)
    await new_thread(store, *WORDS)
    await wait_until_indexed(store)
    assert "indexing in this process: the folder is gone" in caplog.text


async def test_one_process_at_a_time_prepares_the_texts_of_a_file(
    store: Store,
) -> None:
    await new_thread(store, *WORDS)
    with store.database.lock_indexing() as is_locked:
        assert is_locked
        if isinstance(store.database, SqliteDatabase):
            assert index_waiting(copy_of(store.database), 5)
            assert count_waiting(store)
    index_all(store)
    assert not count_waiting(store)


async def test_an_error_is_explained_and_the_next_try_indexes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await new_thread(store, *WORDS)

    def refuse(*_given: object) -> None:
        raise OSError("input/output error")

    module = "everthread.store.search.index_queue.prepare_index"
    with monkeypatch.context() as patch:
        patch.setattr(module, refuse)
        with pytest.raises((StoreError, OSError), match="input/output error"):
            index_waiting(copy_of(store.database), 5)
    index_all(store)
    assert not count_waiting(store)
