"""A store to test, on each database. Every test that has one ends with a check that it is still sound."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from everthread.store.database import Database
from everthread.store.postgres import PostgresDatabase
from everthread.store.records import NewSession
from everthread.store.sqlite import SqliteDatabase
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.store.postgres_server import NoServerError, Server, server_in

START = 1_700_000_000.0
BACKENDS = ("sqlite", "postgresql")
GIVEN_SERVER = "EVERTHREAD_TEST_POSTGRES"


@dataclass
class Postgres:
    """A server on which databases can be created."""

    url: str
    template: str = field(default_factory=lambda: f"et_template_{uuid.uuid4().hex}")

    def __post_init__(self) -> None:
        self.admin = psycopg.connect(self.url, autocommit=True)
        self._create(self.template, "template0")
        database = PostgresDatabase(self.url_of(self.template))
        database.prepare()
        database.close()
        self._emptied: list[str] = []
        with psycopg.connect(self.url_of(self.template)) as connection:
            tables = [
                str(name)
                for (name,) in connection.execute(
                    "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
                )
            ]
            self._filled = [name for name in tables if _rows(connection, name)]
            sequences = connection.execute("SELECT sequencename FROM pg_sequences").fetchall()
            self._shape = self._look(connection)
        emptied = [
            f'DELETE FROM "{name}"'  # noqa: S608
            for name in tables
            if name not in self._filled
        ]
        emptied += [f'ALTER SEQUENCE "{name}" RESTART' for (name,) in sequences]
        self._emptying = ("SET session_replication_role = replica; " + "; ".join(emptied)).encode()

    def url_of(self, name: str) -> str:
        return make_conninfo(self.url, dbname=name)

    def new(self, *, empty: bool = False) -> str:
        """Return the URL of a database without rows, with or without the schema."""
        if self._emptied and not empty:
            return as_url(self.url_of(self._emptied.pop()))
        name = f"et_{uuid.uuid4().hex}"
        self._create(name, "template0" if empty else self.template)
        return as_url(self.url_of(name))

    def drop(self, url: str) -> None:
        """Empty the database for the next test if its schema is still the template's; otherwise drop it."""
        name = str(conninfo_to_dict(url)["dbname"])
        if self._is_emptied(name):
            self._emptied.append(name)
        else:
            self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _look(self, connection: psycopg.Connection[Any]) -> list[Any]:
        """Return the tables, indexes, sequences, functions and initial rows of a database."""
        found = connection.execute(
            "SELECT relname, relkind, relnatts FROM pg_class WHERE relnamespace = 'public'::regnamespace UNION ALL "
            "SELECT proname, 'f', pronargs FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1, 2"
        ).fetchall()
        return [*found, *(_rows(connection, name) for name in self._filled)]

    def _is_emptied(self, name: str) -> bool:
        try:
            self.admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                (name,),
            )
            with psycopg.connect(self.url_of(name)) as connection:
                if self._look(connection) != self._shape:
                    return False
                connection.execute(self._emptying)
                return True
        except psycopg.Error:
            return False

    def close(self) -> None:
        self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.template)
        self.admin.close()

    def _create(self, name: str, template: str) -> None:
        self._run("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8'", name, template)

    def _run(self, statement: str, *names: str) -> None:
        self.admin.execute(statement.format(*(f'"{name}"' for name in names)).encode())


def _rows(connection: psycopg.Connection[Any], table: str) -> list[Any]:
    return connection.execute(f'SELECT * FROM "{table}"'.encode()).fetchall()  # noqa: S608 - our own names


def as_url(conninfo: str) -> str:
    """Return connection settings as the URL that a user would write."""
    known = {name: quote(str(value), safe="") for name, value in conninfo_to_dict(conninfo).items()}
    login = ":".join(known.pop(name) for name in ("user", "password") if name in known)
    database = known.pop("dbname", "")
    return f"postgresql://{login}@/{database}?{'&'.join(f'{name}={value}' for name, value in known.items())}"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder all workers of a test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def postgres(run_folder: Path) -> Iterator[Postgres]:
    """Yield the server of this test run; skip the test if there is none."""
    given = os.environ.get(GIVEN_SERVER)
    if given:
        server = Postgres(given)
        yield server
        server.close()
        return
    try:
        with server_in(run_folder / "postgres") as started:
            server = Postgres(started.url())
            yield server
            server.close()
    except NoServerError as error:
        pytest.skip(f"{error} (set {GIVEN_SERVER} to the URL of one)")


@functools.cache
def _server_of_worker() -> Server:
    """The server that the tests of one worker stop and kill, one after the other: creating one takes seconds."""
    lasting = contextlib.ExitStack()
    atexit.register(lasting.close)
    folder = lasting.enter_context(tempfile.TemporaryDirectory())
    return lasting.enter_context(server_in(Path(folder)))


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Yield a server that the test may stop and kill."""
    try:
        server = _server_of_worker()
    except NoServerError as error:
        pytest.skip(str(error))
    rules = server.data / "pg_hba.conf"
    access = rules.read_text()
    yield server
    rules.write_text(access)
    _clear_server(server)


def _clear_server(server: Server) -> None:
    """Start the server if needed, and remove every database and role of a test."""
    if (server.data / "postmaster.pid").exists():
        server.thaw()
    try:
        admin = psycopg.connect(server.url(), autocommit=True)
    except psycopg.OperationalError:
        server.start()
        admin = psycopg.connect(server.url(), autocommit=True)
    with admin:
        admin.execute("SELECT pg_reload_conf()")
        made = "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'"
        for (name,) in admin.execute(made).fetchall():
            admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())
        made = (
            "SELECT rolname FROM pg_roles WHERE rolname <> 'postgres' AND left(rolname, 3) <> 'pg_'"
        )
        for (name,) in admin.execute(made).fetchall():
            admin.execute(f'DROP ROLE "{name}"'.encode())


@pytest.fixture
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that makes the URL of a fresh database of either kind."""
    made: list[str] = []

    def make(kind: str, *, empty: bool = False) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / uuid.uuid4().hex}.db"
        made.append(request.getfixturevalue("postgres").new(empty=empty))
        return made[-1]

    yield make
    for url in made:
        request.getfixturevalue("postgres").drop(url)


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of database."""
    return str(request.param)


@pytest.fixture
def url(kind: str, new_url: Callable[..., str]) -> str:
    return new_url(kind)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock(START)


@pytest.fixture
def database(url: str) -> Database:
    return open_database(url)


@pytest.fixture
def store(database: Database, clock: SteppedClock) -> Iterator[Store]:
    opened = Store(database, clock=clock)
    yield opened
    asyncio.run(close_sound(opened))


@pytest.fixture
def other_store(kind: str, new_url: Callable[..., str], clock: SteppedClock) -> Iterator[Store]:
    """A second store, on the other database."""
    opened = open_at(new_url(next(name for name in BACKENDS if name != kind)), clock)
    yield opened
    asyncio.run(close_sound(opened))


@pytest.fixture
def thread(store: Store) -> str:
    """The id of a thread without messages."""
    return asyncio.run(store.create_session(NewSession())).id


@pytest.fixture
def stores(store: Store, url: str, clock: SteppedClock) -> Iterator[list[Store]]:
    """Four stores on one database, as in four processes."""
    others = [open_at(url, clock) for _ in range(3)]
    yield [store, *others]
    for other in others:
        asyncio.run(other.close())


def open_database(url: str) -> Database:
    database = (
        SqliteDatabase(Path(url.removeprefix("sqlite:///")))
        if url.startswith("sqlite")
        else PostgresDatabase(url)
    )
    database.prepare()
    return database


def open_at(url: str, clock: Callable[[], float] | None = None) -> Store:
    """Open a store with the test's clock, or with one that does not move."""
    return Store(open_database(url), clock=clock or SteppedClock(START))


async def close_sound(store: Store) -> None:
    problems = (await store.check()).problems
    await store.close()
    assert problems == ()
