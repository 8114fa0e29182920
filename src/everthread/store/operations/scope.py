"""Where a search looks: whose words, said by whom, when, and in which thread or session."""

from __future__ import annotations

from typing import Any

from everthread.errors import UnknownIdError
from everthread.store.base import SearchQuery
from everthread.store.database import Row, Tx
from everthread.store.indexing import name
from everthread.store.operations.indexing import RUN
from everthread.store.operations.sessions import plain
from everthread.store.queries import Match

OF_THREAD = (
    "(p.thread_id = ? OR EXISTS (SELECT 1 FROM places q WHERE q.session_id = ? AND q.message_id = p.message_id) "
    "OR EXISTS (SELECT 1 FROM citations c WHERE c.thread_id = ? AND c.output_id = p.output_id))"
)
OF_SESSION = (
    "(EXISTS (SELECT 1 FROM places q WHERE q.session_id = ? AND q.message_id = p.message_id) "
    "OR p.output_id IS NOT NULL AND p.created >= ? AND p.created <= ?)"
)


def scope_of(tx: Tx, query: SearchQuery) -> Match | None:
    """The bounds of a search, without its words; None where nothing can be within them."""
    names: list[tuple[str, ...]] = [tuple(name("tenant", tenant) for tenant in _tenants(tx, query.tenant))]
    if not names[0]:
        return None
    spoken = (("role", query.role), ("tool", query.tool))
    names += [(name(kind, plain(value)),) for kind, value in spoken if value is not None]
    where: list[str] = []
    values: list[Any] = []
    if query.thread is not None:
        thread = _session(tx, query.thread, query.tenant)[0]
        sources = sources_of(tx, thread)
        names.append(tuple(name("thread", source) for source in sources))
        if len(sources) > 1:
            where.append(OF_THREAD)
            values += (thread, thread, thread)
    if query.session is not None:
        thread, started, ended = _session(tx, query.session, query.tenant)
        names.append(tuple(name("thread", source) for source in sources_of(tx, thread)))
        where.append(OF_SESSION)
        values += (query.session, started, ended if ended is not None else 1e18)
    for bound, sign in ((query.since, ">="), (query.until, "<")):
        if bound is not None:
            where.append(f"p.created {sign} ?")
            values.append(bound)
    ids = _ids(tx, query)
    return ids and Match((), tuple(names), *ids, " AND ".join(where), tuple(values))


def _tenants(tx: Tx, tenant: str | None) -> list[str]:
    """Whose words are searched."""
    if tenant is not None:
        return [tenant]
    return [row[0] for row in tx.all("SELECT DISTINCT tenant FROM sessions ORDER BY 1 LIMIT 500")]


def _session(tx: Tx, session_id: str, tenant: str | None) -> Row:
    """Thread, start and end of a session."""
    row = tx.one("SELECT thread_id, started, ended, tenant FROM sessions WHERE id = ?", (session_id,))
    if row is None or tenant not in (None, row[3]):
        raise UnknownIdError(f"there is no thread or session {session_id!r} to search in")
    return row[:3]


def sources_of(tx: Tx, thread: str) -> list[str]:
    """The thread, and for a branch those whose messages and outputs it shares."""
    root = tx.one("SELECT kind FROM sessions WHERE id = ?", (thread,))
    if root is None or root[0] != "branch":
        return [thread]
    rows = tx.all(
        "SELECT m.thread_id FROM places p JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? UNION "
        "SELECT p.thread_id FROM citations c JOIN pieces p ON p.output_id = c.output_id WHERE c.thread_id = ?",
        (thread, thread),
    )
    return [thread, *sorted({row[0] for row in rows} - {thread})]


def _ids(tx: Tx, query: SearchQuery) -> tuple[int, int] | None:
    """First and last id, exclusive, of the pieces that may be of the period; None where there are none."""
    if query.since is None and query.until is None:
        return 0, 2**62
    since = -1e18 if query.since is None else query.since
    until = 1e18 if query.until is None else query.until
    row = tx.one("SELECT MIN(run), MAX(run) FROM eras WHERE latest >= ? AND earliest < ?", (since, until))
    return None if row is None or row[0] is None else (row[0] * RUN, (row[1] + 1) * RUN)
