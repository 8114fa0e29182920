"""Look at a store's tables directly, or change them, on a connection of the test's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg

from everthread.store.database import Database, Tx
from everthread.store.store import Store


@contextlib.contextmanager
def transaction(store: Store) -> Iterator[Tx]:
    with contextlib.closing(store.database.connect_writer()) as connection:
        connection.begin()
        yield connection
        connection.commit()


def count_rows(store: Store, table: str) -> int:
    with transaction(store) as tx:
        return int(tx.value(f"SELECT COUNT(*) FROM {table}"))  # noqa: S608 - a name from a test


def stop_background_indexing(store: Store) -> None:
    """Index only what a test or a search asks for."""

    async def index_nothing(_database: Database, _seconds: float) -> bool:
        return False

    store.use_index_process(index_nothing)


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def execute(url: str, *statements: str) -> None:
    """Change a database without the store."""
    if url.startswith("sqlite"):
        with contextlib.closing(apsw.Connection(str(file_of(url)))) as file:
            for statement in statements:
                file.execute(statement)
    else:
        with psycopg.connect(url, autocommit=True) as server:
            for statement in statements:
                server.execute(statement.encode())
