"""The schema: numbered migrations, each atomic; foreign or newer databases are left alone."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from everthread.errors import SchemaTooNewError, StoreError, UnknownIdError
from everthread.factory import migrate_store, open_store
from everthread.store.postgres import PostgresDatabase
from everthread.store.records import NewSession
from everthread.store.schema import load_migrations
from everthread.store.sqlite import SqliteDatabase
from everthread.store.store import Store
from tests.store.conftest import BACKENDS, Postgres, as_url, close_sound, open_at
from tests.store.fork_server import ForkServer
from tests.store.messages import new_thread, read_history
from tests.store.migrating_process import LATER
from tests.store.tables import execute, file_of


def latest_of(store: Store) -> int:
    return store.database.migrations[-1].number


@pytest.mark.parametrize("name", BACKENDS)
def test_migrations_are_numbered(name: str) -> None:
    """A number that only the other database needs is left out."""
    numbers = [migration.number for migration in load_migrations(name)]
    assert numbers[0] == 1
    assert numbers == sorted(set(numbers))
    assert all(migration.statements for migration in load_migrations(name))


def points(name: str) -> dict[str, int]:
    """Return the statements after which to kill: the version table comes first; each migration writes its number."""
    first = len(load_migrations(name)[0].statements) + 2
    end = first + len(LATER.statements) + 1
    return {
        "at once": 0,
        "inside the first": first // 2,
        "before its number": first - 1,
        "between": first,
        "inside the second": first + 1,
        "at the very end": end - 1,
    }


def open_later(url: str) -> Store:
    """Open a store with a version of Everthread that has one migration more."""
    kind = "sqlite" if url.startswith("sqlite") else "postgresql"
    migrations = [*load_migrations(kind), LATER]
    database = (
        SqliteDatabase(file_of(url), migrations)
        if kind == "sqlite"
        else PostgresDatabase(url, migrations)
    )
    database.prepare()
    return Store(database)


@pytest.mark.parametrize("point", points("sqlite"))
async def test_a_migration_that_is_killed_is_done_by_the_next(
    kind: str, point: str, new_url: Callable[..., str]
) -> None:
    url = new_url(kind, empty=True)
    with ForkServer() as fork_server:
        assert (
            fork_server.wait(
                fork_server.start("migrate_and_die", url=url, statements=points(kind)[point])
            )
            == -9
        )
    store = open_later(url)
    health = await store.check()
    assert health.schema == latest_of(store)
    thread = await new_thread(store, "works")
    assert await read_history(store, thread) == "works"
    await close_sound(store)


async def test_a_later_version_brings_the_store_up_to_date_and_an_older_one_refuses_it(
    kind: str, new_url: Callable[..., str]
) -> None:
    url = new_url(kind, empty=True)
    store = open_at(url)
    thread = await new_thread(store, "kept")
    await store.close()
    later = open_later(url)
    health = await later.check()
    assert health.schema == LATER.number
    assert await read_history(later, thread) == "kept"
    await close_sound(later)
    number = LATER.number
    with pytest.raises(
        SchemaTooNewError,
        match=rf"has schema {number}, .* knows up to {number - 1}: upgrade",
    ):
        open_store(url)


async def test_several_processes_migrate_at_once(kind: str, new_url: Callable[..., str]) -> None:
    with ForkServer() as fork_server:
        for _ in range(2):
            url = new_url(kind, empty=True)
            children = [fork_server.start("migrate", url=url) for _ in range(5)]
            assert [fork_server.wait(child) for child in children] == [0] * 5
            store = open_at(url)
            health = await store.check()
            assert health.schema == latest_of(store)
            await close_sound(store)


async def test_a_newer_schema_is_refused_and_not_touched(
    kind: str, new_url: Callable[..., str]
) -> None:
    url = new_url(kind)
    store = open_at(url)
    await store.close()
    newer = latest_of(store) + 1
    execute(url, f"INSERT INTO schema_version VALUES ({newer}, 'tomorrow')")  # noqa: S608 - a number
    before = file_of(url).read_bytes() if kind == "sqlite" else b""
    with pytest.raises(SchemaTooNewError, match=rf"schema {newer}.*up to {newer - 1}.*upgrade"):
        open_store(url)
    assert kind != "sqlite" or file_of(url).read_bytes() == before


async def test_opening_again_changes_nothing(kind: str, new_url: Callable[..., str]) -> None:
    url = new_url(kind)
    first = open_at(url)
    thread = await new_thread(first, "kept")
    await first.close()
    for _ in range(2):
        again = open_store(url)
        assert await read_history(again, thread) == "kept"
        await again.close()


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE notes (text)")
        other.commit()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        open_store(path)
    assert path.read_bytes() == before


def test_another_programs_tables_are_left_alone(new_url: Callable[..., str]) -> None:
    url = new_url("postgresql", empty=True)
    execute(url, "CREATE TABLE sessions (theirs TEXT)", "INSERT INTO sessions VALUES ('x')")
    with pytest.raises(StoreError, match="sessions"):
        open_store(url)
    with psycopg.connect(url) as server:
        assert server.execute("SELECT * FROM sessions").fetchall() == [("x",)]
        tables = server.execute(
            "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone()
    assert tables == (1,)


def test_a_database_that_cannot_hold_every_character_is_refused(
    postgres: Postgres,
) -> None:
    postgres.admin.execute(
        "CREATE DATABASE et_ascii TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"
    )
    try:
        with pytest.raises(StoreError, match="UTF8"):
            open_store(as_url(postgres.url_of("et_ascii")))
    finally:
        postgres.admin.execute("DROP DATABASE et_ascii WITH (FORCE)")


async def test_ids_sort_alike_whatever_the_servers_language(postgres: Postgres) -> None:
    try:
        postgres.admin.execute(
            "CREATE DATABASE et_icu TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
        )
    except psycopg.Error as error:
        pytest.skip(f"this server has no such language: {error}")
    store = open_at(as_url(postgres.url_of("et_icu")))
    try:
        for name in ("abc-1", "ABD", "ab"):
            await store.create_session(NewSession(id=name))
        stored_session = await store.resolve("abc")
        assert stored_session.id == "abc-1"
        stored_session = await store.resolve("AB")
        assert stored_session.id == "ABD"
        with pytest.raises(UnknownIdError):
            await store.resolve("abd")
        sessions = await store.list_sessions()
        assert [session.id for session in sessions] == [
            "ABD",
            "ab",
            "abc-1",
        ]
    finally:
        await store.close()
        postgres.admin.execute("DROP DATABASE et_icu WITH (FORCE)")


async def test_a_copy_is_made_before_the_store_is_brought_up_to_date(
    kind: str, new_url: Callable[..., str], tmp_path: Path
) -> None:
    url = new_url(kind)
    copy = tmp_path / "before"
    store = open_at(url)
    await store.close()
    latest = latest_of(store)
    _, before, after = migrate_store(url, backup=str(copy))
    assert before == latest
    assert after == latest
    assert copy.stat().st_size > 0
