"""The interface of both databases: connections, transactions, and SQL that runs on both.

SQL uses `?` for values. `Dialect` has the differences between the databases.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

from everthread.errors import EverthreadError, NoStoreError, StoreError

if TYPE_CHECKING:
    from everthread.store.schema import Migration
    from everthread.store.search.index_query import IndexMatch, IndexQuery
    from everthread.store.search.text_chunks import IndexChunk
    from everthread.store.sole_use import SoleUse


Row = tuple[Any, ...]
SqlQuery = tuple[str, Sequence[Any]]
"""SQL and its values."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL in which the databases differ."""

    name: str
    now: str
    """The database's clock, in seconds since 1970."""
    for_update: str
    """Ends a SELECT whose rows are about to be changed."""
    for_share: str
    """Ends a SELECT whose rows must not change until the transaction ends."""
    skip_locked: str
    """Ends a SELECT whose rows are about to be changed, and leaves out rows that other transactions have locked."""
    notify: str
    """Notifies other processes of a change to a thread (`?`) on commit. Empty if the database cannot."""
    select_new_ids: str
    """A SELECT of the given number (`?`) of unused ids, in order, for the table `{0}`. It may select the first id alone
    if the others are consecutive; `read_ids` reads both forms."""
    utc_date: str
    """`{0}`, seconds since 1970, as a UTC date."""
    select_newest: str
    """A SELECT that identifies the newest row of the table `{0}`. Empty if that means searching the table."""


class Tx(ABC):
    """An open transaction.

    A statement given to `run` may still be on its way to a server when `run` returns: its error is raised by a later
    call, at the latest by the end of the savepoint or the commit.
    """

    dialect: Dialect

    @abstractmethod
    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]: ...

    def one(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        rows = self.all(sql, values)
        return rows[0] if rows else None

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first column of the first row, or None if there are no rows."""
        row = self.one(sql, values)
        return None if row is None else row[0]

    def all_for_keys(self, sql: str, keys: Sequence[Any], *values: Any) -> list[Row]:
        """Return the rows for these keys. `{}` in the SQL takes a batch of the keys; its values precede `values`."""
        return [
            row
            for batch in map(_pad_keys, split_batches(keys))
            for row in self.all(sql.format(placeholders(batch)), (*batch, *values))
        ]

    def all_of_each(self, queries: Sequence[SqlQuery]) -> list[list[Row]]:
        """Return the rows of each SELECT. A server gets all SELECTs in one message and runs them in order."""
        return [self.all(*query) for query in queries]

    @abstractmethod
    def run(self, sql: str, values: Sequence[Any] = ()) -> None: ...

    @abstractmethod
    def run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None: ...

    @abstractmethod
    def match(self, query: IndexQuery, limit: int) -> list[IndexMatch]:
        """Return the newest indexed chunks that match, the newest first."""

    @abstractmethod
    def match_ids(self, query: IndexQuery, limit: int) -> list[int]:
        """Return only the ids of the matching chunks, without ranking."""

    @abstractmethod
    def index(self, chunks: Sequence[IndexChunk]) -> None:
        """Add chunks to the search index."""

    @abstractmethod
    def unindex(self, chunk_ids: Sequence[int]) -> None: ...


class Connection(Tx):
    """One connection to the database, used by one thread at a time. `begin`: the SQL that begins a transaction."""

    in_doubt: int | None = None
    """The number of the batch whose commit was sent but never answered: its outcome is unknown."""

    def __init__(self, begin: str) -> None:
        self._begin = begin

    def was_committed(self, batch: int) -> bool:
        """Return whether a batch in doubt was committed. Only a server can leave a batch in doubt."""
        raise StoreError(f"no batch can be in doubt here, so nothing is known of batch {batch}")

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Return whether a transaction is open. Some errors end it, with all savepoints."""

    def begin(self) -> None:
        self.run(self._begin)

    def commit(self) -> None:
        """Commit, so that every process sees the changes, and they survive the end of this process."""
        self.run("COMMIT")

    def sync(self) -> None:
        """Write all commits to the disk. A server has done so when it answers a commit."""

    def maintain(self) -> None:
        """Do regular maintenance while no request waits. A server maintains itself."""

    def rollback(self) -> None:
        if self.in_transaction:
            self.run("ROLLBACK")

    def savepoint(self) -> None:
        self.run("SAVEPOINT item")

    def release(self) -> None:
        self.run("RELEASE SAVEPOINT item")

    def rollback_to_savepoint(self) -> None:
        """Undo everything since the savepoint, and remove the savepoint."""
        self.run("ROLLBACK TO SAVEPOINT item")
        self.run("RELEASE SAVEPOINT item")

    @abstractmethod
    def close(self) -> None: ...


class Database(ABC):
    """A kind of database: how to connect, and what its errors mean."""

    dialect: Dialect
    migrations: Sequence[Migration]
    """The steps that make its schema, in order."""
    is_remote = False
    """Whether it is a server, which may be unreachable."""
    location: str
    """Its path or URL for messages to people, without a password."""
    error_translations: Sequence[tuple[type[BaseException] | UnionType, type[EverthreadError], str]]
    """Errors of the driver, the errors raised for them, and the message for people; the first match is used."""

    @abstractmethod
    def prepare(self, *, create: bool = True) -> int:
        """Bring the schema up to date, create the store if there is none, and return the previous schema number.

        With `create=False` a missing store is an error and is not created. A newer schema is refused.
        """

    def close(self) -> None:  # noqa: B027 - a file has nothing but its connections
        """Close the connections to the server."""

    def interrupt(self) -> None:  # noqa: B027 - nobody waits for a file
        """Break every connection, so that threads waiting for an unresponsive server get an error."""

    def claim_sole_use(self) -> SoleUse | None:
        """Claim to be the only gateway on the store, or return None if the database cannot decide that."""
        return None

    @contextlib.contextmanager
    def lock_indexing(self) -> Iterator[bool]:
        """Lock the preparation of texts for the index; yield False if another process holds the lock.

        A server needs no lock: its processes pass over rows that another one is indexing.
        """
        yield True

    @abstractmethod
    def connect_writer(self) -> Connection: ...
    @abstractmethod
    def connect_reader(self) -> Connection: ...
    @abstractmethod
    def is_transient(self, error: BaseException) -> bool:
        """Return whether a retry of the same transaction may succeed (busy, deadlock, connection lost)."""

    def explain(self, error: BaseException) -> BaseException:
        """Return the error as an Everthread error, or unchanged if it is not from the database."""
        for driver_errors, error_type, message in self.error_translations:
            if isinstance(error, driver_errors):
                return error_type(
                    f"{self.location}: {message.format(' '.join(str(error).split()))}"
                )
        return error

    def listen(self, on_change: Callable[[str], None], stop: threading.Event) -> None:  # noqa: B027 - a file reports nothing
        """Call `on_change` with each thread that another process changed, until `stop` is set.

        Return at once if the database cannot notify.
        """

    @abstractmethod
    def find_problems(self, tx: Tx) -> list[str]:
        """Run the database's own check, and return the problems it finds."""

    @abstractmethod
    def size(self, tx: Tx) -> int: ...
    @abstractmethod
    def backup(self, target: str) -> None:
        """Copy everything into a new file, whatever its schema. An existing file is not overwritten."""

    @abstractmethod
    def vacuum(self, connection: Connection) -> None: ...


def notify(tx: Tx, thread_id: str) -> None:
    """Wake other processes that wait for this thread."""
    if tx.dialect.notify:
        tx.run(tx.dialect.notify, (thread_id,))


def missing_store_error(location: str) -> NoStoreError:
    return NoStoreError(
        f"there is no store at {location}; check the address, or start a conversation there"
    )


@contextlib.contextmanager
def new_private_file(target: str) -> Iterator[None]:
    """Create a file that only its owner can read, and delete it if the caller's block fails. Never overwrite a file."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(
            f"{target}: cannot be created: {error.strerror}; name a new file"
        ) from error
    try:
        yield
    except BaseException:
        Path(target).unlink()
        raise


def read_ids(rows: Sequence[Row], count: int) -> Sequence[int]:
    """Return the ids that `Dialect.select_new_ids` selected."""
    if len(rows) == 1 and count > 1:
        return range(rows[0][0], rows[0][0] + count)
    return [row[0] for row in rows]


MAX_ID = 2**62
"""Larger than any number that the store assigns."""


def make_equality_condition(
    values_by_column: Mapping[str, Any],
) -> tuple[str, list[Any]]:
    """Return an SQL condition that the columns equal the values, and the values to pass. None matches any value."""
    given_values = {
        column: value for column, value in values_by_column.items() if value is not None
    }
    return " AND ".join(f"{column} = ?" for column in given_values) or "1 = 1", list(
        given_values.values()
    )


def placeholders(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


MAX_BATCH_KEYS = 500
"""Maximum keys in a statement."""
KEY_COUNTS = (1, 4, 16, 64, 250, MAX_BATCH_KEYS)
"""Numbers of keys in a statement. With few different numbers a database can reuse statements that it has parsed."""


def _pad_keys(keys: Sequence[Any]) -> Sequence[Any]:
    """Repeat the last key up to the next of `KEY_COUNTS`; this selects the same rows."""
    count = next(count for count in KEY_COUNTS if count >= len(keys))
    return [*keys, *itertools.repeat(keys[-1], count - len(keys))]


def split_batches(ids: Sequence[Any], size: int = MAX_BATCH_KEYS) -> Iterable[Sequence[Any]]:
    """Yield the ids in lists that are short enough for one statement."""
    return (ids[start : start + size] for start in range(0, len(ids), size))
