"""Look at a store's tables directly, or change them, on a connection of the test's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
