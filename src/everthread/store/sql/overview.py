"""Figures for pages that show many threads, or one thread in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from everthread.store.database import (
    Tx,
    make_equality_condition,
    placeholders,
    split_batches,
)
from everthread.store.records import CompactionRecord, StoredMessage
from everthread.store.sql.accounts import CLIENT_NAME_SQL, make_period_condition, sum_calls_by
from everthread.store.sql.compactions import decode_compaction_row
from everthread.store.sql.session_rows import find_thread
from everthread.store.sql.stored_messages import MESSAGE_COLUMNS, decode_message
from everthread.store.sql.thread_rows import IS_LISTED_TIP
from everthread.store.usage_records import MessageSize, ThreadFigures, UsageRow
from everthread.store.value_codec import PICO_DOLLARS_PER_DOLLAR

MESSAGE_TOKENS_SQL = "COALESCE(m.tokens, (m.chars + 3) / 4)"
"""SQL for the tokens of a message: if they were not counted, a quarter of its characters."""


def sum_threads(tx: Tx, threads: Sequence[str]) -> dict[str, ThreadFigures]:
    """Return the sums of the calls and compactions of each thread; leave out threads without any."""
    figures_by_thread: dict[str, dict[str, Any]] = {}
    for row in tx.all_for_keys(
        "SELECT u.thread_id, COUNT(*), SUM(CASE WHEN u.task = 'main' THEN 1 ELSE 0 END), "
        "COALESCE(SUM(u.pico_dollars), 0), SUM(CASE WHEN u.pico_dollars IS NULL THEN 1 ELSE 0 END), "
        "SUM(u.input + u.cache_read + u.cache_write), SUM(u.cache_read), SUM(u.output) "
        "FROM usage u WHERE u.thread_id IN ({}) GROUP BY u.thread_id",
        threads,
    ):
        (
            all_calls,
            main_calls,
            pico_dollars,
            unpriced_calls,
            prompt_tokens,
            cache_read,
            output_tokens,
        ) = map(int, row[1:])
        figures_by_thread[row[0]] = {
            "calls": main_calls,
            "unpriced_calls": unpriced_calls,
            "prompt_tokens": prompt_tokens,
            "cache_read_tokens": cache_read,
            "output_tokens": output_tokens,
            "cost": None if unpriced_calls == all_calls else pico_dollars / PICO_DOLLARS_PER_DOLLAR,
        }
    for row in tx.all_for_keys(
        "SELECT u.thread_id, u.model, u.input + u.cache_read + u.cache_write FROM usage u JOIN "
        "(SELECT MAX(id) AS last FROM usage WHERE task = 'main' AND thread_id IN ({}) GROUP BY thread_id) l "
        "ON l.last = u.id",
        threads,
    ):
        figures_by_thread[row[0]] |= {
            "last_model": row[1],
            "last_prompt_tokens": int(row[2]),
        }
    for row in tx.all_for_keys(
        "SELECT thread_id, COUNT(*), MAX(created) FROM compactions "
        "WHERE thread_id IN ({}) AND reverted_at IS NULL GROUP BY thread_id",
        threads,
    ):
        figures_by_thread.setdefault(row[0], {}).update(
            compactions=int(row[1]), last_compacted=row[2]
        )
    return {
        thread: ThreadFigures(thread, **figures) for thread, figures in figures_by_thread.items()
    }


def list_recent_compactions(
    tx: Tx,
    *,
    tenant: str | None = None,
    threads: Sequence[str] | None = None,
    limit: int = 1_000,
) -> list[CompactionRecord]:
    """Return the compactions of a tenant or of some threads, also undone ones, the newest first."""
    where, values = make_equality_condition({"s.tenant": tenant})
    if threads is not None:
        where += f" AND c.thread_id IN ({placeholders(threads) or 'NULL'})"
        values += threads
    rows = tx.all(
        "SELECT c.id, c.thread_id, c.parent_id, c.session_id, c.created, c.reverted_at, c.record FROM compactions c "
        f"JOIN sessions s ON s.id = c.session_id WHERE {where} ORDER BY c.id DESC LIMIT ?",
        (*values, limit),
    )
    return [decode_compaction_row(row) for row in rows]


def list_largest_messages(tx: Tx, thread_id: str, limit: int = 10) -> list[MessageSize]:
    """Return the largest messages of a thread's own history."""
    rows = tx.all(
        f"SELECT m.id, m.role, m.tool, {MESSAGE_TOKENS_SQL}, m.created FROM messages m "
        "WHERE m.thread_id = ? AND m.kind = 'message' ORDER BY 4 DESC, m.id LIMIT ?",
        (find_thread(tx, thread_id), limit),
    )
    return [MessageSize(row[0], row[1], row[2], int(row[3]), row[4]) for row in rows]


def list_tool_sizes(tx: Tx, thread_id: str) -> list[tuple[str, int, int]]:
    """Return the name, number and tokens of each tool's results, the largest first."""
    rows = tx.all(
        f"SELECT m.tool, COUNT(*), SUM({MESSAGE_TOKENS_SQL}) FROM messages m WHERE m.thread_id = ? "
        "AND m.kind = 'message' AND m.role <> 'assistant' AND m.tool <> '' GROUP BY m.tool ORDER BY 3 DESC, 1 LIMIT 50",
        (find_thread(tx, thread_id),),
    )
    return [(row[0], int(row[1]), int(row[2])) for row in rows]


def list_context_sizes(
    tx: Tx, session_id: str, *, start: int = 0
) -> list[tuple[str, str, bool, int]]:
    """Return the tokens of the messages that a session shows from `start` on.

    Each row has the kind and the role of messages, whether they have a tool, and the sum of their tokens.
    """
    rows = tx.all(
        f"SELECT m.kind, m.role, CASE WHEN m.tool <> '' THEN 1 ELSE 0 END, SUM({MESSAGE_TOKENS_SQL}) FROM places p "
        "JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? AND p.seq >= ? GROUP BY 1, 2, 3",
        (session_id, start),
    )
    return [(row[0], row[1], bool(row[2]), int(row[3])) for row in rows]


def find_unchanged_and_shortened_ids(
    tx: Tx, session_id: str, ids: Sequence[int]
) -> tuple[set[int], set[int]]:
    """Return the messages among these that a session shows unchanged, and those that it shows shortened."""
    unchanged_ids: set[int] = set()
    shortened_ids: set[int] = set()
    for batch in split_batches(ids):
        batch_placeholders = placeholders(batch)
        rows = tx.all(
            "SELECT m.id, m.origin FROM places p JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? "
            f"AND p.seq >= 0 AND (m.id IN ({batch_placeholders}) OR m.origin IN ({batch_placeholders}))",
            (session_id, *batch, *batch),
        )
        unchanged_ids |= {row[0] for row in rows if row[1] is None}
        shortened_ids |= {row[1] for row in rows if row[1] is not None}
    return unchanged_ids, shortened_ids


def list_summaries(tx: Tx, session_id: str) -> list[StoredMessage]:
    """Return the summaries that a session shows."""
    rows = tx.all(
        f"SELECT {MESSAGE_COLUMNS} FROM places p JOIN messages m ON m.id = p.message_id "
        "WHERE p.session_id = ? AND p.seq >= 0 AND m.kind = 'summary' ORDER BY p.seq",
        (session_id,),
    )
    return [decode_message(row) for row in rows]


GROUP_COLUMNS: Mapping[str, str] = {"tenant": "u.tenant", "client": CLIENT_NAME_SQL}


def sum_usage_by(
    tx: Tx,
    group: Literal["tenant", "client"],
    *,
    since: float,
    until: float,
    tenant: str | None = None,
    limit: int = 50,
) -> list[UsageRow]:
    """Return the sums of a period for each tenant or client, the largest first."""
    where, values = make_period_condition("u.created", "u", since, until, tenant)
    source = (
        f"usage u JOIN sessions s ON s.id = u.thread_id WHERE {where} "
        "GROUP BY 1 ORDER BY SUM(u.input + u.cache_read + u.cache_write) DESC LIMIT ?"
    )
    return sum_calls_by(tx, GROUP_COLUMNS[group], source, (*values, limit))


def load_change_marker(tx: Tx, *, tenant: str | None = None, thread_id: str | None = None) -> str:
    """Return a text that changes with every message, call and compaction, and is cheap to compute."""
    if thread_id is not None:
        thread_id = find_thread(tx, thread_id)
        rows = [
            tx.one("SELECT MAX(id), COUNT(*) FROM usage WHERE thread_id = ?", (thread_id,)),
            tx.one(
                "SELECT MAX(id), COUNT(reverted_at) FROM compactions WHERE thread_id = ?",
                (thread_id,),
            ),
            tx.one(
                "SELECT MAX(last_active), SUM(next_seq) FROM sessions WHERE thread_id = ?",
                (thread_id,),
            ),
        ]
        return repr(rows)
    where, values = make_equality_condition({"t.tenant": tenant})
    newest = tx.one(
        f"SELECT t.id, t.last_active, t.message_count FROM sessions t WHERE {IS_LISTED_TIP} AND {where} "
        "ORDER BY t.last_active DESC, t.id DESC LIMIT 1",
        values,
    )
    return repr(
        (
            newest,
            tx.one("SELECT MAX(id) FROM usage"),
            tx.one("SELECT MAX(id), COUNT(reverted_at) FROM compactions"),
        )
    )
