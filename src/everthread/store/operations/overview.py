"""What a page shows of many threads at once: lean rows, a few queries for a whole list."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from everthread.store.base import CompactionRecord
from everthread.store.database import Row, Tx
from everthread.store.operations import sessions
from everthread.store.operations.accounts import PICO
from everthread.store.operations.continuation import as_compaction
from everthread.store.operations.rewrites import COLUMNS, as_rewrite
from everthread.store.operations.sessions import placeholders
from everthread.store.operations.threads import AT_TIP
from everthread.store.overviews import CallRow, MessageSize, StoredRewrite, ThreadFigures

CHUNK = 500
SIZE = "COALESCE(m.tokens, (LENGTH(m.body) + 3) / 4)"
"""Tokens of a message; where nobody counted them, a quarter of its characters."""
CALL = "u.thread_id, u.created, u.model, u.task, u.tenant, u.platform, u.input, u.output, u.cache_read, u.cache_write, "


def figures(tx: Tx, threads: Sequence[str]) -> dict[str, ThreadFigures]:
    """What calls and compactions of these threads sum up to; a thread without any is left out."""
    sums: dict[str, dict[str, Any]] = {}
    for start in range(0, len(threads), CHUNK):
        some = threads[start : start + CHUNK]
        marks = placeholders(some)
        for row in tx.all(
            "SELECT u.thread_id, COUNT(*), SUM(CASE WHEN u.task = 'main' THEN 1 ELSE 0 END), "
            "COALESCE(SUM(u.pico_dollars), 0), SUM(CASE WHEN u.pico_dollars IS NULL THEN 1 ELSE 0 END), "
            "SUM(u.input + u.cache_read + u.cache_write), SUM(u.cache_read), SUM(u.output) "
            f"FROM usage u WHERE u.thread_id IN ({marks}) GROUP BY u.thread_id",
            some,
        ):
            _, every, calls, pico, unpriced, prompts, read, output = row
            sums.setdefault(row[0], {}).update(
                calls=int(calls), unpriced=int(unpriced), prompts=int(prompts), read=int(read), output=int(output),
                cost=None if unpriced == every else Decimal(int(pico)) / PICO,
            )  # fmt: skip
        for row in tx.all(
            "SELECT u.thread_id, u.model, u.input + u.cache_read + u.cache_write FROM usage u JOIN "
            f"(SELECT MAX(id) AS last FROM usage WHERE task = 'main' AND thread_id IN ({marks}) GROUP BY thread_id) l "
            "ON l.last = u.id",
            some,
        ):
            sums.setdefault(row[0], {}).update(model=row[1], prompt=int(row[2]))
        for row in tx.all(
            "SELECT thread_id, COUNT(*), MAX(created), SUM(tokens_before - tokens_after) FROM compactions "
            f"WHERE reverted IS NULL AND thread_id IN ({marks}) GROUP BY thread_id",
            some,
        ):
            sums.setdefault(row[0], {}).update(compactions=int(row[1]), compacted=row[2], removed=int(row[3]))
    return {thread: ThreadFigures(thread, **found) for thread, found in sums.items()}


def calls(tx: Tx, threads: Sequence[str]) -> list[CallRow]:
    """Every call of these threads in order."""
    found: list[CallRow] = []
    for start in range(0, len(threads), CHUNK):
        some = threads[start : start + CHUNK]
        found += map(
            _as_call,
            tx.all(
                f"SELECT {CALL} u.pico_dollars, u.estimated FROM usage u WHERE u.thread_id IN ({placeholders(some)}) "
                "ORDER BY u.thread_id, u.id",
                some,
            ),
        )
    return found


def compactions(
    tx: Tx, since: float, until: float, tenant: str | None, threads: Sequence[str] | None, limit: int
) -> list[CompactionRecord]:
    """Compactions of a period, or of some threads, the newest first; those that were undone too."""
    where, values = ["c.created >= ?", "c.created < ?"], [since, until]
    narrowed: list[Any] = [*values]
    if tenant is not None:
        where.append("s.tenant = ?")
        narrowed.append(tenant)
    if threads is not None:
        where.append(f"c.thread_id IN ({placeholders(threads) or 'NULL'})")
        narrowed += threads
    rows = tx.all(
        "SELECT c.id, c.thread_id, c.parent_id, c.session_id, c.created, c.reverted, c.record FROM compactions c "
        f"JOIN sessions s ON s.id = c.session_id WHERE {' AND '.join(where)} ORDER BY c.id DESC LIMIT ?",
        (*narrowed, limit),
    )
    return [as_compaction(row) for row in rows]


def heaviest(tx: Tx, thread: str, limit: int) -> list[MessageSize]:
    """The largest messages of a thread's own history."""
    rows = tx.all(
        f"SELECT m.id, m.role, m.tool, {SIZE}, m.created FROM messages m WHERE m.thread_id = ? AND m.kind = 'message' "
        "ORDER BY 4 DESC, m.id LIMIT ?",
        (sessions.thread_of(tx, thread), limit),
    )
    return [MessageSize(row[0], row[1], row[2], int(row[3]), row[4]) for row in rows]


def tool_sizes(tx: Tx, thread: str) -> list[tuple[str, int, int]]:
    """What each tool's results take: name, how many, tokens; the largest first."""
    rows = tx.all(
        f"SELECT m.tool, COUNT(*), SUM({SIZE}) FROM messages m WHERE m.thread_id = ? AND m.kind = 'message' "
        "AND m.role <> 'assistant' AND m.tool <> '' GROUP BY m.tool ORDER BY 3 DESC, 1 LIMIT 50",
        (sessions.thread_of(tx, thread),),
    )
    return [(row[0], int(row[1]), int(row[2])) for row in rows]


def thread_rewrites(tx: Tx, thread: str) -> list[StoredRewrite]:
    """What stands for beginnings of a proxied thread, in the order it was made."""
    rows = tx.all(
        f"SELECT {COLUMNS}, created FROM rewrites WHERE thread_id = ? ORDER BY created, length",
        (sessions.thread_of(tx, thread),),
    )
    return [StoredRewrite(as_rewrite(row[:-1]), row[-1]) for row in rows]


def by_tenant(tx: Tx, since: float, until: float, limit: int) -> list[Row]:
    """Sums of a period for each tenant: its name, calls, prompt tokens, read from the cache, pico-dollars, unpriced."""
    return tx.all(
        "SELECT u.tenant, COUNT(*), SUM(u.input + u.cache_read + u.cache_write), SUM(u.cache_read), "
        "COALESCE(SUM(u.pico_dollars), 0), SUM(CASE WHEN u.pico_dollars IS NULL THEN 1 ELSE 0 END), SUM(u.output) "
        "FROM usage u WHERE u.created >= ? AND u.created < ? GROUP BY u.tenant ORDER BY 3 DESC LIMIT ?",
        (since, until, limit),
    )


def last_change(tx: Tx, tenant: str | None, thread: str | None) -> str:
    """A text that is another one as soon as something was said, used or compacted; cheap to ask for."""
    if thread is not None:
        known = sessions.thread_of(tx, thread)
        rows = [
            tx.one("SELECT MAX(id), COUNT(*) FROM usage WHERE thread_id = ?", (known,)),
            tx.one("SELECT MAX(id), COUNT(reverted) FROM compactions WHERE thread_id = ?", (known,)),
            tx.one("SELECT MAX(active), SUM(next_seq) FROM sessions WHERE thread_id = ?", (known,)),
        ]
        return repr(rows)
    where, values = ("", ()) if tenant is None else (" AND t.tenant = ?", (tenant,))
    newest = tx.one(
        f"SELECT t.id, t.active, t.said FROM sessions t WHERE {AT_TIP}{where} "
        "ORDER BY t.active DESC, t.id DESC LIMIT 1",
        values,
    )
    return repr(
        (newest, tx.one("SELECT MAX(id) FROM usage"), tx.one("SELECT MAX(id), COUNT(reverted) FROM compactions"))
    )


def _as_call(row: Row) -> CallRow:
    cost = None if row[10] is None else Decimal(row[10]) / PICO
    return CallRow(*[*row[:10], cost, bool(row[11])])
