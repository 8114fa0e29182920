"""Index what waits, in a process that does nothing else.

Redaction and terms are pure Python: in a thread of a gateway they would take the interpreter from its requests. The
queue is in the store, so this process may be killed at any moment; another one continues.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import closing

from everthread.store.database import Database
from everthread.store.indexing import BACKGROUND_BATCH_CHARS, index_parts, prepare_index

IndexInOtherProcess = Callable[[Database, float], Awaitable[bool]]
"""Calls `index_waiting` in another process."""


def index_waiting(database: Database, max_seconds: float) -> bool:
    """Index for at most this long, a little in each transaction; return whether something still waits.

    Only one process at a time prepares texts of a file: two would prepare the same.
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
