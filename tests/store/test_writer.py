"""The writer thread: many callers, one transaction, no needless waiting."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import apsw
import psycopg
import pytest

from everthread.core.canonical_usage import CanonicalUsage
from everthread.errors import (
    InputError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    UnknownIdError,
)
from everthread.store.database import Tx
from everthread.store.postgres import PostgresDatabase, PostgresWriter
from everthread.store.records import NewSession, NewUsage
from everthread.store.sqlite import SqliteDatabase
from everthread.store.store import Store
from everthread.store.writer import StoreWriter
from tests.store.conftest import Clock, open_at
from tests.store.messages import (
    append_texts,
    compact_session,
    context_texts,
    history_texts,
    new_thread,
    numbered_messages,
    user_message,
    user_messages,
)

PATIENT = 60.0


class Gate:
    """A write that waits inside its transaction until the event loop releases it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _: Tx) -> bool:
        self.entered.set()
        return self.opened.wait(PATIENT)


@contextlib.asynccontextmanager
async def held(store: Store) -> Any:
    """Keep the writer busy, so that calls queued meanwhile become one batch."""
    gate = Gate()
    slow = asyncio.ensure_future(store._write(gate))
    while not gate.entered.is_set():  # noqa: ASYNC110 - set by another thread
        await asyncio.sleep(0.001)
    yield
    await asyncio.sleep(0)  # every started call has been queued
    gate.opened.set()
    assert await slow


async def test_the_event_loop_is_free_while_a_transaction_waits(store: Store) -> None:
    session = await new_thread(store, "before")
    gate = Gate()
    slow = asyncio.ensure_future(store._write(gate))
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert await history_texts(store, session.id) == ["before"], "reading goes on, too"
    assert not slow.done()
    gate.opened.set()
    assert await slow, "it was the event loop that let the transaction go on"


async def test_a_cancelled_waiter_still_commits(store: Store) -> None:
    session = await new_thread(store)
    async with held(store):
        waiting = asyncio.ensure_future(append_texts(store, session, "kept"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await append_texts(store, session, "after")
    assert await history_texts(store, session.id) == ["kept", "after"]


async def test_one_that_fails_does_not_fail_its_neighbours(store: Store) -> None:
    session = await new_thread(store)
    bad: Any = {"role": "user", "content": {1}}

    def half(tx: Tx) -> None:
        tx.run("UPDATE sessions SET title = 'half' WHERE id = ?", (session.id,))
        raise InputError("on purpose")

    def refused(tx: Tx) -> None:
        tx.run("INSERT INTO texts SELECT hash, body FROM texts")
        tx.run("INSERT INTO sessions (id) VALUES (NULL)")

    async with held(store):
        calls = [
            append_texts(store, session, "one"),
            store.append("nobody", user_messages("lost")),
            store.append(
                session.id, [user_message("fine"), type(user_message(""))(bad)]
            ),
            store._write(half),
            append_texts(store, session, "two"),
            store._write(refused),
            append_texts(store, session, "three"),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    kinds = [
        type(result) if isinstance(result, Exception) else None for result in results
    ]
    assert kinds == [
        None,
        UnknownIdError,
        InputError,
        InputError,
        None,
        InputError,
        None,
    ]
    assert await history_texts(store, session.id) == ["one", "two", "three"]
    assert (await store.session(session.id)).title == ""


class Counting(asyncio.SelectorEventLoop):
    """An event loop that counts how often other threads wake it."""

    woken = 0

    def call_soon_threadsafe(self, *arguments: Any, **more: Any) -> asyncio.Handle:  # type: ignore[override] # counts
        self.woken += 1
        return super().call_soon_threadsafe(*arguments, **more)


class CountsCommits:
    """A real database that counts commits."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def connect_writer(self) -> Any:
        connection = self._database.connect_writer()
        commit = connection.commit

        def counted() -> None:
            self.commits += 1
            commit()

        connection.commit = counted
        return connection


def test_a_batch_is_one_transaction_and_one_wake_up(url: str, clock: Clock) -> None:
    database = CountsCommits(open_at(url, clock).database)
    store = Store(cast("Any", database))

    async def many() -> tuple[int, int]:
        session = await store.create_session(NewSession())
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Counting)
        async with held(store):
            tasks = [
                asyncio.ensure_future(append_texts(store, session, str(n)))
                for n in range(100)
            ]
            await asyncio.sleep(0)
            database.commits = loop.woken = 0
        await asyncio.gather(*tasks)
        counted = database.commits, loop.woken
        assert len(await store.messages(session.id)) == 100
        await store.close()
        return counted

    with asyncio.Runner(loop_factory=Counting) as runner:
        assert runner.run(many()) == (2, 2), (
            "the one that held the writer, then all others together"
        )


async def test_writes_without_a_waiter_join_the_next_batch_or_are_written_at_close(
    url: str, clock: Clock
) -> None:
    database = CountsCommits(open_at(url, clock).database)
    store = Store(cast("Any", database))
    session = await store.create_session(NewSession())
    usage = NewUsage(session.id, "gpt-4o", CanonicalUsage(10, 2))

    async def count_commits(*works: Any) -> int:
        database.commits = 0
        await asyncio.gather(*works)
        return database.commits

    assert (
        await count_commits(
            store.record_usage(usage, early=True),
            store.put_state(session.id, "state", 1),
        )
        == 1
    )
    assert (
        await count_commits(
            *(
                store.record_usage(replace(usage, event=f"{n}"), early=True)
                for n in range(5)
            )
        )
        == 1
    )
    assert len(await store.usage(session.id)) == 6
    await store.close()


async def test_closing_writes_what_is_queued_and_then_refuses(
    url: str, clock: Clock
) -> None:
    store = open_at(url, clock)
    session = await new_thread(store)
    tasks = [
        asyncio.ensure_future(append_texts(store, session, str(n))) for n in range(20)
    ]
    await asyncio.sleep(0)
    await store.close()
    assert len(await asyncio.gather(*tasks)) == 20
    for call in (
        append_texts(store, session, "late"),
        store.messages(session.id),
    ):
        with pytest.raises(StoreClosedError):
            await call
    await store.close()
    again = open_at(url, clock)
    assert len(await again.messages(session.id)) == 20
    await again.close()


def test_an_event_loop_that_is_gone_does_not_stop_the_writer(
    url: str, clock: Clock
) -> None:
    store = open_at(url, clock)
    session = asyncio.run(new_thread(store))
    gate = Gate()

    async def leave() -> None:
        for work in (
            store._write(gate),
            append_texts(store, session, "nobody waits"),
        ):
            asyncio.ensure_future(work)  # noqa: RUF006 - nobody waits, on purpose
        while not gate.entered.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.001)

    asyncio.run(leave())
    gate.opened.set()
    assert asyncio.run(history_texts(store, session.id)) in ([], ["nobody waits"])
    asyncio.run(append_texts(store, session, "after"))
    assert asyncio.run(history_texts(store, session.id)) == ["nobody waits", "after"]
    asyncio.run(store.close())


# What passes


@pytest.fixture
def file(new_url: Any) -> SqliteDatabase:
    database = open_at(new_url("sqlite"), Clock()).database
    assert isinstance(database, SqliteDatabase)
    return database


async def test_a_file_that_is_locked_for_a_while(file: SqliteDatabase) -> None:
    store = Store(file)
    session = await new_thread(store)
    other = file.connect_writer()
    other.begin()
    waiting = asyncio.ensure_future(append_texts(store, session, "in the end"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    other.rollback()
    other.close()
    await waiting
    assert await history_texts(store, session.id) == ["in the end"]
    await store.close()


async def test_no_room_in_the_middle_of_a_batch(file: SqliteDatabase) -> None:
    """A caller that gets an error has stored nothing; any other has stored everything."""

    class Small(SqliteDatabase):
        def connect_writer(self) -> Any:
            connection: Any = super().connect_writer()
            pages = connection.one("PRAGMA page_count")[0]
            connection.run(f"PRAGMA max_page_count = {pages + 10}")
            return connection

    store = Store(Small(file.path))
    session = await new_thread(store, "before")
    async with held(store):
        calls = [
            append_texts(store, session, f"{n} {os.urandom(3_000).hex()}")
            for n in range(30)
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    assert failed
    assert {type(error) for error in failed} == {StoreFullError}
    assert len(await store.messages(session.id)) == 1 + len(results) - len(failed)
    await store.close()


async def test_an_error_that_ends_the_transaction_fails_the_whole_batch(
    file: SqliteDatabase,
) -> None:
    store = Store(file)
    session = await new_thread(store, "before")

    def gives_up(tx: Any) -> None:
        tx.raw.execute("ROLLBACK")  # as SQLite may do itself
        raise apsw.FullError("on purpose")

    async with held(store):
        calls = [
            append_texts(store, session, "one"),
            store._write(gives_up),
            append_texts(store, session, "two"),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [StoreFullError] * 3
    assert await history_texts(store, session.id) == ["before"]
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
        self.let = threading.Event()
        self.error: OSError | None = None

    def connect_writer(self) -> Any:
        connection: Any = super().connect_writer()
        sync = connection.sync

        def slow() -> None:
            self.let.wait(20)
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
    await writer.write(lambda tx: tx.run(sql, ("decided",)), early=True)
    with contextlib.closing(file.connect_reader()) as other:
        assert other.all("SELECT name FROM state WHERE scope = 's'") == [
            ("decided",)
        ], "every process sees it"
    durable = asyncio.ensure_future(writer.write(lambda tx: tx.run(sql, ("durable",))))
    await asyncio.sleep(0.05)
    assert not durable.done()
    disk.let.set()
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
    disk.let.set()
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
    session = await new_thread(store)
    before = file.path.stat().st_size
    for number in range(8):
        noise = os.urandom(500_000).hex()
        await append_texts(store, session, f"{number} {noise}")
    assert file.path.stat().st_size > before
    await store.close()


@pytest.fixture
def server(new_url: Any) -> str:
    return str(new_url("postgresql"))


async def test_a_connection_that_breaks_in_a_transaction(
    server: str, clock: Clock
) -> None:
    store = open_at(server, clock)
    session = await new_thread(store)
    attempts = []

    def breaks_once(tx: Tx) -> None:
        attempts.append(1)
        tx.run("UPDATE sessions SET title = title || 'x'")
        if len(attempts) == 1:
            tx.run("SELECT pg_terminate_backend(pg_backend_pid())")

    async with held(store):
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(store._write(breaks_once))
        ]
        tasks += [
            asyncio.ensure_future(append_texts(store, session, str(n)))
            for n in range(3)
        ]
    await asyncio.gather(*tasks)
    assert (await store.session(session.id)).title == "x"
    assert await history_texts(store, session.id) == ["0", "1", "2"]
    read = []

    def broken_read(tx: Tx) -> list[Any]:
        read.append(1)
        if len(read) == 1:
            tx.run("SELECT pg_terminate_backend(pg_backend_pid())")
        return tx.all("SELECT 1")

    assert await store._read(broken_read) == [(1,)]
    await store.close()


class LosesAnswers(PostgresDatabase):
    """The connection breaks at the commit: just before or just after it."""

    def __init__(self, url: str, *, after: bool) -> None:
        super().__init__(url)
        self.after = after
        self.armed = False
        self.lost = 0

    def connect_writer(self) -> Any:
        connection = super().connect_writer()
        assert isinstance(connection, PostgresWriter)
        commit = connection.commit

        def cut() -> None:
            if not self.armed:
                return commit()
            self.armed = False
            self.lost += 1
            if self.after:
                commit()
            connection.in_doubt = connection._batch
            connection.raw.close()
            raise psycopg.OperationalError("the connection is lost")

        connection.commit = cut  # type: ignore[method-assign] # the one thing that is different
        return connection


@pytest.mark.parametrize("after", [True, False])
async def test_a_commit_whose_answer_is_lost_is_done_once(
    server: str, after: bool
) -> None:
    database = LosesAnswers(server, after=after)
    database.prepare()
    store = Store(cast("Any", database))

    async def cut(call: Any) -> Any:
        database.armed = True
        return await call

    session = await cut(store.create_session(NewSession()))
    await cut(store.append(session.id, numbered_messages(1, 6)))
    first = await cut(compact_session(store, session.id))
    second = await cut(compact_session(store, first.session.id))
    assert (first.is_committed, second.is_committed) == (True, True)
    undone = await cut(store.undo(session.id))
    assert undone.id == first.session.id, "one compaction is taken back, not two"
    lines = await store.export(session.id)
    assert await cut(store.delete_thread(session.id)) == 3
    assert await cut(store.import_lines(lines)) == [session.id]
    assert await store.export(session.id) == lines
    assert await context_texts(store, session.id) == ["m1", "summary", "m5", "m6"]
    assert database.lost == 7
    await store.close()
