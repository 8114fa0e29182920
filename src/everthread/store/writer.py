"""The writing thread of a store. It runs all queued items in one transaction, with a savepoint for each if one fails.

Thus many small writes cost one commit, and each thread's writes keep the order of their calls. Queued items are
committed even if their caller is cancelled. Callers are woken once per batch. A batch that fails for a transient reason
(a busy file, a deadlock, a lost connection) is retried as a whole; if the answer to its commit was lost, the writer
first asks the database for the outcome.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everthread.errors import StoreClosedError
from everthread.store.database import Connection, Database, Tx
from everthread.store.sql.session_rows import find_threads

T = TypeVar("T")

log = logging.getLogger(__name__)
MAX_BATCH_ITEMS = 512
SYNC_DELAY_SECONDS = 0.05
"""Seconds until a commit is on the disk if no caller waits for it."""
RETRY_SECONDS = 30.0
"""Seconds for which reads and writes are retried before their callers get the error."""
MAX_CLOSE_SECONDS = 5.0
"""Seconds that a running read or write has to finish when the store is closed."""
BatchWork = Callable[[Tx, list[Any]], list[Any]]
"""Work for several callers at once, with a result for each."""


@dataclass(slots=True)
class _WriteItem:
    """A write that a caller waits for."""

    run_work: Callable[[Tx], Any]
    batch_work: BatchWork | None
    """Work that is done once for several requests, or None if the item cannot be combined with others."""
    request: Any
    """The argument of `batch_work`."""
    thread_id: str | None
    """A session of the thread that is changed."""
    prepare: Callable[[], None] | None
    """Called before the transaction."""
    loop: asyncio.AbstractEventLoop
    waiter: asyncio.Future[Any]
    returns_before_sync: bool = False
    """Whether the caller is answered after the commit, before the item is on the disk."""
    can_sync_later: bool = False
    """Whether the item is synced to the disk only together with later items."""
    result: Any = None
    error: BaseException | None = field(default=None)


class StoreWriter:
    """The writing thread of a store. Started with the first write."""

    def __init__(self, database: Database, *, retry_seconds: float = RETRY_SECONDS) -> None:
        self._database = database
        self._retry_seconds = retry_seconds
        self._queue: queue.SimpleQueue[_WriteItem | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._closed = False
        self.answered_at = 0.0
        """When the database last accepted a write, on the monotonic clock."""

    async def write(
        self,
        work: Callable[[Tx], T],
        *,
        thread_id: str | None = None,
        prepare: Callable[[], None] | None = None,
        return_before_sync: bool = False,
        can_sync_later: bool = False,
    ) -> T:
        """Run `work` in a transaction, and return its result once the changes are on the disk.

        `thread_id`: a session of the thread that is changed. `prepare`: called in the writing thread, before the
        transaction. `return_before_sync`: return once the changes are committed. They survive the end of this process,
        but within `SYNC_DELAY_SECONDS` not a failure of the machine. `can_sync_later`: like `return_before_sync`, and
        the changes reach the disk only with later writes.
        """
        loop, waiter = _new_waiter()
        item = _WriteItem(
            work,
            batch_work=None,
            request=None,
            thread_id=thread_id,
            prepare=prepare,
            loop=loop,
            waiter=waiter,
            returns_before_sync=return_before_sync or can_sync_later,
            can_sync_later=can_sync_later,
        )
        result: T = await self._enqueue(item)
        return result

    async def write_together(
        self,
        batch_work: BatchWork,
        request: Any,
        *,
        thread_id: str,
        prepare: Callable[[], None],
    ) -> Any:
        """Like `write`, but combine simultaneous requests to the same `batch_work` in one call.

        Appends by 32 writers take a sixth of the time that way on PostgreSQL, which then gets a few statements for all.
        If the call fails, each request is done alone, and only the caller at fault gets the error.
        """
        loop, waiter = _new_waiter()
        item = _WriteItem(
            lambda tx: batch_work(tx, [request])[0],
            batch_work=batch_work,
            request=request,
            thread_id=thread_id,
            prepare=prepare,
            loop=loop,
            waiter=waiter,
        )
        return await self._enqueue(item)

    async def _enqueue(self, item: _WriteItem) -> Any:
        with self._start_lock:
            if self._closed:
                raise StoreClosedError("the store was closed; open it again to write")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="everthread-writer", daemon=True
                )
                self._thread.start()
            self._queue.put(item)
        return await item.waiter

    def close(self) -> None:
        """Write all queued items, then stop the thread. Break the connection if that takes longer than the retries."""
        with self._start_lock:
            self._closed = True
            thread = self._thread
            if thread is not None:
                self._queue.put(None)
        if thread is not None:
            thread.join(self._retry_seconds)
            while thread.is_alive():
                self.fail_all()
                thread.join(MAX_CLOSE_SECONDS)

    def fail_all(self) -> None:
        """Break the connections; running and queued writes fail at their first error."""
        self._retry_seconds = 0.0
        self._database.interrupt()

    def _run(self) -> None:
        """Write batches until the store is closed; sync to the disk as soon as a caller waits for it."""
        connection: Connection | None = None
        sync_time: float | None = None
        """When commits must be on the disk at the latest."""
        is_running = True
        while is_running:
            batch, is_running = self._take_batch(sync_time)
            waiting_items = [item for item in batch if not item.returns_before_sync]
            if batch:
                connection = self._write_batch(connection, batch)
                _answer_callers([item for item in batch if item.returns_before_sync])
                if sync_time is None and not all(item.can_sync_later for item in batch):
                    sync_time = time.monotonic() + SYNC_DELAY_SECONDS
            if (
                waiting_items
                or not is_running
                or (sync_time is not None and time.monotonic() >= sync_time)
            ):
                connection = self._sync(connection, waiting_items)
                sync_time = None
                _answer_callers(waiting_items)
                if connection is not None:
                    connection.maintain()
        if connection is not None:
            connection.close()

    def _take_batch(self, sync_time: float | None) -> tuple[list[_WriteItem], bool]:
        """Return up to a full batch of queued items, and whether the thread continues.

        The batch is empty if no item is queued before `sync_time`.
        """
        batch: list[_WriteItem] = []
        try:
            item = self._queue.get(
                timeout=None if sync_time is None else max(0.0, sync_time - time.monotonic())
            )
            while item is not None:
                batch.append(item)
                if len(batch) >= MAX_BATCH_ITEMS:
                    return batch, True
                item = self._queue.get_nowait()
        except queue.Empty:
            return batch, True
        return batch, False

    def _write_batch(
        self, connection: Connection | None, batch: list[_WriteItem]
    ) -> Connection | None:
        """Run all items in one transaction; retry after a transient error. Store other errors in their items."""
        for item in batch:
            _prepare_item(item)
        ready_items = [item for item in batch if item.error is None]
        start_time = time.monotonic()
        attempt = 0
        in_doubt: int | None = None
        while ready_items:
            try:
                connection = connection or self._database.connect_writer()
                if in_doubt is None or not connection.was_committed(in_doubt):
                    in_doubt = None
                    self._try_batch(connection, ready_items)
                self.answered_at = time.monotonic()
                break
            except BaseException as error:  # noqa: BLE001 - every caller of the batch gets the error
                in_doubt = (connection.in_doubt if connection else None) or in_doubt
                connection = _reset_connection(connection)
                attempt += 1
                if (
                    self._database.is_transient(error)
                    and time.monotonic() < start_time + self._retry_seconds
                ):
                    wait_before_retry(f"a write of {len(ready_items)} item(s)", error, attempt)
                    continue
                for item in ready_items:
                    item.error = self._database.explain(error)
                break
        return connection

    def _sync(
        self, connection: Connection | None, waiting_items: list[_WriteItem]
    ) -> Connection | None:
        """Sync commits to the disk, and return the connection. If syncing fails, waiting callers get the error."""
        try:
            if connection is not None:
                connection.sync()
        except Exception as error:  # noqa: BLE001 - every caller of the batch gets the error
            for item in waiting_items:
                item.error = item.error or self._database.explain(error)
            return _reset_connection(connection)
        return connection

    def _try_batch(self, connection: Connection, batch: list[_WriteItem]) -> None:
        """Run the batch in one transaction: first without savepoints, and if an item fails, with one for each item."""
        if len(batch) > 1 and self._run_without_savepoints(connection, batch):
            return
        connection.begin()
        if len(batch) == 1:
            _run_group(connection, batch)
        else:
            for group in _group_items(_order_by_thread(connection, batch)):
                if not self._run_in_savepoint(connection, group):
                    for item in group:
                        self._run_in_savepoint(connection, [item])
        connection.commit()

    def _run_without_savepoints(self, connection: Connection, batch: list[_WriteItem]) -> bool:
        """Run the batch without savepoints; if an item fails, undo everything and return False."""
        connection.begin()
        try:
            for group in _group_items(_order_by_thread(connection, batch)):
                _run_group(connection, group)
            connection.commit()
        except Exception as error:
            if self._database.is_transient(error):
                raise
            log.debug("%d writes are retried one by one: %s", len(batch), error)
            connection.rollback()
            return False
        return True

    def _run_in_savepoint(self, connection: Connection, group: list[_WriteItem]) -> bool:
        """Run items in one savepoint. If one of several fails, undo all of them and return False.

        If a single item fails, its caller gets the error and the rest of the batch continues.
        """
        connection.savepoint()
        try:
            _run_group(connection, group)
            connection.release()
        except Exception as error:
            if self._database.is_transient(error) or not connection.in_transaction:
                raise  # the whole batch must be retried
            connection.rollback_to_savepoint()
            if len(group) > 1:
                log.debug("%d writes are retried one by one: %s", len(group), error)
                return False
            group[0].error = self._database.explain(error)
        return True


def _new_waiter() -> tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]:
    loop = asyncio.get_running_loop()
    return loop, loop.create_future()


def _group_items(items: list[_WriteItem]) -> Iterator[list[_WriteItem]]:
    """Yield groups of consecutive items that one call can do, and every other item alone."""
    for _, group in itertools.groupby(
        enumerate(items),
        lambda numbered_item: numbered_item[1].batch_work or numbered_item[0],
    ):
        yield [item for _, item in group]


def _run_group(connection: Connection, group: list[_WriteItem]) -> None:
    """Run items that one call can do, or a single item, and store the results in the items."""
    batch_work = group[0].batch_work
    if len(group) > 1 and batch_work is not None:
        results = batch_work(connection, [item.request for item in group])
    else:
        results = [item.run_work(connection) for item in group]
    for item, result in zip(group, results, strict=True):
        item.error = None
        item.result = result


def _order_by_thread(connection: Connection, batch: list[_WriteItem]) -> list[_WriteItem]:
    """Order the batch by thread, so that every process locks threads in the same order.

    Otherwise two processes that change the same two threads could wait for each other forever. A database without row
    locks needs no order.
    """
    sessions = {item.thread_id for item in batch if item.thread_id is not None}
    if len(batch) < 2 or not connection.dialect.for_update:
        return batch
    threads = find_threads(connection, sorted(sessions)) if len(sessions) > 1 else {}
    return sorted(
        batch,
        key=lambda item: (
            item.thread_id is None,
            threads.get(item.thread_id or "", item.thread_id or ""),
        ),
    )


def wait_before_retry(subject: str, error: BaseException, attempt: int) -> None:
    """Wait before another attempt: longer each time, with jitter. Only the first attempt is logged as a warning."""
    level = logging.WARNING if attempt == 1 else logging.DEBUG
    log.log(level, "%s is retried: %s", subject, " ".join(str(error).split()))
    time.sleep(random.uniform(0.5, 1.0) * min(0.01 * 2**attempt, 1.0))  # noqa: S311 - jitter  # nosec B311


def _prepare_item(item: _WriteItem) -> None:
    try:
        if item.prepare is not None:
            item.prepare()
    except Exception as error:  # noqa: BLE001 - the caller gets the error
        item.error = error


def _reset_connection(connection: Connection | None) -> Connection | None:
    """Return the connection ready for another transaction, or None if it cannot be used again."""
    if connection is None:
        return None
    try:
        connection.rollback()
    except Exception as error:  # noqa: BLE001 - a new connection is opened after any error
        log.info("a broken connection is closed: %s", error)
        connection.close()
        return None
    return connection


def _answer_callers(batch: list[_WriteItem]) -> None:
    """Answer every caller, waking each event loop once."""
    items_by_loop: dict[asyncio.AbstractEventLoop, list[_WriteItem]] = {}
    for item in batch:
        items_by_loop.setdefault(item.loop, []).append(item)
    for loop, items in items_by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_waiters, items)
        except RuntimeError:
            log.info("%d write(s) are done, but their event loop is closed", len(items))


def _resolve_waiters(items: list[_WriteItem]) -> None:
    for item in items:
        if item.waiter.done():
            continue
        if item.error is not None:
            item.waiter.set_exception(item.error)
        else:
            item.waiter.set_result(item.result)
