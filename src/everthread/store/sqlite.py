"""SQLite: the embedded store, one file in the Everthread home, shared by any number of processes."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import apsw

from everthread.errors import (
    InputError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from everthread.store.database import (
    Connection,
    Database,
    Dialect,
    Row,
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
from everthread.store.search.index_query import (
    TERM_STRENGTHS,
    IndexMatch,
    IndexQuery,
    QueryPhrase,
    make_detail_condition,
)
from everthread.store.search.text_chunks import MAX_TERM_REPEATS, IndexChunk
from everthread.store.sole_use import SoleUse

DIALECT = Dialect(
    name="sqlite",
    now="unixepoch('subsec')",
    for_update="",
    for_share="",
    skip_locked="",
    notify="",
    select_new_ids="SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = '{0}'), 0) + 1 WHERE ? > 0",
    utc_date="date({0}, 'unixepoch')",
    select_newest="SELECT rowid, created FROM {0} ORDER BY rowid DESC LIMIT 1",
)
BUSY_TIMEOUT_SECONDS = 10.0
FILE_MAGIC = b"SQLite format 3\0"
PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "fullfsync = ON",  # where an ordinary sync does not reach the disk (macOS)
    "cache_size = -6000",
)
INDEX_LOCK_SUFFIX = "-index"
"""The suffix of the file that a process locks while it prepares texts for the index."""
CHECKPOINT_PAGES = 1_000
"""Move the write-ahead log into the database file once it has this many pages."""


UNWRITABLE_ERRORS = apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError
LOCKED_ERRORS = apsw.BusyError | apsw.LockedError
INVALID_VALUE_ERRORS = (
    apsw.ConstraintError
    | apsw.MismatchError
    | apsw.TooBigError
    | OverflowError
    | UnicodeEncodeError
)


class SqliteConnection(Connection):
    """One apsw connection."""

    dialect = DIALECT

    def __init__(self, raw: apsw.Connection, *, begin: str) -> None:
        super().__init__(begin)
        self.raw = raw
        self._wal_file: int | None = None
        """The write-ahead log, if this connection syncs it."""
        self._is_unsynced = False
        self._wal_pages = 0

    def defer_sync(self) -> None:
        """Let commits return before they are on the disk; `sync` waits for it. Only with a write-ahead log."""
        if self.value("PRAGMA journal_mode") == "wal":
            self.run("PRAGMA synchronous = NORMAL")
            self.raw.set_wal_hook(self._record_wal_pages)

    def _record_wal_pages(self, _raw: apsw.Connection, _name: str, pages: int) -> int:
        self._is_unsynced = True
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        return self.raw.execute(sql, values).fetchall()

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        self.raw.execute(sql, values)

    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self.raw.executemany(sql, rows)

    def sync(self) -> None:
        if not self._is_unsynced:
            return
        if self._wal_file is None:
            self._wal_file = os.open(self.raw.filename_wal, os.O_RDWR)
        _sync_file(self._wal_file)
        self._is_unsynced = False

    def maintain(self) -> None:
        if self._wal_pages >= CHECKPOINT_PAGES:
            # If another process moves it or the disk is full, try later.
            with suppress(apsw.Error):
                self.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._wal_pages = 0

    @property
    def in_transaction(self) -> bool:
        return self.raw.in_transaction

    def close(self) -> None:
        with suppress(OSError):  # waiting callers got the error
            self.sync()
        if self._wal_file is not None:
            os.close(self._wal_file)
            self._wal_file = None
        self.raw.close()

    def index(self, chunks: Sequence[IndexChunk]) -> None:
        self.run_many(
            "INSERT INTO search (rowid, terms, filters) VALUES (?, ?, ?)",
            ((chunk.id, chunk.terms, " ".join(chunk.filter_terms)) for chunk in chunks),
        )

    def unindex(self, chunk_ids: Sequence[int]) -> None:
        self.run_many(
            "DELETE FROM search WHERE rowid = ?",
            ((chunk_id,) for chunk_id in chunk_ids),
        )

    def match(self, query: IndexQuery, limit: int) -> list[IndexMatch]:
        """Return matches. Chunks are read newest first, so that the cost grows with the matches, not with the store."""
        sql, values = _make_match_query(query, ", counts(search, ?)", limit)
        matches = []
        for chunk_id, counts in self.all(sql, (len(query.ranking_terms), *values)):
            strengths = tuple(TERM_STRENGTHS[count] for count in counts)
            matches.append(IndexMatch(chunk_id, strengths))
        return matches

    def match_ids(self, query: IndexQuery, limit: int) -> list[int]:
        """Return the ids of matching chunks. The ids are read as one text, because a row for each costs more."""
        sql, values = _make_match_query(query, "", limit)
        ids = self.value(f"SELECT group_concat(rowid) FROM ({sql})", values)
        return list(map(int, ids.split(","))) if ids else []


def _sync_file(file_descriptor: int) -> None:
    """Write a file to the disk. macOS needs a call of its own to get past the disk's cache."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(file_descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(file_descriptor)


def _lock_file(file: int) -> bool:
    """Lock a file until it is closed; return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class SqliteDatabase(Database):
    """A database in one file, which is private to the user, written ahead (WAL) and synced after every commit."""

    dialect = DIALECT
    error_translations = (
        (
            apsw.FullError,
            StoreFullError,
            "the disk is full; nothing that was confirmed is lost, make room and retry",
        ),
        (
            UNWRITABLE_ERRORS,
            StoreReadOnlyError,
            "cannot be written: {}; check the file's and folder's permissions",
        ),
        (
            apsw.CorruptError | apsw.NotADBError | UnicodeDecodeError,
            StoreDamagedError,
            "is damaged or not an Everthread store ({}); it was not changed. Restore a backup, or move the file away",
        ),
        (
            LOCKED_ERRORS,
            StoreBusyError,
            "is locked by another process; try again, or find out which one",
        ),
        (INVALID_VALUE_ERRORS, InputError, "a value cannot be stored: {}"),
        (apsw.IOError | OSError, StoreError, "reading or writing failed: {}"),
        (apsw.Error, StoreError, "{}"),
    )

    def __init__(self, path: Path, migrations: Sequence[Migration] | None = None) -> None:
        self.path = path
        self.location = str(path)
        self.migrations = migrations or load_migrations(DIALECT.name)

    def prepare(self, *, create: bool = True) -> int:
        if create:
            self._create_file()
        deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
        try:
            old_version = version = self._read_version() if self.path.exists() else 0
            if not old_version and not create:
                raise missing_store_error(self.location)
            while version < self.migrations[-1].number:
                self._migrate(deadline)
                version = self._read_version()
        except apsw.Error as error:
            raise self.explain(error) from error
        except OSError as error:
            raise StoreReadOnlyError(
                f"{self.location}: cannot be read: {error.strerror or error}"
            ) from error
        return old_version

    def _create_file(self) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.path.exists():
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise StoreReadOnlyError(
                f"{self.location}: cannot be created: {error.strerror or error}"
            ) from error

    def _read_version(self) -> int:
        """Return the file's schema number. Refuse a file of another program before anything in it is changed."""
        with self.path.open("rb") as file:
            file_start = file.read(len(FILE_MAGIC))
        # A very short file would be taken for an empty database.
        if file_start not in (b"", FILE_MAGIC):
            raise self.explain(apsw.NotADBError("it does not begin like a database"))
        raw = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            raw.set_busy_timeout(int(BUSY_TIMEOUT_SECONDS * 1000))
            tables = {
                row[0] for row in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if "schema_version" in tables:
                number = load_version(SqliteConnection(raw, begin="BEGIN"))
                refuse_newer_schema(number, self.migrations, self.location)
                return number
            if tables:
                raise StoreError(
                    f"{self.location}: is the database of another program; name another file"
                )
            return 0
        finally:
            raw.close()

    def _migrate(self, deadline: float) -> None:
        """Run all missing migrations in one transaction: an interruption leaves the store unchanged."""
        try:
            connection = self._open(begin="BEGIN IMMEDIATE")
        except apsw.BusyError:
            # Two processes may switch a new file to WAL at once: SQLite makes only one of them wait.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            return
        try:
            connection.begin()
            apply_migrations(connection, self.migrations)
            connection.commit()
        finally:
            connection.close()

    def claim_sole_use(self) -> SoleUse:
        return SoleUse(self.path)

    @contextmanager
    def lock_indexing(self) -> Iterator[bool]:
        path = self.path.with_name(self.path.name + INDEX_LOCK_SUFFIX)
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            yield _lock_file(file)
        finally:
            os.close(file)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process open its own connections."""
        return SqliteDatabase, (self.path,)

    def connect_writer(self) -> Connection:
        connection = self._open(begin="BEGIN IMMEDIATE")
        connection.defer_sync()
        return connection

    def connect_reader(self) -> Connection:
        connection = self._open(begin="BEGIN")
        connection.run("PRAGMA query_only = ON")
        return connection

    def _open(self, *, begin: str) -> SqliteConnection:
        """Open a connection. Never create a file: one that was deleted meanwhile must not come back empty."""
        raw = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
        raw.set_busy_timeout(int(BUSY_TIMEOUT_SECONDS * 1000))
        for pragma in PRAGMAS:
            raw.execute(f"PRAGMA {pragma}")
        raw.register_fts5_function("counts", _count_phrases)
        return SqliteConnection(raw, begin=begin)

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, LOCKED_ERRORS | apsw.SchemaChangeError)

    def explain(self, error: BaseException) -> BaseException:
        is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        return super().explain(apsw.FullError() if is_full else error)

    def find_problems(self, tx: Tx) -> list[str]:  # noqa: ARG002 - a new connection is used
        """Check on a new connection: a used one caches the index and mistakes other processes' changes for damage."""
        with closing(self._open(begin="BEGIN")) as connection:
            problems = [
                str(row[0])
                for row in connection.all("PRAGMA integrity_check(20)")
                if row[0] != "ok"
            ]
            mode = connection.value("PRAGMA journal_mode")
        return problems if mode == "wal" else [*problems, f"journal mode is {mode}, not wal"]

    def size(self, tx: Tx) -> int:  # noqa: ARG002 - the files are measured
        files = (
            self.path,
            *(self.path.with_name(self.path.name + suffix) for suffix in ("-wal", "-shm")),
        )
        return sum(file.stat().st_size for file in files if file.exists())

    def backup(self, target: str) -> None:
        if not self.path.exists():
            raise missing_store_error(self.location)
        try:
            with (
                closing(self._open(begin="BEGIN")) as source,
                new_private_file(target),
                closing(apsw.Connection(target)) as copy,
                copy.backup("main", source.raw, "main") as backup,
            ):
                # One step: a reader of a WAL blocks no writer, but a writer would restart a backup made in steps.
                backup.step()
        except apsw.Error as error:
            raise self.explain(error) from error

    def vacuum(self, connection: Connection) -> None:
        connection.run("INSERT INTO search (search) VALUES ('optimize')")
        connection.run("VACUUM")
        connection.run("PRAGMA wal_checkpoint(TRUNCATE)")


def _make_match_query(
    query: IndexQuery, rank_column: str, limit: int
) -> tuple[str, tuple[Any, ...]]:
    """Return the SELECT of the newest matching ids with their computed columns, and its values."""
    # Ranked terms come first, because the function `counts` identifies phrases by their number.
    phrases = [f'"{term}"' for term in query.ranking_terms]
    phrases += [
        _fts_phrase(phrase)
        for phrase in query.phrases
        if len(phrase.terms) > 1 or phrase.last_is_prefix
    ]
    conditions = [f"terms : ({' AND '.join(phrases)})"] if phrases else []
    conditions += [f"terms : {_match_any(terms)}" for terms in query.any_of]
    conditions += [f"filters : {_match_any(terms)}" for terms in query.filter_terms if terms]
    where = make_detail_condition(query, "search.rowid")
    sql = (
        f"SELECT rowid{rank_column} FROM search WHERE search MATCH ? AND rowid >= ? AND rowid < ? "
        f"{where} ORDER BY rowid DESC LIMIT ?"
    )
    return sql, (
        " AND ".join(conditions),
        query.first_id,
        query.end_id,
        *query.values,
        limit,
    )


def _match_any(terms: Sequence[str]) -> str:
    """Return the FTS5 query of texts that have one of the terms."""
    quoted_terms = (f'"{term}"' for term in terms)
    return f"({' OR '.join(quoted_terms)})"


def _fts_phrase(phrase: QueryPhrase) -> str:
    """Return consecutive terms in FTS5's syntax. Encoded terms contain no quotes."""
    return f'"{" ".join(phrase.terms)}"{" *" if phrase.last_is_prefix else ""}'


def _count_phrases(fts: apsw.FTS5ExtensionApi, *values: apsw.SQLiteValue) -> bytes:
    """Return how often a text holds each of the first phrases of a query. `values`: the number of these phrases."""
    phrase_numbers = range(cast("int", values[0]))
    return bytes(
        min(len(fts.phrase_column_offsets(phrase_number, 0)), MAX_TERM_REPEATS)
        for phrase_number in phrase_numbers
    )
