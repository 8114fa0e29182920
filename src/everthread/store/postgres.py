"""PostgreSQL: the store for several gateways on several machines. Needs nothing a plain server lacks."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from contextlib import closing

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import NullConnectionPool

from everthread.errors import (
    ConfigError,
    EverthreadError,
    InputError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from everthread.store import schema
from everthread.store.database import Connection, Row, Tx, new_private_file, no_store
from everthread.store.indexing import Piece
from everthread.store.postgres_connection import DIALECT, PostgresConnection, PostgresWriter
from everthread.store.postgres_search import BLOCKS, as_tsvector, block, window, windows
from everthread.store.queries import Candidate, Match, rounded

POOL = 8
CONNECT_SECONDS = 10.0
MIGRATION_LOCK = 0x45_56_54_48


class PostgresDatabase:
    """A database on a server."""

    dialect = DIALECT

    def __init__(self, url: str) -> None:
        self.url = url
        self._writer = uuid.uuid4().hex
        self._batches = itertools.count(1)
        self.location = without_password(url)
        # It connects in the thread that asks, so that what the server objects to is told there and at once.
        self._pool = NullConnectionPool(
            url, max_size=POOL, open=False, timeout=CONNECT_SECONDS, name="everthread",
            kwargs={"autocommit": True, "connect_timeout": int(CONNECT_SECONDS), "application_name": "everthread"},
        )  # fmt: skip

    def prepare(self, *, create: bool = True) -> int:
        """Bring the schema up to date. An advisory lock lets one process at a time do it; a newer one is refused."""
        self._pool.open()
        try:
            with closing(self._open("BEGIN")) as connection:
                return self._migrate(connection, create=create)
        except psycopg.Error as error:
            self.close()
            raise self.explain(error) from error
        except EverthreadError:
            self.close()
            raise

    def _migrate(self, connection: PostgresConnection, *, create: bool) -> int:
        encoding = connection.one("SHOW server_encoding")
        if encoding and encoding[0] != "UTF8":
            raise StoreError(f"{self.location}: has the encoding {encoding[0]}; a store needs a database with UTF8")
        known = connection.one("SELECT to_regclass('schema_version')")
        before = number = schema.current(connection) if known and known[0] else 0
        schema.refuse_newer(number, DIALECT.name, self.location)
        if not before and not create:
            raise no_store(self.location)
        while number < schema.latest(DIALECT.name):
            connection.begin()
            connection.run("SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK,))
            migration = schema.apply_next(connection)
            connection.commit()
            number = migration.number if migration else schema.latest(DIALECT.name)
        return before

    def connect_writer(self) -> Connection:
        raw = self._pool.getconn()
        try:
            return PostgresWriter(raw, self._pool.putconn, self._writer, self._batches)
        except BaseException:
            self._pool.putconn(raw)  # else every connection that breaks at once is one less that can be had
            raise

    def connect_reader(self) -> Connection:
        return self._open("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def _open(self, begin: str) -> PostgresConnection:
        return PostgresConnection(self._pool.getconn(), self._pool.putconn, begin)

    def close(self) -> None:
        self._pool.close()

    def is_passing(self, error: BaseException) -> bool:
        passing = (
            pg.SerializationFailure,
            pg.DeadlockDetected,
            pg.AdminShutdown,
            pg.CrashShutdown,
            pg.CannotConnectNow,
            pg.TooManyConnections,
            pg.LockNotAvailable,
            pg.IdleInTransactionSessionTimeout,
        )
        if isinstance(error, passing):
            return True
        # A connection that broke has no SQLSTATE; one that was refused for good (bad password) has.
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and error.sqlstate is None

    def explain(self, error: BaseException) -> BaseException:
        place, words = self.location, " ".join(str(error).split())
        match error:
            case pg.DiskFull():
                return StoreFullError(f"{place}: the server's disk is full; nothing that was confirmed is lost")
            case pg.ReadOnlySqlTransaction() | pg.InsufficientPrivilege():
                return StoreReadOnlyError(f"{place}: cannot be written: {words}")
            case pg.DeadlockDetected() | pg.SerializationFailure() | pg.LockNotAvailable():
                return StoreBusyError(f"{place}: others were changing the same; try again")
            case psycopg.DataError() | psycopg.IntegrityError() | UnicodeEncodeError():
                return InputError(f"{place}: a value cannot be stored: {words}")
            case psycopg.OperationalError() | psycopg.InterfaceError():
                return StoreUnreachableError(f"{place}: cannot be reached: {words}")
            case psycopg.Error():
                return StoreError(f"{place}: {words}")
        return error

    # Search

    def index(self, tx: Tx, pieces: Sequence[Piece]) -> None:
        tx.many(
            "INSERT INTO search (piece_id, terms, filters) VALUES (?, ?::tsvector, ?::tsvector)",
            [
                (piece.id, as_tsvector(piece.terms), " ".join([*piece.names, *(block(piece.id, b) for b in BLOCKS)]))
                for piece in pieces
            ],
        )

    def unindex(self, tx: Tx, piece_ids: Sequence[int]) -> None:
        tx.run("DELETE FROM search WHERE piece_id = ANY(?)", (list(piece_ids),))

    def match(self, tx: Tx, question: Match, limit: int) -> list[Candidate]:
        return [Candidate(row[0], tuple(map(rounded, row[1:]))) for row in self._matching(tx, question, limit)]

    def holding(self, tx: Tx, question: Match, limit: int) -> list[int]:
        return [row[0] for row in self._matching(tx, question, limit)]

    def _matching(self, tx: Tx, question: Match, limit: int) -> list[Row]:
        """Window by window, newest first, so that it costs what is found, not what there is."""
        newest = tx.one("SELECT MAX(piece_id) FROM search")
        last = newest[0] if newest and newest[0] is not None else -1
        found: list[Row] = []
        for number, (bits, first, before) in enumerate(windows(question.first, min(question.before, last + 1))):
            # A beginning of words is costly to look up in the index, and cheap to see in a few texts.
            seen = number == 0 and any(phrase.prefix for phrase in question.phrases)
            found += window(tx, question, bits, first, before, limit - len(found), seen=seen)
            if len(found) == limit:
                break
        return found

    # Care

    def problems(self, tx: Tx) -> list[str]:
        row = tx.one("SELECT COUNT(*) FROM pg_index WHERE NOT indisvalid")
        return [f"{row[0]} index(es) are invalid: run REINDEX"] if row and row[0] else []

    def size(self, tx: Tx) -> int:
        row = tx.one("SELECT pg_database_size(current_database())")
        return int(row[0]) if row else 0

    def backup(self, connection: Connection, target: str) -> None:  # noqa: ARG002 - the server's own tool connects
        """A dump in PostgreSQL's own format, by the server's own tool; `pg_restore` reads it."""
        tool = shutil.which("pg_dump")
        if tool is None:
            raise StoreError(
                f"{self.location}: backing up a server needs pg_dump on the PATH; `sessions export` saves threads"
            )
        known = {name: str(value) for name, value in conninfo_to_dict(self.url).items()}
        secret = {"PGPASSWORD": known.pop("password")} if "password" in known else {}  # not for all to see in `ps`
        with new_private_file(target):
            done = subprocess.run(  # noqa: S603 - pg_dump, with our own arguments
                [tool, "--format=custom", f"--file={target}", f"--dbname={make_conninfo(**known)}"],
                env={**os.environ, **secret},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise StoreError(f"{self.location}: pg_dump failed: {' '.join(done.stderr.split())}")

    def vacuum(self, connection: Connection) -> None:
        connection.run("DELETE FROM writers WHERE seen < now() - interval '1 day'")
        connection.run("VACUUM ANALYZE")


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    unreadable = ConfigError(
        "the store's url cannot be read: it is like postgresql://user:password@host:5432/database, "
        "with % codes for special characters in the password"
    )
    try:
        known = conninfo_to_dict(url)
    except psycopg.Error:
        raise unreadable from None  # what the driver says may quote the password
    port = str(known.get("port", ""))
    if port.strip("0123456789,"):
        raise unreadable
    user = f"{known['user']}@" if "user" in known else ""
    return f"postgresql://{user}{known.get('host', '')}{port and ':'}{port}/{known.get('dbname', '')}"
