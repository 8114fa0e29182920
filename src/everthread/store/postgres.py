"""PostgreSQL: the store for several gateways on several machines. No extensions of the server are needed."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import socket
import subprocess
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

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
from everthread.store.database import (
    Connection,
    Database,
    Dialect,
    Row,
    SqlQuery,
    Tx,
    missing_store_error,
    new_private_file,
)
from everthread.store.schema import (
    Migration,
    apply_migrations,
    load_migrations,
    load_version,
    refuse_newer_schema,
)
from everthread.store.search.index_query import IndexMatch, IndexQuery, round_strength
from everthread.store.search.postgres_index import (
    BLOCK_SIZES_BITS,
    make_id_block_term,
    make_tsvector,
    match_newest_first,
)
from everthread.store.search.text_chunks import IndexChunk

DIALECT = Dialect(
    name="postgresql",
    now="extract(epoch FROM clock_timestamp())::double precision",
    for_update="FOR UPDATE",
    for_share="FOR SHARE",
    skip_locked="FOR UPDATE SKIP LOCKED",
    notify="SELECT pg_notify('everthread', left(?, 2000))",
    select_new_ids="SELECT nextval('{0}_id_seq') FROM generate_series(1, ?)",
    utc_date="to_char(to_timestamp({0}) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    select_newest="",
)
MAX_IDLE_SECONDS = 60
"""Seconds after which the server ends an idle transaction."""
PREPARE_AFTER_RUNS = 3
"""Runs of a writer's statement after which its plan is kept."""
DOUBT_LOCK_TIMEOUT_SECONDS = 1
"""Seconds to wait for the lock of a batch whose outcome is unknown."""
POOL_CONNECTIONS = 8
CONNECT_TIMEOUT_SECONDS = 10.0
CONNECTION_SETTINGS: dict[str, Any] = {
    "connect_timeout": int(CONNECT_TIMEOUT_SECONDS),
    "application_name": "everthread",
    # A server that vanished is noticed within ten seconds.
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
LISTEN_POLL_INTERVAL_SECONDS = 0.5
RELISTEN_DELAY_SECONDS = 2.0
MIGRATION_LOCK = 0x45_56_54_48
"""The number of the advisory lock that a migration holds."""
TRANSIENT_ERRORS = (
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.TooManyConnections,
    pg.LockNotAvailable,
    pg.IdleInTransactionSessionTimeout,
)
RETRYABLE_ERRORS = pg.DeadlockDetected | pg.SerializationFailure | pg.LockNotAvailable
log = logging.getLogger(__name__)
_PLACEHOLDER_PATTERN = re.compile(r"\?")
_INSERT_STATEMENT_PATTERN = re.compile(r"(INSERT INTO .* VALUES )(\([^()]*\))")
MAX_VALUES_PER_INSERT = 50
"""The most values inserted by one statement; the driver does not cache larger statements."""


class PostgresConnection(Connection):
    """One psycopg connection in autocommit mode; transactions are begun and ended by hand."""

    dialect = DIALECT

    def __init__(
        self,
        raw: psycopg.Connection[Row],
        pool: NullConnectionPool,
        begin: str = "BEGIN",
    ) -> None:
        super().__init__(begin)
        self.raw = raw
        self._pool = pool

    def _execute(self, sql: str, values: Sequence[Any]) -> psycopg.Cursor[Row]:
        # The statements are our own constants; psycopg wants them typed as literals.
        return self.raw.execute(_PLACEHOLDER_PATTERN.sub("%s", sql).encode(), tuple(values) or None)

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        return self.all_of_each([(sql, values)])[0]

    def all_of_each(self, queries: Sequence[SqlQuery]) -> list[list[Row]]:
        cursors = [self._execute(*query) for query in queries]
        return [cursor.fetchall() for cursor in cursors]

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        self._execute(sql, values)

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        remaining_rows = [tuple(row) for row in rows]
        insert_match = _INSERT_STATEMENT_PATTERN.fullmatch(sql)
        if insert_match and remaining_rows:
            batch_size = max(1, MAX_VALUES_PER_INSERT // len(remaining_rows[0]))
            batch_sql = insert_match[1] + ", ".join([insert_match[2]] * batch_size)
            batched_count = len(remaining_rows) // batch_size * batch_size
            for start in range(0, batched_count, batch_size):
                batch = remaining_rows[start : start + batch_size]
                self.run(batch_sql, list(itertools.chain.from_iterable(batch)))
            remaining_rows = remaining_rows[batched_count:]
        with self.raw.cursor() as cursor:
            cursor.executemany(_PLACEHOLDER_PATTERN.sub("%s", sql).encode(), remaining_rows)

    @property
    def in_transaction(self) -> bool:
        return self.raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def close(self) -> None:
        self._pool.putconn(self.raw)

    def index(self, chunks: Sequence[IndexChunk]) -> None:
        rows = []
        for chunk in chunks:
            block_terms = [make_id_block_term(chunk.id, bits) for bits in BLOCK_SIZES_BITS]
            filters = " ".join([*chunk.filter_terms, *block_terms])
            rows.append((chunk.id, make_tsvector(chunk.terms), filters))
        self.run_many(
            "INSERT INTO search (chunk_id, terms, filters) VALUES (?, ?::tsvector, ?::tsvector)",
            rows,
        )

    def unindex(self, chunk_ids: Sequence[int]) -> None:
        self.run("DELETE FROM search WHERE chunk_id = ANY(?)", (list(chunk_ids),))

    def match(self, query: IndexQuery, limit: int) -> list[IndexMatch]:
        rows = match_newest_first(self, query, limit)
        return [IndexMatch(row[0], tuple(map(round_strength, row[1:]))) for row in rows]

    def match_ids(self, query: IndexQuery, limit: int) -> list[int]:
        return [row[0] for row in match_newest_first(self, query, limit)]


class PostgresWriter(PostgresConnection):
    """A connection that writes. Each transaction stores its number, which later shows whether it was committed.

    The server's own transaction numbers are not used: after a crash it reuses lost ones. Within a transaction only
    SELECTs wait for the server; other statements are sent along with the next SELECT.
    """

    def __init__(
        self,
        raw: psycopg.Connection[Row],
        pool: NullConnectionPool,
        writer_id: str,
        batch_numbers: Iterator[int],
    ) -> None:
        super().__init__(raw, pool)
        # If this machine vanishes, the locks of its last transaction are freed soon.
        self.run(f"SET idle_in_transaction_session_timeout = '{MAX_IDLE_SECONDS}s'")
        self._writer_id = writer_id
        self._batch_numbers = batch_numbers
        self._batch = 0
        self._is_begun_on_server = False
        """Whether the server has certainly begun the transaction, so that others see that it has not ended."""
        self._pipeline_stack = ExitStack()
        self._pipeline: psycopg.Pipeline | None = None

    def begin(self) -> None:
        self.in_doubt = None
        self._is_begun_on_server = False
        self._batch = next(self._batch_numbers)
        self.raw.prepare_threshold = PREPARE_AFTER_RUNS
        if psycopg.Pipeline.is_supported():
            self._pipeline = self._pipeline_stack.enter_context(self.raw.pipeline())
        self.run("BEGIN")
        self.run(
            "INSERT INTO writers (id, batch) VALUES (?, ?) "
            "ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, seen = now()",
            (self._writer_id, self._batch),
        )

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open. The driver does not know while answers are missing."""
        return self._pipeline is not None or super().in_transaction

    def all_of_each(self, queries: Sequence[SqlQuery]) -> list[list[Row]]:
        rows_of_each = super().all_of_each(queries)
        self._is_begun_on_server = True
        return rows_of_each

    def commit(self) -> None:
        if not self._is_begun_on_server:
            # Otherwise the batch could seem lost although the server receives it later.
            self._wait_for_server()
        self.in_doubt = self._batch
        self.run("COMMIT")
        self._finish_pipeline()
        self.in_doubt = None

    def rollback(self) -> None:
        try:
            self._finish_pipeline()
        except psycopg.Error as error:
            log.debug("an error in a statement that is undone: %s", error)
        # The driver's own rollback also forgets prepared statements, some of which failed with the others.
        self.raw.rollback()

    def savepoint(self) -> None:
        # A failure after a savepoint undoes prepared statements that the driver believes exist.
        self.raw.prepare_threshold = None
        super().savepoint()

    def _finish_pipeline(self) -> None:
        """Wait until the server has run all statements that were sent; raise the error of one that failed."""
        self._pipeline = None
        self._pipeline_stack.close()

    def release(self) -> None:
        super().release()
        self._wait_for_server()

    def rollback_to_savepoint(self) -> None:
        try:
            self._wait_for_server()
        except psycopg.Error as error:
            log.debug("an error in a statement that is undone: %s", error)
        super().rollback_to_savepoint()
        self._wait_for_server()

    def _wait_for_server(self) -> None:
        if self._pipeline is not None:
            self._pipeline.sync()

    def was_committed(self, batch: int) -> bool:
        # Until the server notices that the other connection broke, the row is locked: the caller asks again later.
        # A row inserted by the other connection is not visible yet; inserting it waits for that connection.
        self.run(
            f"BEGIN; SET LOCAL lock_timeout = '{DOUBT_LOCK_TIMEOUT_SECONDS}s'; "
            f"INSERT INTO writers (id, batch) VALUES ('{self._writer_id}', 0) ON CONFLICT (id) DO NOTHING; COMMIT"
        )
        last_batch = self.value(
            "SELECT batch FROM writers WHERE id = ? FOR UPDATE NOWAIT",
            (self._writer_id,),
        )
        return bool(last_batch == batch)


class PostgresDatabase(Database):
    """A database on a server."""

    dialect = DIALECT
    is_remote = True
    error_translations = (
        (
            pg.DiskFull,
            StoreFullError,
            "the server's disk is full; nothing that was confirmed is lost",
        ),
        (
            pg.ReadOnlySqlTransaction | pg.InsufficientPrivilege,
            StoreReadOnlyError,
            "cannot be written: {}",
        ),
        (RETRYABLE_ERRORS, StoreBusyError, "others changed the same rows; try again"),
        (
            psycopg.DataError | psycopg.IntegrityError | UnicodeEncodeError,
            InputError,
            "a value cannot be stored: {}",
        ),
        (
            psycopg.OperationalError | psycopg.InterfaceError,
            StoreUnreachableError,
            "cannot be reached: {}",
        ),
        (psycopg.Error, StoreError, "{}"),
    )

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process open its own connections."""
        return PostgresDatabase, (self.url,)

    def __init__(self, url: str, migrations: Sequence[Migration] | None = None) -> None:
        self.url = url
        self.migrations = migrations or load_migrations(DIALECT.name)
        self._writer_id = uuid.uuid4().hex
        self._batch_numbers = itertools.count(1)
        self.location = hide_password(url)
        # Connect in the calling thread, so that the server's objections are raised there and at once.
        self._pool = NullConnectionPool(
            url,
            max_size=POOL_CONNECTIONS,
            open=False,
            timeout=CONNECT_TIMEOUT_SECONDS,
            name="everthread",
            kwargs={"autocommit": True, **CONNECTION_SETTINGS},
        )
        self._connections: weakref.WeakSet[psycopg.Connection[Row]] = weakref.WeakSet()
        self._connections_lock = threading.Lock()

    def prepare(self, *, create: bool = True) -> int:
        self._pool.open()
        try:
            with closing(PostgresConnection(self._connect(), self._pool)) as connection:
                return self._migrate(connection, create=create)
        except psycopg.Error as error:
            self.close()
            raise self.explain(error) from error
        except EverthreadError:
            self.close()
            raise

    def _migrate(self, connection: PostgresConnection, *, create: bool) -> int:
        """Run missing migrations under an advisory lock; return the schema number before."""
        encoding = connection.value("SHOW server_encoding")
        if encoding != "UTF8":
            raise StoreError(
                f"{self.location}: has the encoding {encoding}; a store needs a database with UTF8"
            )
        has_table = connection.value("SELECT to_regclass('schema_version')")
        old_version = load_version(connection) if has_table else 0
        refuse_newer_schema(old_version, self.migrations, self.location)
        if not old_version and not create:
            raise missing_store_error(self.location)
        if old_version < self.migrations[-1].number:
            connection.begin()
            connection.run("SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK,))
            apply_migrations(connection, self.migrations)
            connection.commit()
        return old_version

    def connect_writer(self) -> Connection:
        raw = self._connect()
        try:
            return PostgresWriter(raw, self._pool, self._writer_id, self._batch_numbers)
        except BaseException:
            # If the connection is not returned, the pool has one less forever.
            self._pool.putconn(raw)
            raise

    def connect_reader(self) -> Connection:
        return PostgresConnection(
            self._connect(),
            self._pool,
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        )

    def _connect(self) -> psycopg.Connection[Row]:
        raw = self._pool.getconn()
        with self._connections_lock:
            self._connections.add(raw)
        return raw

    def close(self) -> None:
        self._pool.close()

    def interrupt(self) -> None:
        """Shut the sockets down: the driver waits for an unresponsive server without a time limit."""
        with self._connections_lock:
            connections = list(self._connections)
        for raw in connections:
            with (
                suppress(psycopg.Error, OSError),
                socket.socket(fileno=os.dup(raw.fileno())) as connection_socket,
            ):
                connection_socket.shutdown(socket.SHUT_RDWR)

    def listen(self, on_change: Callable[[str], None], stop: threading.Event) -> None:
        """Listen for changes on a separate connection.

        Call `on_change("")` after each connect, because changes may have been missed.
        """
        while not stop.is_set():
            try:
                with psycopg.connect(self.url, autocommit=True, **CONNECTION_SETTINGS) as raw:
                    raw.execute("LISTEN everthread")
                    on_change("")
                    while not stop.is_set():
                        for notice in raw.notifies(timeout=LISTEN_POLL_INTERVAL_SECONDS):
                            on_change(notice.payload)
            except psycopg.Error as error:
                log.debug(
                    "the server sends no notifications: %s",
                    " ".join(str(error).split()),
                )
                stop.wait(RELISTEN_DELAY_SECONDS)

    def is_transient(self, error: BaseException) -> bool:
        # A connection that broke has no SQLSTATE; one that was refused for good (bad password) has.
        is_broken = (
            isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            and error.sqlstate is None
        )
        return is_broken or isinstance(error, TRANSIENT_ERRORS)

    def find_problems(self, tx: Tx) -> list[str]:
        invalid = tx.value("SELECT COUNT(*) FROM pg_index WHERE NOT indisvalid")
        return [f"{invalid} index(es) are invalid: run REINDEX"] if invalid else []

    def size(self, tx: Tx) -> int:
        return int(tx.value("SELECT pg_database_size(current_database())"))

    def backup(self, target: str) -> None:
        """Dump the database with `pg_dump` in PostgreSQL's own format; `pg_restore` reads it."""
        tool = shutil.which("pg_dump")
        if tool is None:
            raise StoreError(
                f"{self.location}: backing up a server needs pg_dump on the PATH; `sessions export` saves threads"
            )
        parameters = {name: str(value) for name, value in conninfo_to_dict(self.url).items()}
        # In the environment, so that `ps` does not show it.
        secret = {"PGPASSWORD": parameters.pop("password")} if "password" in parameters else {}
        with new_private_file(target):
            process = subprocess.run(  # noqa: S603 - pg_dump, with our own arguments
                [
                    tool,
                    "--format=custom",
                    f"--file={target}",
                    f"--dbname={make_conninfo(**parameters)}",
                ],
                env={**os.environ, **secret},
                capture_output=True,
                text=True,
                check=False,
            )
            if process.returncode:
                raise StoreError(
                    f"{self.location}: pg_dump failed: {' '.join(process.stderr.split())}"
                )

    def vacuum(self, connection: Connection) -> None:
        connection.run("DELETE FROM writers WHERE seen < now() - interval '1 day'")
        connection.run("VACUUM ANALYZE")


def hide_password(url: str) -> str:
    """Return the URL without its password, for messages."""
    unreadable = ConfigError(
        "the store's url cannot be read: write it like postgresql://user:password@host:5432/database, "
        "with % codes for special characters in the password"
    )
    try:
        parameters = conninfo_to_dict(url)
    except psycopg.Error:
        raise unreadable from None  # the driver's message may quote the password
    port = str(parameters.get("port", ""))
    if port.strip("0123456789,"):
        raise unreadable
    user = f"{parameters['user']}@" if "user" in parameters else ""
    return f"postgresql://{user}{parameters.get('host', '')}{port and ':'}{port}/{parameters.get('dbname', '')}"
