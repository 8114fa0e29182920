"""Open a store by its URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from everthread.config import Config, home_directory
from everthread.errors import ConfigError
from everthread.store.database import Database
from everthread.store.store import Store

STORE_FILE = "everthread.db"
SERVER_SCHEMES = ("postgresql", "postgres")
SUMMARY_KEY = "summary"
"""The name of the stored key with which summaries are tagged."""


def store_url(config: Config) -> str:
    """Return the URL of the configured store."""
    return config.store.url or "sqlite:///" + str(home_directory() / STORE_FILE).replace("%", "%25")


def store_file(url: str) -> Path | None:
    """Return the file of a SQLite store, or None for a store on a server."""
    is_server = urlsplit(url).scheme in SERVER_SCHEMES
    return None if is_server else _parse_path(url)


def open_store(url: str | Path, *, create: bool = True, away_seconds: float | None = None) -> Store:
    """Open the store at a URL (`sqlite:///path`, `postgresql://…`) or in a SQLite file, and update its schema.

    `create`: whether to create a missing store, or else raise `NoStoreError`. `away_seconds`: maximum wait of a read
    for a server that does not answer, or None for half a minute.
    """
    database = _make_database(url)
    database.prepare(create=create)
    return Store(database, max_silence_seconds=away_seconds)


def migrate_store(url: str | Path, *, backup: str | None = None) -> tuple[str, int, int]:
    """Update a store's schema; return its location and the numbers of the old and the new schema.

    `backup`: a new file for a copy of the store, which is made first.
    """
    database = _make_database(url)
    if backup is not None:
        database.backup(backup)
    old_schema_number = database.prepare()
    database.close()
    return database.location, old_schema_number, database.migrations[-1].number


def _make_database(url: str | Path) -> Database:
    text = str(url)
    scheme = urlsplit(text).scheme
    if scheme in SERVER_SCHEMES:
        try:
            from everthread.store.postgres import PostgresDatabase
        except ImportError as error:
            raise ConfigError(
                f"a store on PostgreSQL needs a driver that is not installed ({error}): "
                "pip install everthread[postgres]"
            ) from error
        return PostgresDatabase(text)
    if scheme != "sqlite" and not isinstance(url, Path) and "://" in text:
        raise ConfigError(
            f"store url {text!r} is not sqlite:///path, postgresql://user@host/database or a file"
        )
    from everthread.store.sqlite import SqliteDatabase

    return SqliteDatabase(_parse_path(text))


def _parse_path(text: str) -> Path:
    """Return the file that `sqlite:///path` or a plain path names."""
    if urlsplit(text).scheme == "sqlite":
        text = unquote(text.removeprefix("sqlite://").removeprefix("/"))
    return Path(text).expanduser()
