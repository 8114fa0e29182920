"""Processes that migrate a store; one is killed on the way."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psycopg
from psycopg_pool import NullConnectionPool

from everthread.factory import open_store
from everthread.store.database import Tx
from everthread.store.postgres import PostgresConnection
from everthread.store.schema import Migration, apply_migrations, load_migrations
from everthread.store.sqlite import SqliteDatabase


def migrate(url: str) -> None:
    """Open a store that may be empty."""
    store = open_store(url)
    asyncio.run(store.close())


class KilledAtStatement:
    """A transaction that kills the process after this number of statements."""

    def __init__(self, tx: Tx, statements: int) -> None:
        self.tx = tx
        self.left = statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tx, name)

    def run(self, sql: str, values: Any = ()) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        self.tx.run(sql, values)


LATER = Migration(
    2, "later", ("CREATE TABLE later (id TEXT)", "CREATE INDEX later_id ON later (id)")
)
"""A migration of a later version."""


def migrate_and_die(url: str, statements: int) -> None:
    """Migrate as a store does, but be killed on the way."""
    connection: Any
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        path.touch()
        connection = SqliteDatabase(path).connect_writer()
    else:
        connection = PostgresConnection(
            psycopg.connect(url, autocommit=True), NullConnectionPool(url, open=False)
        )
    tx: Any = KilledAtStatement(connection, statements)
    connection.begin()
    apply_migrations(tx, [*load_migrations(connection.dialect.name), LATER])
    connection.commit()
