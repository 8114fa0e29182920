"""PostgreSQL: the store for several gateways on several machines. Needs nothing a plain server lacks."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import NullConnectionPool

from everthread.errors import (
    ConfigError,
    InputError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from everthread.stores import schema
from everthread.stores.database import Connection, Dialect, Row, Tx, new_private_file
from everthread.stores.indexing import MOST_REPEATS, MOST_TERMS, Piece
from everthread.stores.queries import Candidate, Match, Phrase, rounded

DIALECT = Dialect(
    name="postgresql",
    now="extract(epoch FROM clock_timestamp())::double precision",
    lock="FOR UPDATE",
    share="FOR SHARE",
    skip_locked="FOR UPDATE SKIP LOCKED",
    day="to_char(to_timestamp({0}) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
)
POOL = 8
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60
MIGRATION_LOCK = 0x45_56_54_48

_PLACEHOLDER = re.compile(r"\?")


class PostgresConnection:
    """One psycopg connection in autocommit mode; transactions are begun and ended by hand."""

    dialect = DIALECT

    def __init__(
        self, raw: psycopg.Connection[Row], give_back: Callable[[psycopg.Connection[Row]], None], begin: str
    ) -> None:
        self.raw = raw
        self.in_doubt: int | None = None
        self._give_back = give_back
        self._begin = begin

    def _execute(self, sql: str, values: Sequence[Any]) -> psycopg.Cursor[Row]:
        # The statements are our own constants; psycopg wants them typed as literals.
        return self.raw.execute(_PLACEHOLDER.sub("%s", sql).encode(), tuple(values) or None)

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._execute(sql, values).fetchall()

    def one(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        return self._execute(sql, values).fetchone()

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        self._execute(sql, values)

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_PLACEHOLDER.sub("%s", sql).encode(), [tuple(row) for row in rows])

    def begin(self) -> None:
        self.run(self._begin)

    def commit(self) -> None:
        self.run("COMMIT")

    def committed(self, batch: int) -> bool:
        raise NotImplementedError(f"nothing is written here, so batch {batch} cannot be in doubt")

    def rollback(self) -> None:
        if self.raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self.run("ROLLBACK")

    def savepoint(self) -> None:
        self.run("SAVEPOINT item")

    def release(self) -> None:
        self.run("RELEASE SAVEPOINT item")

    def rollback_to_savepoint(self) -> None:
        self.run("ROLLBACK TO SAVEPOINT item")

    def close(self) -> None:
        self._give_back(self.raw)


class PostgresWriter(PostgresConnection):
    """A connection that writes. Each transaction carries its number, so that one can see whether it was committed.

    (The server's own numbers of transactions do not serve: after a crash it gives lost ones to others.)
    """

    def __init__(
        self, raw: psycopg.Connection[Row], give_back: Callable[[psycopg.Connection[Row]], None], writer: str,
        numbers: Iterator[int],
    ) -> None:  # fmt: skip
        super().__init__(raw, give_back, "BEGIN")
        # Should this machine vanish, what its last transaction holds is free again soon.
        self.run(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
        self._writer = writer
        self._numbers = numbers
        self._batch = 0

    def begin(self) -> None:
        self.in_doubt = None
        self._batch = next(self._numbers)
        # Without values, so that all of it is one message to the server.
        self.run(
            f"BEGIN; INSERT INTO writers (id, batch) VALUES ('{self._writer}', {self._batch}) "
            f"ON CONFLICT (id) DO UPDATE SET batch = {self._batch}, seen = now()"
        )

    def commit(self) -> None:
        self.in_doubt = self._batch
        self.run("COMMIT")
        self.in_doubt = None

    def committed(self, batch: int) -> bool:
        # While the server has not noticed that the other connection broke, the row is locked: one asks again later.
        row = self.one("SELECT batch FROM writers WHERE id = ? FOR UPDATE NOWAIT", (self._writer,))
        return row is not None and row[0] == batch


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

    def prepare(self) -> None:
        """Bring the schema up to date. An advisory lock lets one process at a time do it; a newer one is refused."""
        self._pool.open()
        try:
            with closing(self._open("BEGIN")) as connection:
                self._migrate(connection)
        except psycopg.Error as error:
            self.close()
            raise self.explain(error) from error
        except StoreError:
            self.close()
            raise

    def _migrate(self, connection: PostgresConnection) -> None:
        encoding = connection.one("SHOW server_encoding")
        if encoding and encoding[0] != "UTF8":
            raise StoreError(f"{self.location}: has the encoding {encoding[0]}; a store needs a database with UTF8")
        known = connection.one("SELECT to_regclass('schema_version')")
        number = schema.current(connection) if known and known[0] else 0
        schema.refuse_newer(number, DIALECT.name, self.location)
        while number < schema.latest(DIALECT.name):
            connection.begin()
            connection.run("SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK,))
            migration = schema.apply_next(connection)
            connection.commit()
            number = migration.number if migration else schema.latest(DIALECT.name)

    def connect_writer(self) -> Connection:
        return PostgresWriter(self._pool.getconn(), self._pool.putconn, self._writer, self._batches)

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

    def ends_transaction(self, error: BaseException) -> bool:
        """Only a lost connection does, and that passes."""
        return self.is_passing(error)

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
        """Window by window, newest first, so that it costs what is found, not what there is."""
        newest = tx.one("SELECT MAX(piece_id) FROM search")
        last = newest[0] if newest and newest[0] is not None else -1
        found: list[Candidate] = []
        for number, (bits, first, before) in enumerate(windows(question.first, min(question.before, last + 1))):
            # A beginning of words is costly to look up in the index, and cheap to see in a few texts.
            seen = number == 0 and any(phrase.prefix for phrase in question.phrases)
            rows = _window(tx, question, bits, first, before, limit - len(found), seen=seen)
            found += [Candidate(row[0], tuple(map(rounded, row[1:]))) for row in rows]
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


def _window(tx: Tx, question: Match, bits: int | None, first: int, before: int, limit: int, *, seen: bool) -> list[Row]:
    """The newest matches between two ids."""
    names = [" | ".join(f"'{name}'" for name in names) for names in question.names]
    if bits is not None:
        blocks = range(first >> bits, (before - 1 >> bits) + 1)
        names.append(" | ".join(f"'{block(number << bits, bits)}'" for number in blocks))
    has_terms = "(s.terms @@ ?::tsquery) IS TRUE" if seen else "s.terms @@ ?::tsquery"
    where = f"AND (SELECT {question.where} FROM pieces p WHERE p.id = s.piece_id)" if question.where else ""
    ranks = "".join(", ts_rank('{1, 1, 1, 1}', f.terms, ?::tsquery)" for _ in question.weighed)
    return tx.all(
        f"SELECT f.piece_id{ranks} FROM (SELECT s.piece_id, s.terms FROM search s "
        # `+ 0`: never by the primary key, which would be to look at every text.
        f"WHERE {has_terms} AND s.filters @@ ?::tsquery AND s.piece_id + 0 >= ? AND s.piece_id + 0 < ? {where} "
        "ORDER BY s.piece_id + 0 DESC LIMIT ?) f ORDER BY f.piece_id DESC",
        (
            *(f"'{term}'" for term in question.weighed), " & ".join(map(_phrase, question.phrases)),
            " & ".join(f"({one_of})" for one_of in names), first, before, *question.values, limit,
        ),
    )  # fmt: skip


def windows(first: int, before: int) -> Iterator[tuple[int | None, int, int]]:
    """From the newest ids to the oldest, ever wider: how large the blocks to name are, the first id, the one behind."""
    for bits, reach in ((10, 10), (10, 13), (13, 16), (16, 20)):
        if before <= first:
            return
        start = max(first, ((before >> reach) - 1) << reach)
        yield bits, start, before
        before = start
    if before > first:
        yield None, first, before


BLOCKS = (10, 13, 16)
"""Every piece is indexed under the block of ids it is in, of these sizes in bits: so one can ask for the newest."""


def block(piece_id: int, bits: int) -> str:
    return f"block{bits}_{piece_id >> bits}"


def _phrase(phrase: Phrase) -> str:
    """Terms in a row, as a `tsquery` is written. Terms hold no quotes: they are encoded."""
    run = " <-> ".join(f"'{term}'" for term in phrase.terms)
    return f"({run}{':*' if phrase.prefix else ''})"


def as_tsvector(terms: Sequence[str]) -> str:
    """The terms with their positions, as a literal no parser touches."""
    places: dict[str, list[str]] = {}
    for position, term in enumerate(terms[:MOST_TERMS], 1):
        places.setdefault(term, []).append(str(position))
    return " ".join(f"'{term}':{','.join(at[:MOST_REPEATS])}" for term, at in places.items())


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
