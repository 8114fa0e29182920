"""The PostgreSQL server: restarts, refusals, and no password in any message."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from everthread.errors import (
    ConfigError,
    EverthreadError,
    StoreError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from everthread.store import postgres
from everthread.store.key_records import KeyUse, NewKey
from everthread.store.postgres import POOL_CONNECTIONS, PostgresDatabase, PostgresWriter
from everthread.store.reader_pool import UNRESPONSIVE_PAUSE_SECONDS
from everthread.store.records import LimitKey, NewSession
from everthread.store.search.index_queue import index_waiting
from everthread.store.store import Store
from everthread.store.turn_records import NewQueuedTurn
from tests.store.conftest import close_sound, open_at
from tests.store.messages import (
    append_texts,
    compact_session,
    new_thread,
    numbered_thread,
    read_history,
    texts_of,
)
from tests.store.postgres_server import Server
from tests.store.searching import search
from tests.store.tables import count_rows, stop_background_indexing

SECRET = "hunter2-very-secret"


def run(server: Server, *statements: str, database: str = "postgres") -> None:
    with psycopg.connect(server.url(database), autocommit=True) as admin:
        for statement in statements:
            admin.execute(statement.encode())


def new_store(server: Server, **options: Any) -> Store:
    """Open a store on a database of its own."""
    run(server, "CREATE DATABASE work")
    database = PostgresDatabase(server.url("work"))
    database.prepare()
    return Store(database, **options)


async def test_the_server_is_restarted_under_the_store(own_server: Server) -> None:
    run(own_server, "CREATE DATABASE work")
    store = open_at(own_server.url("work"))
    thread = await numbered_thread(store, 5)
    for end in (own_server.stop, own_server.crash):
        await asyncio.to_thread(end)
        waiting: list[asyncio.Future[object]] = [
            asyncio.ensure_future(append_texts(store, thread, end.__name__)),
            asyncio.ensure_future(read_history(store, thread)),
            asyncio.ensure_future(store.create_session(NewSession())),
        ]
        await asyncio.sleep(0.3)
        assert not any(each.done() for each in waiting)
        await asyncio.to_thread(own_server.start)
        await asyncio.gather(*waiting)
        await compact_session(store, await store.get_compression_tip(thread))
    assert await read_history(store, thread) == "m1, m2, m3, m4, m5, stop, crash"
    health = await store.check()
    assert health.problems == ()
    await store.close()


class DiesAtCommit(PostgresDatabase):
    """A database whose server crashes at the next commit and has done other work when it is asked again."""

    def __init__(self, server: Server, name: str) -> None:
        super().__init__(server.url(name))
        self.server = server
        self.armed = False

    def connect_writer(self) -> Any:
        connection = super().connect_writer()
        commit = connection.commit

        def dies() -> None:
            if self.armed:
                self.armed = False
                self.server.crash()
                self.server.start()
                run(self.server, *["SELECT pg_current_xact_id()"] * 50)
            commit()

        connection.commit = dies  # type: ignore[method-assign]  # the one thing that is different
        return connection


async def test_a_crash_before_the_commit_is_not_taken_for_success(
    own_server: Server,
) -> None:
    """After a crash the server gives the numbers of lost transactions to others, which are committed."""
    run(own_server, "CREATE DATABASE work")
    database = DiesAtCommit(own_server, "work")
    database.prepare()
    store = Store(database)
    thread = await new_thread(store, "before")
    database.armed = True
    await append_texts(store, thread, "asked for twice, there once")
    assert not database.armed
    assert await read_history(store, thread) == "before, asked for twice, there once"
    health = await store.check()
    assert health.problems == ()
    await store.close()


def test_a_first_batch_in_doubt_is_waited_for(new_url: Callable[..., str]) -> None:
    """Another connection of the same store may still commit the batch."""
    database = PostgresDatabase(new_url("postgresql"))
    database.prepare()
    with (
        closing(database.connect_writer()) as first,
        closing(database.connect_writer()) as second,
    ):
        first.begin()
        first.one("SELECT 1")
        with pytest.raises(psycopg.errors.LockNotAvailable) as failure:
            second.was_committed(1)
        assert database.is_transient(failure.value)
        second.rollback()
        first.commit()
        assert second.was_committed(1)
        assert not second.was_committed(2)
    database.close()


def test_a_commit_is_asked_for_when_others_can_see_the_batch(
    new_url: Callable[..., str],
) -> None:
    """Otherwise a batch still on its way could be considered lost, be written again, and then arrive."""
    database = PostgresDatabase(new_url("postgresql"))
    database.prepare()
    with (
        closing(database.connect_writer()) as first,
        closing(database.connect_writer()) as second,
    ):
        first.begin()
        first.commit()
        run = first.run
        commits = []

        def looks_first(sql: str, values: Sequence[Any] = ()) -> None:
            if sql == "COMMIT":
                commits.append(sql)
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    second.was_committed(2)
                second.rollback()
            run(sql, values)

        first.run = looks_first  # type: ignore[method-assign]  # to be there at the moment
        first.begin()
        first.run("DELETE FROM state")
        first.commit()
        assert commits
        assert second.was_committed(2)
    database.close()


def test_connections_that_break_at_once_are_given_back(
    new_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the pool would be exhausted after some crashes of the server."""

    class Breaks(PostgresWriter):
        def run(self, sql: str, values: Sequence[Any] = ()) -> None:
            self.raw.close()
            super().run(sql, values)

    database = PostgresDatabase(new_url("postgresql"))
    database.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(postgres, "PostgresWriter", Breaks)
        for _ in range(POOL_CONNECTIONS + 1):
            with pytest.raises(psycopg.OperationalError, match="closed"):
                database.connect_writer()
    database.connect_writer().close()
    database.close()


def test_without_the_driver_the_error_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None; sys.argv = ['everthread', *sys.argv[1:]]\n"
        "from everthread.cli.main import main; main()"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "sessions",
        "list",
        "--store",
        "postgresql://localhost/work",
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install everthread[postgres]" in done.stderr


async def test_an_unavailable_server_is_reported(own_server: Server) -> None:
    store = new_store(own_server, retry_seconds=0.2)
    thread = await new_thread(store, "kept")
    await asyncio.to_thread(own_server.stop)
    for call in (
        append_texts(store, thread, "lost"),
        store.list_messages(thread),
        store.vacuum(),
    ):
        with pytest.raises(StoreUnreachableError, match="cannot be reached"):
            await call
    await asyncio.to_thread(own_server.start)
    await append_texts(store, thread, "later")
    assert await read_history(store, thread) == "kept, later"
    await store.close()


def opening_error(url: str) -> EverthreadError:
    """Return the error of opening a store; check that no text for people shows the password."""
    with pytest.raises(EverthreadError) as failure:
        PostgresDatabase(url).prepare()
    shown = "".join(traceback.format_exception(failure.value))
    assert SECRET not in shown
    assert SECRET[:7] not in shown
    return failure.value


def test_missing_server_is_reported() -> None:
    error = opening_error(f"postgresql://ann:{SECRET}@127.0.0.1:9/work")
    assert isinstance(error, StoreUnreachableError)
    assert "postgresql://ann@127.0.0.1:9/work" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@[::1/work",
        f"postgresql://ann:{SECRET}@host:port/work",
        f"postgresql://ann:{SECRET}@host:5432/work?nonsense=1",
        f"postgresql://ann:{SECRET}@host:{SECRET}@other/work",
        f"postgresql://ann:{SECRET}%zz@host/work",
        f"postgresql://host/work?password={SECRET}&port={SECRET}",
    ],
)
def test_unreadable_url_is_reported(url: str) -> None:
    assert isinstance(opening_error(url), ConfigError)


async def test_refused_connections_are_explained(own_server: Server) -> None:
    rules = own_server.data / "pg_hba.conf"
    rules.write_text("local all secretive scram-sha-256\n" + rules.read_text())
    run(
        own_server,
        f"CREATE ROLE secretive LOGIN PASSWORD '{SECRET}'",
        "CREATE ROLE guest LOGIN",
        "CREATE ROLE reader LOGIN",
        "ALTER ROLE reader SET default_transaction_read_only = on",
        "CREATE DATABASE work OWNER secretive",
        "REVOKE CREATE ON DATABASE work FROM PUBLIC",
        "SELECT pg_reload_conf()",
    )
    run(own_server, "REVOKE CREATE ON SCHEMA public FROM PUBLIC", database="work")
    run(own_server, "GRANT ALL ON SCHEMA public TO secretive", database="work")
    place = own_server.url("work").partition("?")[2]

    def url(login: str, database: str = "work") -> str:
        return f"postgresql://{login}@/{database}?{place}"

    wrong = opening_error(url(f"secretive:{SECRET}x"))
    assert isinstance(wrong, StoreUnreachableError)
    assert "password authentication failed" in str(wrong)
    assert "does not exist" in str(opening_error(url(f"secretive:{SECRET}", "nowhere")))
    assert isinstance(opening_error(url("guest")), StoreReadOnlyError)
    await close_sound(open_at(url(f"secretive:{SECRET}")))
    run(
        own_server,
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
        database="work",
    )
    reader = open_at(url("reader"))
    assert await reader.list_sessions() == []
    with pytest.raises(StoreReadOnlyError, match="read-only"):
        await reader.create_session(NewSession())
    await reader.close()


async def test_a_backup_is_made_by_the_servers_own_tool(
    own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(own_server, "CREATE DATABASE work", "CREATE DATABASE again")
    store = open_at(own_server.url("work"))
    thread = await numbered_thread(store, 5)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StoreError, match="pg_dump"):
        await store.backup(str(tmp_path / "dump"))
    monkeypatch.setenv("PATH", f"{own_server.programs}{os.pathsep}{os.defpath}")
    await store.backup(str(tmp_path / "dump"))
    assert stat.S_IMODE((tmp_path / "dump").stat().st_mode) == 0o600
    with pytest.raises(StoreError, match="File exists"):
        await store.backup(str(tmp_path / "dump"))
    restore = [
        str(own_server.programs / "pg_restore"),
        f"--dbname={own_server.url('again')}",
        str(tmp_path / "dump"),
    ]
    await asyncio.to_thread(lambda: subprocess.run(restore, check=True))
    copy = open_at(own_server.url("again"))
    assert await copy.export(thread) == await store.export(thread)
    await copy.close()
    await store.vacuum()
    await store.close()


async def test_a_store_uses_few_connections(new_url: Callable[..., str]) -> None:
    url = new_url("postgresql")
    store = open_at(url)

    async def busy() -> int:
        thread = await new_thread(store)
        calls = [append_texts(store, thread, str(n)) for n in range(50)]
        await asyncio.gather(*calls, *(store.list_messages(thread) for _ in range(50)))
        with psycopg.connect(url) as other:
            rows = other.execute(
                "SELECT 1 FROM pg_stat_activity WHERE application_name = 'everthread' AND datname = current_database()"
            )
            return len(rows.fetchall())

    assert await busy() <= 5, "one writes, four read"
    await close_sound(store)


async def test_an_unavailable_server_is_reported_at_once_to_callers_that_do_not_wait(
    own_server: Server,
) -> None:
    store = new_store(own_server, max_silence_seconds=0.2)
    thread = await numbered_thread(store, 2)
    await asyncio.to_thread(own_server.stop)
    with pytest.raises(StoreUnreachableError, match="does not answer"):
        await read_history(store, thread)
    assert store.is_unresponsive
    written = asyncio.ensure_future(append_texts(store, thread, "later"))
    await asyncio.to_thread(own_server.start)
    await written
    await asyncio.sleep(UNRESPONSIVE_PAUSE_SECONDS)
    assert not store.is_unresponsive
    assert await read_history(store, thread) == "m1, m2, later"
    await store.close()


async def test_closing_does_not_wait_for_a_server_that_hangs(
    own_server: Server,
) -> None:
    """Its connections stay open and say nothing, so that no time limit of the network ends what waits for them."""
    store = new_store(own_server, retry_seconds=0.5)
    thread = await numbered_thread(store, 2)
    await asyncio.to_thread(own_server.freeze)
    try:
        waiting = [
            asyncio.ensure_future(work)
            for work in (
                read_history(store, thread),
                append_texts(store, thread, "lost"),
            )
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(100):
            await store.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        await asyncio.to_thread(own_server.thaw)
    assert [type(result) for result in results] == [
        StoreUnreachableError,
        StoreUnreachableError,
    ]


async def test_a_message_queued_by_another_process_is_noticed(
    own_server: Server,
) -> None:
    run(own_server, "CREATE DATABASE work")
    store, other = (open_at(own_server.url("work")) for _ in range(2))
    thread = await numbered_thread(store, 2)
    heard: asyncio.Queue[str] = asyncio.Queue()
    store.listen(heard.put_nowait)
    assert await heard.get() == "", "from now on"
    new = NewQueuedTurn(
        "t1",
        thread,
        "default",
        {"role": "user", "content": "hi"},
        "once",
    )
    await other.turns.queue_turn(new, max_waiting=9)
    assert await heard.get() == thread
    await asyncio.to_thread(own_server.stop)
    await asyncio.to_thread(own_server.start)
    while await heard.get():
        continue
    await other.turns.cancel_turn("t1", tenant="default")
    assert await heard.get() == thread
    for each in (store, other):
        await each.close()


async def test_leases_and_appends_of_two_processes_never_wait_in_a_circle(
    new_url: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    url = new_url("postgresql")
    one, two = (open_at(url) for _ in range(2))
    thread = await numbered_thread(one, 2)
    for turn in range(20):
        lease = await one.leases.acquire_lease(thread, "one", 60)
        assert lease is not None
        await asyncio.gather(
            append_texts(one, thread, f"a{turn}", lease=lease),
            one.leases.renew_lease(lease, 60),
            append_texts(one, thread, f"b{turn}", lease=lease),
            append_texts(two, thread, f"c{turn}", lease=lease),
            two.leases.renew_lease(lease, 60),
            two.leases.acquire_lease(thread, "two", 60),
            append_texts(two, thread, f"d{turn}"),
        )
        await one.leases.release_lease(lease)
    assert not [record for record in caplog.records if "tried again" in record.getMessage()]
    history = await one.load_history(thread)
    assert len(history) == 2 + 4 * 20
    for each in (one, two):
        await each.close()


async def test_many_gateways_count_one_key(
    new_url: Callable[..., str],
) -> None:
    url = new_url("postgresql")
    stores = [open_at(url) for _ in range(4)]
    await stores[0].keys.create_key(NewKey("k", "digest", "acme", frozenset({"proxy"})))
    for _ in range(50):
        await asyncio.gather(
            *(
                store.keys.add_use("2026-01-31", {"k": KeyUse(1, 10, Decimal("0.5"))})
                for store in stores
            )
        )
    key = await stores[0].keys.find_key("digest", "2026-01-31")
    assert key is not None
    assert key.use_of_day == KeyUse(200, 2_000, Decimal(100))
    for store in stores:
        await store.close()


async def test_statements_that_are_prepared_outlive_a_failure(
    new_url: Callable[..., str],
) -> None:
    """An error discards statements prepared in its transaction; the driver must not rely on them."""
    store = open_at(new_url("postgresql"))
    thread = await new_thread(store)
    for number in range(12):
        calls = [
            append_texts(store, thread, f"{number} first"),
            store.limits.learn_limit(LimitKey("url", "model"), 2**70, source="too large"),
            append_texts(store, thread, f"{number} second"),
            store.state.put_state("scope", "key", number),
        ]
        together = 1 + number % 4
        await asyncio.gather(*calls[:together], return_exceptions=True)
        for call in calls[together:]:
            await asyncio.gather(call, return_exceptions=True)
        await append_texts(store, thread, f"{number} third")
    messages = await store.list_messages(thread)
    assert len(messages) == 36
    assert await store.state.get_state("scope", "key") == 11
    await close_sound(store)


async def test_background_indexing_skips_texts_another_process_is_indexing(
    new_url: Callable[..., str],
) -> None:
    """A process that waited for it would keep all its own writes waiting."""
    url = new_url("postgresql")
    store = open_at(url)
    stop_background_indexing(store)
    await new_thread(store, "first", "second", "third")
    with psycopg.connect(url) as other:
        other.execute("SELECT id FROM unindexed ORDER BY id LIMIT 1 FOR UPDATE")
        index_waiting(PostgresDatabase(url), 1.0)
        assert count_rows(store, "chunks") == 2
        searching = asyncio.ensure_future(search(store, "first"))
        await asyncio.sleep(0.1)
        assert not searching.done(), "a search waits for it"
    assert len(await searching) == 1
    await close_sound(store)


async def test_many_rows_are_inserted_by_few_statements_in_their_order(
    new_url: Callable[..., str],
) -> None:
    store = open_at(new_url("postgresql"))
    thread = await new_thread(store)
    for count in (0, 1, 3, 4, 5, 49, 130):
        texts = [f"{count} {number}" for number in range(count)]
        await append_texts(store, thread, *texts)
        history = texts_of(await store.load_history(thread))
        assert history[len(history) - count :] == texts
    hits = await search(store, "130", limit=500)
    assert len(hits) == 130
    await close_sound(store)
