"""The schema of a store: numbered migrations, applied all together or not at all.

Migration 1 is the whole schema of a database. A later change of it is a file of the next number in `migrations/`, for
both databases (`0002_name.sql`) or for one (`0002_name.sqlite.sql`). A number is never reused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from everthread.errors import SchemaTooNewError

if TYPE_CHECKING:
    from everthread.store.database import Tx

_FILE_NAME_PATTERN = re.compile(r"(\d{4})_(\w+)(?:\.(\w+))?\.sql")
_COMMENT_LINE_PATTERN = re.compile(r"^[ \t]*+--[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    number: int
    name: str
    statements: tuple[str, ...]


@functools.cache
def load_migrations(dialect: str) -> tuple[Migration, ...]:
    """Return every migration for this database, in order."""
    migrations = []
    for file in resources.files("everthread.store").joinpath("migrations").iterdir():
        name_match = _FILE_NAME_PATTERN.fullmatch(file.name)
        if name_match is None or name_match[3] not in (None, dialect):
            continue
        text = _COMMENT_LINE_PATTERN.sub("", file.read_text("utf-8"))
        statements = tuple(statement.strip() for statement in text.split(";") if statement.strip())
        migrations.append(Migration(int(name_match[1]), name_match[2], statements))
    return tuple(sorted(migrations, key=lambda migration: migration.number))


def load_version(tx: Tx) -> int:
    """Return the number of the last migration that was applied, or 0."""
    return int(tx.value("SELECT MAX(number) FROM schema_version") or 0)


def refuse_newer_schema(version: int, migrations: Sequence[Migration], location: str) -> None:
    """Raise an error if the store has a schema that this version of Everthread does not know."""
    latest_version = migrations[-1].number
    if version > latest_version:
        raise SchemaTooNewError(
            f"{location} has schema {version}, this version of Everthread knows up to {latest_version}: "
            "upgrade Everthread, or open another store"
        )


def apply_migrations(tx: Tx, migrations: Sequence[Migration]) -> None:
    """Apply every missing migration in the caller's transaction."""
    tx.run(
        "CREATE TABLE IF NOT EXISTS schema_version (number INTEGER PRIMARY KEY, name TEXT NOT NULL)"
    )
    version = load_version(tx)
    for migration in migrations:
        if migration.number <= version:
            continue
        for statement in migration.statements:
            tx.run(statement)
        tx.run(
            "INSERT INTO schema_version VALUES (?, ?)",
            (migration.number, migration.name),
        )
