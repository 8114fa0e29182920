"""One thread writes. It takes everything that is queued into one transaction, a savepoint an item.

So many small writes cost one commit, order is the order of asking, thread by thread, and a caller that goes away
changes nothing: what was queued is committed. Callers are woken once a batch. A batch that fails for a passing reason
(a busy file, a deadlock, a lost connection) is tried again as a whole; where the answer to its commit was lost, the
database is asked first how that ended.
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
from typing import Any

from everthread.errors import StoreClosedError
from everthread.store.database import Connection, Database, Tx
from everthread.store.operations.sessions import threads_of

log = logging.getLogger(__name__)

BATCH = 512
PATIENCE = 30.0
"""Seconds for which reading and writing are tried again before their callers are told."""


Many = Callable[[Tx, list[Any]], list[Any]]
"""Does what several callers ask for at once, with a result for each."""


@dataclass(slots=True)
class _Item:
    work: Callable[[Tx], Any]
    many: Many | None
    request: Any
    session: str | None
    prepare: Callable[[], None] | None
    loop: asyncio.AbstractEventLoop
    waiter: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = field(default=None)


class Writer:
    """The writing thread of a store. Started with the first write."""

    def __init__(self, database: Database, *, patience: float = PATIENCE) -> None:
        self._database = database
        self._patience = patience
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()
        self._closed = False

    async def write(
        self, work: Callable[[Tx], Any], *, session: str | None = None, prepare: Callable[[], None] | None = None
    ) -> Any:
        """The result of `work` once it is durable.

        `session`: whose thread it changes. `prepare` runs in the writing thread, before the transaction.
        """
        return await self._queued(_Item(work, None, None, session, prepare, *_waiter()))

    async def write_together(
        self, many: Many, request: Any, *, session: str, prepare: Callable[[], None] | None = None
    ) -> Any:
        """The same for work that is cheaper together: what others ask of `many` at the same time is done with it.

        If that fails, each request is done alone, and only whose fault it was is told.
        """
        return await self._queued(_Item(lambda tx: many(tx, [request])[0], many, request, session, prepare, *_waiter()))

    async def _queued(self, item: _Item) -> Any:
        with self._start:
            if self._closed:
                raise StoreClosedError("the store was closed; open it again to write")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="everthread-writer", daemon=True)
                self._thread.start()
            self._queue.put(item)
        return await item.waiter

    def close(self) -> None:
        """Write what is queued, then stop. Blocks until done."""
        with self._start:
            self._closed = True
            thread = self._thread
            if thread is not None:
                self._queue.put(None)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        connection: Connection | None = None
        going = True
        while going:
            batch, going = self._take()
            if batch:
                connection = self._write_batch(connection, batch)
                _deliver(batch)
        if connection is not None:
            connection.close()

    def _take(self) -> tuple[list[_Item], bool]:
        """What is queued, up to a full batch, and whether to go on after it."""
        batch: list[_Item] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            if len(batch) == BATCH:
                return batch, True
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _write_batch(self, connection: Connection | None, batch: list[_Item]) -> Connection | None:
        """Everything in one transaction; again after a passing error. Errors end up with their items."""
        for item in batch:
            _prepare(item)
        ready = [item for item in batch if item.error is None]
        deadline = time.monotonic() + self._patience
        attempt = 0
        in_doubt: int | None = None
        while ready:
            try:
                connection = connection or self._database.connect_writer()
                if in_doubt is None or not connection.committed(in_doubt):
                    in_doubt = None
                    self._attempt(connection, ready)
                break
            except BaseException as error:  # noqa: BLE001 - every caller of the batch is told
                in_doubt = (connection.in_doubt if connection else None) or in_doubt
                connection = _reset(connection)
                attempt += 1
                if self._database.is_passing(error) and time.monotonic() < deadline:
                    again(f"a write of {len(ready)} item(s)", error, attempt)
                    continue
                for item in ready:
                    item.error = self._database.explain(error)
                break
        return connection

    def _attempt(self, connection: Connection, batch: list[_Item]) -> None:
        connection.begin()
        if len(batch) == 1:
            batch[0].error = None
            batch[0].result = batch[0].work(connection)
        else:
            for group in _groups(_in_order(connection, batch)):
                if len(group) == 1 or not self._done_together(connection, group):
                    for item in group:
                        self._do(connection, item)
        connection.commit()

    def _do(self, connection: Connection, item: _Item) -> None:
        """One item, in a savepoint. What fails is told to its caller; the rest of the batch goes on."""
        item.error = None
        connection.savepoint()
        try:
            item.result = item.work(connection)
            connection.release()
        except Exception as error:
            if not self._can_go_on(connection, error):
                raise
            item.error = self._database.explain(error)

    def _done_together(self, connection: Connection, group: list[_Item]) -> bool:
        """Several requests of one kind, in one savepoint; False, and nothing is done, if one of them fails."""
        many = group[0].many
        assert many is not None
        connection.savepoint()
        try:
            results = many(connection, [item.request for item in group])
            connection.release()
        except Exception as error:
            if not self._can_go_on(connection, error):
                raise
            log.debug("%d writes are done one by one: %s", len(group), error)
            return False
        for item, result in zip(group, results, strict=True):
            item.error, item.result = None, result
        return True

    def _can_go_on(self, connection: Connection, error: Exception) -> bool:
        """Whether the rest of the batch is unharmed by an error: what was done since the savepoint is taken back."""
        if self._database.is_passing(error) or not connection.in_transaction:
            return False
        connection.rollback_to_savepoint()
        return True


def _waiter() -> tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]:
    loop = asyncio.get_running_loop()
    return loop, loop.create_future()


def _groups(items: list[_Item]) -> Iterator[list[_Item]]:
    """Neighbours that can be done together; everything else alone."""
    for _, group in itertools.groupby(enumerate(items), lambda each: each[1].many or each[0]):
        yield [item for _, item in group]


def _in_order(connection: Connection, batch: list[_Item]) -> list[_Item]:
    """The batch, thread by thread: where rows are locked, everybody locks those of one thread before another's.

    Else two processes that change the same two threads would wait for each other.
    """
    named = {item.session for item in batch if item.session is not None}
    if len(batch) < 2 or not connection.dialect.lock:
        return batch
    known = threads_of(connection, sorted(named))
    return sorted(batch, key=lambda item: (item.session is None, known.get(item.session or "", item.session or "")))


def again(what: str, error: BaseException, attempt: int) -> None:
    """Wait before another attempt: longer each time, never the same for two processes. People are told once."""
    told = logging.WARNING if attempt == 1 else logging.DEBUG
    log.log(told, "%s is tried again: %s", what, " ".join(str(error).split()))
    time.sleep(random.uniform(0.5, 1.0) * min(0.01 * 2**attempt, 1.0))  # noqa: S311 - jitter


def _prepare(item: _Item) -> None:
    try:
        if item.prepare is not None:
            item.prepare()
    except Exception as error:  # noqa: BLE001 - the caller is told
        item.error = error


def _reset(connection: Connection | None) -> Connection | None:
    """The connection, ready for another transaction; None where it is of no more use."""
    if connection is None:
        return None
    try:
        connection.rollback()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, a new connection follows
        log.info("a connection is given up: %s", error)
        connection.close()
        return None
    return connection


def _deliver(batch: list[_Item]) -> None:
    """Answer every caller, waking each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[_Item]] = {}
    for item in batch:
        loops.setdefault(item.loop, []).append(item)
    for loop, items in loops.items():
        try:
            loop.call_soon_threadsafe(_answer, items)
        except RuntimeError:
            log.info("%d write(s) are done, but nobody waits for them any more", len(items))


def _answer(items: list[_Item]) -> None:
    for item in items:
        if item.waiter.done():
            continue
        if item.error is not None:
            item.waiter.set_exception(item.error)
        else:
            item.waiter.set_result(item.result)
