"""The interface of both databases: connections, transactions, SQL that runs on both, and the schema.

SQL uses `?` for values. What differs between the databases is in `Dialect`. Migrations are numbered and append-only;
all that are missing run in one transaction: a store is old or new, never half.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

from everthread.errors import (
    EverthreadError,
    InputError,
    NoStoreError,
    SchemaTooNewError,
    StoreDamagedError,
    StoreError,
)
from everthread.store.models import pin_id

if TYPE_CHECKING:
    from everthread.store.index import IndexMatch, IndexPiece, IndexQuery

# --- one interface for both databases ---------------------------------------------------------------------------------


Row = tuple[Any, ...]
Query = tuple[str, Sequence[Any]]
"""SQL and its values."""


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    now: str
    """The database's clock, in seconds since 1970."""
    lock: str
    """Ends a SELECT whose rows are about to be changed."""
    share: str
    """Ends a SELECT whose rows must stay as they are until the transaction ends."""
    skip: str
    """The same, but rows that others have locked are passed over."""
    notify: str
    """Tells others of a change to a thread (`?`) when the transaction is committed; empty where nothing can."""
    new_ids: str
    """A SELECT of so many (`?`) ids nobody has, in order, for the table `{0}`."""
    day: str
    """`{0}`, seconds since 1970, as a UTC date."""
    newest: str
    """A SELECT that tells the newest row of the table `{0}` from every other; empty where that would cost a search."""


class Tx(ABC):
    """An open transaction.

    What is `run` may be on its way to a server when that returns: an error in it is raised by a later call, at the
    latest by the end of the savepoint or the commit.
    """

    dialect: Dialect

    @abstractmethod
    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]: ...

    def one(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        rows = self.all(sql, values)
        return rows[0] if rows else None

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first column of the first row; None where there is no row."""
        row = self.one(sql, values)
        return None if row is None else row[0]

    def all_in(self, sql: str, keys: Sequence[Any], *values: Any) -> list[Row]:
        """The rows for each of these keys. `{}` in the SQL stands for as many as a statement takes, before `values`."""
        return [row for some in chunks(keys) for row in self.all(sql.format(placeholders(some)), (*some, *values))]

    def ask(self, questions: Sequence[Query]) -> list[list[Row]]:
        """The rows of several SELECTs, each seeing what the ones before have locked; in one message to a server."""
        return [self.all(*question) for question in questions]

    @abstractmethod
    def run(self, sql: str, values: Sequence[Any] = ()) -> None: ...

    @abstractmethod
    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None: ...

    @abstractmethod
    def match(self, question: IndexQuery, limit: int) -> list[IndexMatch]:
        """The newest indexed pieces that match, the newest first."""

    @abstractmethod
    def match_ids(self, question: IndexQuery, limit: int) -> list[int]:
        """The ids of these pieces alone, where nothing is ranked."""

    @abstractmethod
    def index(self, pieces: Sequence[IndexPiece]) -> None:
        """Add pieces to the search index."""

    @abstractmethod
    def unindex(self, piece_ids: Sequence[int]) -> None: ...


class Connection(Tx):
    """One connection to the database, used by one thread at a time. `begin`: the SQL that begins a transaction."""

    in_doubt: int | None = None
    """The number of the batch whose commit was asked for and never answered: nobody knows how it ended."""

    def __init__(self, begin: str) -> None:
        self._begin = begin

    def committed(self, batch: int) -> bool:
        """Whether a batch in doubt was committed; only a server that writes leaves one in doubt."""
        raise StoreError(f"no batch can be in doubt here, so nothing is known of batch {batch}")

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is open: some errors end it, with every savepoint."""

    def begin(self) -> None:
        self.run(self._begin)

    def commit(self) -> None:
        """From here on everybody sees it, and the end of this process takes nothing back."""
        self.run("COMMIT")

    def sync(self) -> None:
        """What was committed is on the disk afterwards; a server answers a commit only then."""

    def tidy(self) -> None:
        """Regular maintenance, done while no request waits; a server does it itself."""

    def rollback(self) -> None:
        if self.in_transaction:
            self.run("ROLLBACK")

    def savepoint(self) -> None:
        self.run("SAVEPOINT item")

    def release(self) -> None:
        self.run("RELEASE SAVEPOINT item")

    def rollback_to_savepoint(self) -> None:
        """Take back what was done since the savepoint, and the savepoint."""
        self.run("ROLLBACK TO SAVEPOINT item")
        self.run("RELEASE SAVEPOINT item")

    @abstractmethod
    def close(self) -> None: ...


class Database(ABC):
    """A kind of database: how to connect, and what its errors mean."""

    dialect: Dialect
    is_remote = False
    """Whether it is a server, which may be away."""
    location: str
    """Where it is, for people; without a password."""
    causes: Sequence[tuple[type[BaseException] | UnionType, type[EverthreadError], str]]
    """Errors of the driver, what they are for us, and the sentence for people; the first that fits counts."""

    @abstractmethod
    def prepare(self, *, create: bool = True) -> int:
        """Bring the schema up to date, and make the store where there is none; the number its schema had before.

        With `create=False` a place where nothing is kept stays as it is, and is an error. A newer schema is refused.
        """

    def close(self) -> None:  # noqa: B027 - a file has nothing but its connections
        """Let go of the server."""

    def interrupt(self) -> None:  # noqa: B027 - nobody waits for a file
        """Break every connection: a thread that waits for a server that hangs gets an error."""

    @abstractmethod
    def connect_writer(self) -> Connection: ...
    @abstractmethod
    def connect_reader(self) -> Connection: ...
    @abstractmethod
    def is_passing(self, error: BaseException) -> bool:
        """Whether the same transaction may succeed when it is tried again (busy, deadlock, connection lost)."""

    def explain(self, error: BaseException) -> BaseException:
        """The error as one of ours, or the error itself where it is none of the database's."""
        for kinds, ours, words in self.causes:
            if isinstance(error, kinds):
                return ours(f"{self.location}: {words.format(' '.join(str(error).split()))}")
        return error

    def listen(self, tell: Callable[[str], None], stop: threading.Event) -> None:  # noqa: B027 - a file reports nothing
        """Report threads that other processes changed, until stopped; returns at once if the database cannot notify."""

    @abstractmethod
    def problems(self, tx: Tx) -> list[str]:
        """What the database itself finds wrong."""

    @abstractmethod
    def size(self, tx: Tx) -> int: ...
    @abstractmethod
    def backup(self, target: str) -> None:
        """Copy everything into a new file, whatever its schema. An existing file is not overwritten."""

    @abstractmethod
    def vacuum(self, connection: Connection) -> None: ...


def notify(tx: Tx, thread: str) -> None:
    """Wake other processes that wait for this thread."""
    if tx.dialect.notify:
        tx.run(tx.dialect.notify, (thread,))


def no_store_error(location: str) -> NoStoreError:
    return NoStoreError(f"there is no store at {location}; check how it is written, or start a conversation there")


@contextlib.contextmanager
def new_private_file(target: str) -> Iterator[None]:
    """A file only its owner can read, to be filled; gone again if that fails. An existing one is left alone."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(f"{target}: cannot be made: {error.strerror}; name a new file") from error
    try:
        yield
    except BaseException:
        Path(target).unlink()
        raise


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode_json(value: Any) -> str:
    """JSON that every database keeps exactly: compact, readable; escaped only where text is no valid Unicode."""
    try:
        text = _JSON.encode(value)
        if not text.isprintable():
            text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"this is no JSON value and cannot be stored: {error}") from error
    return text


def decode_json(text: str) -> Any:
    """What was stored as JSON. Anything else in its place is damage."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise StoreDamagedError(f"what is stored is damaged: {text[:40]!r} … is no JSON ({error})") from error


def clean_text(text: str) -> str:
    """Text that every database takes: what is no character becomes a question mark. For words, never for content."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


PICO = Decimal(10) ** 12
MOST_DOLLARS = 1_000_000


def as_pico(cost: Decimal | None) -> int | None:
    """Dollars as they are stored: a whole number of pico-dollars."""
    if cost is None:
        return None
    if not cost.is_finite() or abs(cost) > MOST_DOLLARS:
        raise InputError(f"a call cannot cost {cost} dollars")
    return int((cost * PICO).to_integral_value())


def from_pico(pico: int | None) -> Decimal | None:
    return None if pico is None else Decimal(pico) / PICO


LAST = 2**62
"""Behind every number of ours."""


def equal_to(columns: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """A condition and its values: these columns have these values. None stands for any."""
    chosen = {column: value for column, value in columns.items() if value is not None}
    return " AND ".join(f"{column} = ?" for column in chosen) or "1 = 1", list(chosen.values())


def placeholders(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def chunks(ids: Sequence[Any], size: int = 500) -> Iterable[Sequence[Any]]:
    """Ids in lists that a statement takes."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


# --- migrations -------------------------------------------------------------------------------------------------------


DIALECT_WORDS = {
    "sqlite": {
        r"\{id\}": "INTEGER PRIMARY KEY AUTOINCREMENT",
        r"\{real\}": "REAL",
        r"\{bytes\}": "BLOB",
        r"\{strict\}": " STRICT",
        r"\{compact\}": " WITHOUT ROWID, STRICT",
        r"\bBIGINT\b": "INTEGER",
    },
    "postgresql": {
        r"\{id\}": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        r"\{real\}": "DOUBLE PRECISION",
        r"\{bytes\}": "BYTEA",
        r"\{strict\}|\{compact\}": "",
        r"\bTEXT\b": 'TEXT COLLATE "C"',
    },
}
"""What a migration's words mean for each database. Both refuse a value of another type and sort by code point."""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    statements: tuple[str, ...]


@functools.cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """Every migration for this database, in order. `0002_search.sqlite.sql` is for SQLite only."""
    numbered = []
    for file in resources.files("everthread.store").joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)(?:\.(\w+))?\.sql", file.name)
        if match and match[3] in (None, dialect):
            text = re.sub(r"^\s*--.*$", "", file.read_text("utf-8"), flags=re.MULTILINE)
            for word, meaning in DIALECT_WORDS[dialect].items():
                text = re.sub(word, meaning, text)
            statements = tuple(part.strip() for part in text.split(";") if part.strip())
            numbered.append(Migration(int(match[1]), match[2], statements))
    return tuple(sorted(numbered, key=lambda migration: migration.number))


def latest_version(dialect: str) -> int:
    return migrations(dialect)[-1].number


def current_version(tx: Tx) -> int:
    """The number of the last migration that was applied; 0 where none was."""
    return int(tx.value("SELECT MAX(number) FROM schema_version") or 0)


def refuse_newer(number: int, dialect: str, location: str) -> None:
    if number > latest_version(dialect):
        raise SchemaTooNewError(
            f"{location} has schema {number}, this version of Everthread knows up to {latest_version(dialect)}: "
            "upgrade Everthread, or open another store"
        )


def apply_missing(tx: Tx) -> int:
    """Apply every migration that is missing; the schema's number then. All in the transaction that the caller holds."""
    tx.run("CREATE TABLE IF NOT EXISTS schema_version (number INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    done = current_version(tx)
    for migration in migrations(tx.dialect.name):
        if migration.number > done:
            for statement in migration.statements:
                tx.run(statement)
            if migration.number in STEPS:
                STEPS[migration.number](tx)
            tx.run("INSERT INTO schema_version VALUES (?, ?)", (migration.number, migration.name))
    return latest_version(tx.dialect.name)


def move_pins(tx: Tx) -> None:
    """Pins that were kept as stored outputs of a tool of their own become rows; branches get those of their parents."""
    rows = tx.all(
        "SELECT c.thread_id, c.output_id, c.call_id, c.tool, c.created, o.content FROM citations c "
        "JOIN outputs o ON o.tenant = c.tenant AND o.id = c.output_id "
        "WHERE c.tool IN ('everthread_pin', 'everthread_unpin') ORDER BY c.created, c.output_id"
    )
    if not rows:
        return
    texts = {row[1]: zlib.decompress(row[5]).decode("utf-8", "surrogatepass") for row in rows}
    branches: dict[str, tuple[str, float]] = {
        row[0]: (row[1], row[2])
        for row in tx.all(
            "SELECT b.id, p.thread_id, b.started FROM sessions b JOIN sessions p ON p.id = b.parent_id "
            "WHERE b.kind = 'branch'"
        )
    }

    def pins_until(thread: str, until: float) -> dict[str, float]:
        pins = pins_until(branches[thread][0], min(until, branches[thread][1])) if thread in branches else {}
        for owner, output, call, tool, created, _ in rows:
            if owner != thread or created > until:
                continue
            if tool == "everthread_pin":
                pins.setdefault(output, created)
            else:
                pins.pop(call, None)
        return pins

    for thread in sorted({row[0] for row in rows} | set(branches)):
        tx.many(
            "INSERT INTO pins (thread_id, id, body, created) VALUES (?, ?, ?, ?)",
            [
                (thread, pin_id(texts[key]), texts[key], created)
                for key, created in pins_until(thread, math.inf).items()
            ],
        )
    index = {"sqlite": "rowid", "postgresql": "piece_id"}[tx.dialect.name]
    for key in texts:
        tx.run("DELETE FROM citations WHERE output_id = ? AND tool IN ('everthread_pin', 'everthread_unpin')", (key,))
        if tx.one("SELECT 1 FROM citations WHERE output_id = ?", (key,)) is None:
            tx.run(f"DELETE FROM search WHERE {index} IN (SELECT id FROM pieces WHERE output_id = ?)", (key,))
            for table in ("pieces", "unindexed"):
                tx.run(f"DELETE FROM {table} WHERE output_id = ?", (key,))
            tx.run("DELETE FROM outputs WHERE id = ?", (key,))


STEPS = {12: move_pins}
"""What SQL alone cannot do, after a migration's statements."""
