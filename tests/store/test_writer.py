"""The writer thread: many callers, one transaction, no needless waiting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import apsw
import psycopg
import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.errors import (
    InputError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from everthread.store.database import Tx
from everthread.store.postgres import PostgresDatabase
from everthread.store.reader_pool import ReaderPool
from everthread.store.records import NewSession
from everthread.store.sql.session_state import put_state
from everthread.store.sqlite import SqliteDatabase
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage
from everthread.store.writer import StoreWriter
from everthread.testing import SteppedClock
from tests.store.conftest import open_at, open_database
from tests.store.messages import (
    append_texts,
    commit_compaction,
    new_thread,
    numbered_messages,
    read_context,
    read_history,
)
from tests.store.tables import transaction
from tests.store.watched_database import (
    MAX_WAIT_SECONDS,
    WatchedDatabase,
    call_together,
    keep_busy,
    write_together,
)


@pytest.fixture
def database(url: str) -> Any:
    return WatchedDatabase(open_database(url))


def put(name: str) -> Callable[[Tx], None]:
    """Return a write that stores a name."""
    return lambda tx: put_state(tx, 0.0, "scope", name, True)


def stored_names(store: Store) -> list[str]:
    with transaction(store) as tx:
        rows = tx.all("SELECT name FROM state WHERE scope = 'scope' ORDER BY name")
    return [name for (name,) in rows]


async def test_the_event_loop_and_readers_are_free_while_a_transaction_waits(
    store: Store,
) -> None:
    thread = await new_thread(store, "before")
    async with keep_busy(store):
        assert await read_history(store, thread) == "before"


async def test_a_cancelled_waiter_still_commits(store: Store, thread: str) -> None:
    async with keep_busy(store):
        waiting = asyncio.ensure_future(append_texts(store, thread, "kept"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await append_texts(store, thread, "after")
    assert await read_history(store, thread) == "kept, after"


async def test_a_write_that_fails_half_way_leaves_nothing_behind(
    database: Any, store: Store
) -> None:
    writer = StoreWriter(database)

    def fail_half_way(tx: Tx) -> None:
        put("half")(tx)
        raise InputError("on purpose")

    works = (put("one"), fail_half_way, put("two"))
    _, error, _ = await write_together(database, writer, *works)
    assert isinstance(error, InputError)
    assert stored_names(store) == ["one", "two"]
    await asyncio.to_thread(writer.close)


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts how often other threads wake it."""

    woken = 0

    def call_soon_threadsafe(self, *arguments: Any, **more: Any) -> asyncio.Handle:  # type: ignore[override] # counts
        self.woken += 1
        return super().call_soon_threadsafe(*arguments, **more)


def test_a_batch_is_one_transaction_and_one_wake_up(database: Any) -> None:
    store = Store(database)

    async def append_many() -> tuple[int, int]:
        session = await store.create_session(NewSession())
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        async with keep_busy(store):
            tasks = [
                asyncio.ensure_future(append_texts(store, session.id, str(n))) for n in range(100)
            ]
            await asyncio.sleep(0)
            database.commits = 0
            loop.woken = 0
        await asyncio.gather(*tasks)
        counted = database.commits, loop.woken
        messages = await store.list_messages(session.id)
        assert len(messages) == 100
        await store.close()
        return counted

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(append_many()) == (2, 2), (
            "the write that held the writer, then all others together"
        )


async def test_writes_without_a_waiter_join_the_next_batch_or_share_their_own(
    database: Any, store: Store
) -> None:
    session = await store.create_session(NewSession())
    usage = NewUsage(session.id, "gpt-4o", CanonicalUsage(10, 2))

    async def count_commits(*works: Any) -> int:
        database.commits = 0
        await asyncio.gather(*works)
        return int(database.commits)

    with_a_waiter = await count_commits(
        store.usage.record_usage(usage, return_before_sync=True),
        store.state.put_state(session.id, "state", 1),
    )
    assert with_a_waiter == 1
    alone = await count_commits(
        *(
            store.usage.record_usage(replace(usage, event=f"{n}"), return_before_sync=True)
            for n in range(5)
        )
    )
    assert alone == 1
    calls = await store.usage.list_usage(session.id)
    assert len(calls) == 6


async def test_closing_writes_what_is_queued_and_then_refuses(
    url: str, clock: SteppedClock
) -> None:
    store = open_at(url, clock)
    thread = await new_thread(store)
    tasks = [asyncio.ensure_future(append_texts(store, thread, str(n))) for n in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*tasks)) == 20
    for call in (
        append_texts(store, thread, "late"),
        store.list_messages(thread),
    ):
        with pytest.raises(StoreClosedError):
            await call
    await store.close()
    again = open_at(url, clock)
    messages = await again.list_messages(thread)
    assert len(messages) == 20
    await again.close()


def test_closed_event_loop_does_not_stop_the_writer(database: Any, store: Store) -> None:
    thread = asyncio.run(new_thread(store))

    async def leave() -> None:
        database.writer_may_begin.clear()
        for text in ("first", "second"):
            asyncio.ensure_future(append_texts(store, thread, text))  # noqa: RUF006 - no caller waits, on purpose
        await asyncio.to_thread(database.writer_waits.wait, MAX_WAIT_SECONDS)

    asyncio.run(leave())
    database.writer_may_begin.set()
    asyncio.run(append_texts(store, thread, "after"))
    assert asyncio.run(read_history(store, thread)) == "first, second, after"


@pytest.fixture
def file(new_url: Any) -> SqliteDatabase:
    database = open_database(new_url("sqlite"))
    assert isinstance(database, SqliteDatabase)
    return database


async def test_waits_for_a_file_that_is_locked_for_a_while(file: SqliteDatabase) -> None:
    store = Store(file)
    thread = await new_thread(store)
    other = file.connect_writer()
    other.begin()
    waiting = asyncio.ensure_future(append_texts(store, thread, "in the end"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    other.rollback()
    other.close()
    await waiting
    assert await read_history(store, thread) == "in the end"
    await store.close()


async def test_batch_on_a_full_disk_is_stored_completely_or_not_at_all(
    file: SqliteDatabase,
) -> None:
    """A caller that gets an error has stored nothing; any other has stored everything."""

    class Small(SqliteDatabase):
        def connect_writer(self) -> Any:
            connection: Any = super().connect_writer()
            pages = connection.one("PRAGMA page_count")[0]
            connection.run(f"PRAGMA max_page_count = {pages + 10}")
            return connection

    store = Store(cast("Any", WatchedDatabase(Small(file.path))))
    thread = await new_thread(store, "before")
    calls = [append_texts(store, thread, f"{n} {os.urandom(3_000).hex()}") for n in range(30)]
    results = await call_together(store, *calls)
    failed = [result for result in results if isinstance(result, BaseException)]
    assert failed
    assert {type(error) for error in failed} == {StoreFullError}
    messages = await store.list_messages(thread)
    assert len(messages) == 1 + len(results) - len(failed)
    await store.close()


async def test_an_error_that_ends_the_transaction_fails_the_whole_batch(
    file: SqliteDatabase,
) -> None:
    database: Any = WatchedDatabase(file)
    writer = StoreWriter(database)

    def give_up(tx: Any) -> None:
        tx.raw.execute("ROLLBACK")  # as SQLite may do itself
        raise apsw.FullError("on purpose")

    works = (put("one"), give_up, put("two"))
    results = await write_together(database, writer, *works)
    assert [type(result) for result in results] == [StoreFullError] * 3
    store = Store(database)
    assert stored_names(store) == []
    await asyncio.to_thread(writer.close)
    await store.close()


async def test_a_file_that_stays_locked_is_reported(file: SqliteDatabase) -> None:
    class Impatient(SqliteDatabase):
        def connect_writer(self) -> Any:
            connection: Any = super().connect_writer()
            connection.raw.set_busy_timeout(1)
            return connection

    with contextlib.closing(file.connect_writer()) as other:
        other.begin()
        writer = StoreWriter(Impatient(file.path), retry_seconds=0.05)
        with pytest.raises(StoreBusyError, match="locked"):
            await writer.write(lambda tx: tx.run("DELETE FROM state"))
        other.rollback()
        await writer.write(lambda tx: tx.run("DELETE FROM state"))
        await asyncio.to_thread(writer.close)


class SlowDisk(SqliteDatabase):
    """A disk that stores nothing until it is released, and then perhaps fails."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_released = threading.Event()
        self.error: OSError | None = None

    def connect_writer(self) -> Any:
        connection: Any = super().connect_writer()
        sync = connection.sync

        def slow() -> None:
            self.is_released.wait(MAX_WAIT_SECONDS)
            if self.error is not None:
                raise self.error
            sync()

        connection.sync = slow
        return connection


async def test_a_caller_that_needs_only_the_decision_does_not_wait_for_the_disk(
    file: SqliteDatabase,
) -> None:
    disk = SlowDisk(file.path)
    writer = StoreWriter(disk)
    sql = "INSERT INTO state (scope, name, value, changed) VALUES ('s', ?, '1', 0)"
    await writer.write(lambda tx: tx.run(sql, ("decided",)), return_before_sync=True)
    with contextlib.closing(file.connect_reader()) as other:
        assert other.all("SELECT name FROM state WHERE scope = 's'") == [("decided",)], (
            "every process sees it"
        )
    durable = asyncio.ensure_future(writer.write(lambda tx: tx.run(sql, ("durable",))))
    await asyncio.sleep(0.05)
    assert not durable.done()
    disk.is_released.set()
    await durable
    await asyncio.to_thread(writer.close)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StoreFullError), (errno.EIO, StoreError)]
)
async def test_a_write_that_does_not_reach_the_disk_is_reported(
    file: SqliteDatabase, number: int, kind: type[Exception]
) -> None:
    disk = SlowDisk(file.path)
    disk.error = OSError(number, "on purpose")
    disk.is_released.set()
    writer = StoreWriter(disk)
    with pytest.raises(kind):
        await writer.write(lambda tx: tx.run("DELETE FROM state"))
    disk.error = None
    await writer.write(lambda tx: tx.run("DELETE FROM state"))
    await asyncio.to_thread(writer.close)


async def test_the_write_ahead_log_is_moved_into_the_file(
    file: SqliteDatabase,
) -> None:
    store = Store(file)
    thread = await new_thread(store)
    before = file.path.stat().st_size
    for number in range(8):
        noise = os.urandom(500_000).hex()
        await append_texts(store, thread, f"{number} {noise}")
    assert file.path.stat().st_size > before
    await store.close()


@pytest.fixture
def server(new_url: Any) -> str:
    return str(new_url("postgresql"))


async def test_a_batch_whose_connection_breaks_is_written_once(server: str) -> None:
    database: Any = WatchedDatabase(PostgresDatabase(server))
    database.prepare()
    writer = StoreWriter(database)
    attempts = []

    def break_once(tx: Tx) -> None:
        attempts.append(1)
        put(str(len(attempts)))(tx)
        if len(attempts) == 1:
            tx.run("SELECT pg_terminate_backend(pg_backend_pid())")

    works = (break_once, put("a"), put("b"), put("c"))
    assert await write_together(database, writer, *works) == [None] * 4
    store = Store(database)
    assert stored_names(store) == ["2", "a", "b", "c"]
    await asyncio.to_thread(writer.close)
    await store.close()


async def test_a_read_whose_connection_breaks_is_tried_again(server: str) -> None:
    database = PostgresDatabase(server)
    database.prepare()
    readers = ReaderPool(database)
    attempts = []

    def break_once(tx: Tx) -> list[Any]:
        attempts.append(1)
        if len(attempts) == 1:
            tx.run("SELECT pg_terminate_backend(pg_backend_pid())")
        return tx.all("SELECT 1")

    assert await readers.read(break_once) == [(1,)]
    await asyncio.to_thread(readers.close)
    database.close()


class LosesAnswers(PostgresDatabase):
    """The connection breaks at the commit: just before or just after it."""

    def __init__(self, url: str, *, after: bool) -> None:
        super().__init__(url)
        self.after = after
        self.armed = False
        self.lost = 0

    def connect_writer(self) -> Any:
        connection: Any = super().connect_writer()
        run = connection.run

        def run_or_cut(sql: str, values: Sequence[Any] = ()) -> None:
            if not self.armed or sql != "COMMIT":
                run(sql, values)
                return
            self.armed = False
            self.lost += 1
            if self.after:
                run(sql, values)
                connection.all("SELECT 1")  # waits until the server has committed
            connection.raw.close()
            raise psycopg.OperationalError("the connection is lost")

        connection.run = run_or_cut
        return connection


@pytest.mark.parametrize("after", [True, False])
async def test_a_commit_whose_answer_is_lost_is_done_once(server: str, after: bool) -> None:
    database = LosesAnswers(server, after=after)
    database.prepare()
    store = Store(cast("Any", database))

    async def cut(call: Any) -> Any:
        database.armed = True
        return await call

    session = await cut(store.create_session(NewSession()))
    await cut(store.append(session.id, numbered_messages(1, 6)))
    first = await cut(commit_compaction(store, session.id))
    second = await cut(commit_compaction(store, first.session.id))
    assert first.is_committed
    assert second.is_committed
    undone = await cut(store.undo(session.id))
    assert undone.id == first.session.id, "one compaction is taken back, not two"
    lines = await store.export(session.id)
    assert await cut(store.delete_thread(session.id)) == 3
    assert await cut(store.import_lines(lines)) == [session.id]
    assert await store.export(session.id) == lines
    assert await read_context(store, session.id) == "m1, summary, m5, m6"
    assert database.lost == 7
    await store.close()
