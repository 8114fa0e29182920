"""What the operations need of a database, and no more: a transaction that runs SQL written once for both.

SQL uses `?` for values. What differs between the databases is in `Dialect`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from everthread.errors import InputError, NoStoreError, StoreDamagedError, StoreError

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


class Tx(Protocol):
    """An open transaction.

    What is `run` may be on its way to a server when that returns: an error in it is raised by a later call, at the
    latest by the end of the savepoint or the commit.
    """

    dialect: Dialect

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]: ...
    def one(self, sql: str, values: Sequence[Any] = ()) -> Row | None: ...
    def ask(self, questions: Sequence[Query]) -> list[list[Row]]:
        """The rows of several SELECTs, each seeing what the ones before have locked; in one message to a server."""
        ...

    def run(self, sql: str, values: Sequence[Any] = ()) -> None: ...
    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None: ...


class Connection(Tx, Protocol):
    """One connection to the database, used by one thread at a time."""

    in_doubt: int | None
    """The number of the batch whose commit was asked for and never answered: nobody knows how it ended."""

    def committed(self, batch: int) -> bool:
        """How a batch in doubt has ended."""
        ...

    @property
    def in_transaction(self) -> bool:
        """Some errors end a transaction, and with it every savepoint."""
        ...

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def savepoint(self) -> None: ...
    def release(self) -> None: ...
    def rollback_to_savepoint(self) -> None:
        """Take back what was done since the savepoint, and the savepoint."""
        ...

    def close(self) -> None: ...


class Database(Protocol):
    """A kind of database: how to connect, and what its errors mean."""

    dialect: Dialect
    is_remote: bool
    """Whether it is a server, which may be away."""
    location: str
    """Where it is, for people; without a password."""

    def prepare(self, *, create: bool = True) -> int:
        """Bring the schema up to date, and make the store where there is none; the number its schema had before.

        With `create=False` a place where nothing is kept stays as it is, and is an error.
        """
        ...

    def close(self) -> None: ...
    def connect_writer(self) -> Connection: ...
    def connect_reader(self) -> Connection: ...
    def is_passing(self, error: BaseException) -> bool:
        """Whether the same transaction may succeed when it is tried again (busy, deadlock, connection lost)."""
        ...

    def explain(self, error: BaseException) -> BaseException:
        """The error as one of ours, or the error itself where it is none of the database's."""
        ...

    def listen(self, tell: Callable[[str], None], stop: threading.Event) -> None:
        """Tell of threads that others changed until it is stopped; returns at once where nothing can be heard."""
        ...

    def match(self, tx: Tx, question: Any, limit: int) -> list[Any]:
        """The newest indexed pieces that match (a `Match`), as `Candidate`s; the newest first."""
        ...

    def holding(self, tx: Tx, question: Any, limit: int) -> list[int]:
        """The ids of these pieces alone, where nothing is ranked."""
        ...

    def index(self, tx: Tx, pieces: Any) -> None:
        """Add pieces to the search index."""
        ...

    def unindex(self, tx: Tx, piece_ids: Sequence[int]) -> None:
        """Take pieces out of the search index."""
        ...

    def problems(self, tx: Tx) -> list[str]:
        """What the database itself finds wrong."""
        ...

    def size(self, tx: Tx) -> int: ...
    def backup(self, target: str) -> None:
        """Copy everything into a new file, whatever its schema."""
        ...

    def vacuum(self, connection: Connection) -> None: ...


def notify(tx: Tx, thread: str) -> None:
    """Others who work on this thread need not wait until they ask again."""
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


def encode_json(value: Any) -> str:
    """JSON that every database keeps exactly: compact, readable; escaped only where text is no valid Unicode."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text if text.isprintable() or _encodable(text) else json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"this is no JSON value and cannot be stored: {error}") from error


def decode_json(text: str) -> Any:
    """What was stored as JSON. Anything else in its place is damage."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise StoreDamagedError(f"what is stored is damaged: {text[:40]!r} … is no JSON ({error})") from error


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean_text(text: str) -> str:
    """Text that every database takes: what is no character becomes a question mark. For words, never for content."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


LAST = 2**62
"""Behind every number of ours."""


def placeholders(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def chunks(ids: Sequence[Any], size: int = 500) -> Iterable[Sequence[Any]]:
    """Ids in lists that a statement takes."""
    return (ids[start : start + size] for start in range(0, len(ids), size))
