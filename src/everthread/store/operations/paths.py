"""Results by the path their tool was called with: of a file that was read, a folder that was listed.

The path stands in the call, not in the result. So calls that name it are looked up first, and a result counts if it
answers one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from everthread.core.messages import calls_of, results_of
from everthread.store.base import SearchQuery
from everthread.store.database import Database, Tx
from everthread.store.operations.scope import scope_of
from everthread.store.operations.sessions import placeholders
from everthread.store.queries import read_query

MOST_CALLS = 500
"""The newest so many messages that name the path are looked at."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that name a path."""

    path: str
    ids: frozenset[str]

    def hold(self, tx: Tx, message: int | None, output: str | None, thread: str) -> bool:
        """Whether a message or a thread's output answers one of them, or makes one."""
        if output is not None:
            rows = tx.all("SELECT call_id FROM citations WHERE thread_id = ? AND output_id = ?", (thread, output))
            return not self.ids.isdisjoint(row[0] for row in rows)
        row = tx.one("SELECT body FROM messages WHERE id = ?", (message,))
        body = json.loads(row[0]) if row else {}
        if any(self.path in call.arguments for call in calls_of(body)):
            return True
        return not self.ids.isdisjoint(result.call_id for result in results_of(body))


def calls_naming(tx: Tx, database: Database, query: SearchQuery, path: str) -> Calls:
    return Calls(path, frozenset(_found(tx, database, query, path)))


def _found(tx: Tx, database: Database, query: SearchQuery, path: str) -> Iterator[str]:
    scope = scope_of(tx, replace(query, role="assistant", tool=None, since=None, until=None))
    ways = read_query(f'"{path}"').ways
    if scope is None or not ways:
        return
    pieces = [candidate.id for candidate in database.match(tx, replace(scope, phrases=ways[0]), MOST_CALLS)]
    if not pieces:
        return
    rows = tx.all(
        "SELECT m.body FROM messages m WHERE m.id IN "
        f"(SELECT p.message_id FROM pieces p WHERE p.id IN ({placeholders(pieces)}))",
        pieces,
    )
    for row in rows:
        yield from (call.id for call in calls_of(json.loads(row[0])) if path in call.arguments)
