"""The databases that `benchmarks.store` measures, and plain loops on them for comparison."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import apsw
import psycopg

from tests.store.postgres_server import make_server, server_at

THREAD = 1_000
PLAIN_TABLE = "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, body TEXT)"

Body = dict[str, Any]


class Backend(Protocol):
    """A database, with plain loops for comparison."""

    name: str
    url: str

    def insert(self, bodies: list[Body], first: int) -> None:
        """Insert one by one into one table, each durable before the next."""

    def read(self) -> list[Body]:
        """Read inserted bodies, at most a thread's length."""

    def size(self) -> int:
        """Return the bytes of the store."""

    def server_cpu(self) -> float:
        """Return the CPU seconds of the server so far; 0 without a server."""


@dataclass
class Sqlite:
    folder: str
    name: str = "SQLite"

    def __post_init__(self) -> None:
        self.file = Path(self.folder) / "store.db"
        self.url = f"sqlite:///{self.file}"
        self.plain = apsw.Connection(f"{self.folder}/plain.db")
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            PLAIN_TABLE,
        ):
            self.plain.execute(statement)

    def insert(self, bodies: list[Body], first: int) -> None:
        for number, body in enumerate(bodies, first):
            self.plain.execute("INSERT INTO messages VALUES (?, ?)", (number, json.dumps(body)))

    def read(self) -> list[Body]:
        rows = self.plain.execute("SELECT body FROM messages ORDER BY id LIMIT ?", (THREAD,))
        return [json.loads(str(row[0])) for row in rows]

    def size(self) -> int:
        connection = apsw.Connection(str(self.file))
        pages, free, size = (
            int(connection.pragma(name)) for name in ("page_count", "freelist_count", "page_size")
        )
        connection.close()
        return (pages - free) * size

    def server_cpu(self) -> float:
        return 0.0


@dataclass
class Postgres:
    server: str
    url: str
    name: str = "PostgreSQL"
    plain: psycopg.Connection[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.plain = psycopg.connect(self.server, autocommit=True)
        if self.plain.execute("SELECT 1 FROM pg_database WHERE datname = 'store'").fetchone():
            return
        # Settings of an ordinary server, not of a test.
        for setting in (
            "fsync",
            "autovacuum",
        ):
            self.plain.execute(f"ALTER SYSTEM SET {setting} = on".encode())
        for statement in ("SELECT pg_reload_conf()", "CREATE DATABASE store"):
            self.plain.execute(statement.encode())
        self.plain.execute(PLAIN_TABLE)

    def insert(self, bodies: list[Body], first: int) -> None:
        for number, body in enumerate(bodies, first):
            self.plain.execute("INSERT INTO messages VALUES (%s, %s)", (number, json.dumps(body)))

    def read(self) -> list[Body]:
        rows = self.plain.execute("SELECT body FROM messages ORDER BY id LIMIT %s", (THREAD,))
        return [json.loads(row[0]) for row in rows]

    def size(self) -> int:
        row = self.plain.execute("SELECT pg_database_size('store')").fetchone()
        return int(row[0]) if row else 0

    def server_cpu(self) -> float:
        """Return the CPU seconds of the server's processes for the store, as counted by the scheduler."""
        rows = self.plain.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = 'store'"
        ).fetchall()
        files = [Path(f"/proc/{row[0]}/schedstat") for row in rows]
        return sum(int(file.read_text("ascii").split()[0]) for file in files if file.exists()) / 1e9


@contextlib.contextmanager
def sqlite(kept: Path | None) -> Iterator[Backend]:
    with contextlib.ExitStack() as stack:
        folder = kept or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="everthread-bench-"))
        )
        backend = Sqlite(str(folder))
        yield backend
        backend.plain.close()


@contextlib.contextmanager
def postgresql(kept: Path | None) -> Iterator[Backend]:
    server = make_server() if kept is None else server_at(kept / "server")
    try:
        backend = Postgres(server.url(), server.url("store"))
        yield backend
        backend.plain.close()
    finally:
        server.stop()
        if kept is None:
            shutil.rmtree(server.directory)


BACKENDS = {"sqlite": sqlite, "postgresql": postgresql}
