"""Index waiting messages and outputs in a process that does nothing else.

Redaction and the extraction of terms are pure Python: in a thread of a gateway they would delay its requests. The queue
is in the store, so this process may be killed at any moment; another process continues.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import closing

from everthread.store.database import Database
from everthread.store.search.indexing import (
    BACKGROUND_BATCH_CHARS,
    index_parts,
    prepare_index,
)

IndexInOtherProcess = Callable[[Database, float], Awaitable[bool]]
"""Calls `index_waiting` in another process."""


def index_waiting(database: Database, max_seconds: float) -> bool:
    """Index waiting entries for at most `max_seconds`, a few in each transaction; return whether entries still wait.

    Only one process at a time prepares the texts of a SQLite file, so that no text is prepared twice.
    """
    try:
        with database.lock_indexing() as has_lock:
            return not has_lock or _index_until(
                database, time.monotonic() + max_seconds
            )
    except Exception as error:
        raise database.explain(error) from error
    finally:
        database.close()


def _index_until(database: Database, deadline: float) -> bool:
    database.prepare(create=False)
    with (
        closing(database.connect_reader()) as reader,
        closing(database.connect_writer()) as writer,
    ):
        while time.monotonic() < deadline:
            reader.begin()
            batches = prepare_index(reader, BACKGROUND_BATCH_CHARS)
            reader.rollback()
            if not batches:
                return False
            for parts in batches:
                writer.begin()
                index_parts(writer, parts, wait=False)
                writer.commit()
    return True
