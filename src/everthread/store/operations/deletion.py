"""A thread and everything that is only its own, gone. What it cost stays in the accounts, without any content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.store.database import Database, Tx
from everthread.store.operations import outputs, sessions
from everthread.store.operations.sessions import placeholders


def delete_thread(tx: Tx, database: Database, thread: str) -> int:
    """How many sessions were deleted, those of its subagents too. A branch keeps what it shares."""
    threads = _hold_with_subagents(tx, thread)
    marks = placeholders(threads)
    rows = tx.all(f"SELECT id, system_hash FROM sessions WHERE thread_id IN ({marks})", threads)
    ids = [row[0] for row in rows]
    tx.many("DELETE FROM places WHERE session_id = ?", [(key,) for key in ids])
    orphans = tx.all(
        f"SELECT m.id FROM messages m WHERE m.thread_id IN ({marks}) "
        "AND NOT EXISTS (SELECT 1 FROM places p WHERE p.message_id = m.id)",
        threads,
    )
    _delete_messages(tx, database, [row[0] for row in orphans])
    _give_to_branches(tx, database, threads)
    _delete_outputs(tx, database, threads)
    for table in ("compactions", "nodes", "leases", "links", "rewrites", "turns"):
        tx.run(f"DELETE FROM {table} WHERE thread_id IN ({marks})", threads)
    tx.many("DELETE FROM state WHERE scope = ?", [(key,) for key in ids])
    tx.many("DELETE FROM sessions WHERE id = ?", [(key,) for key in ids])
    _delete_prompts(tx, sorted({row[1] for row in rows if row[1] is not None}))
    return len(ids)


def _delete_prompts(tx: Tx, hashes: list[str]) -> None:
    """System prompts nobody has any more. Locked first: only then is it certain who has them."""
    for key in hashes:
        tx.one(f"SELECT 1 FROM texts WHERE hash = ? {tx.dialect.lock}", (key,))
        tx.run(
            "DELETE FROM texts WHERE hash = ? AND NOT EXISTS (SELECT 1 FROM sessions WHERE system_hash = ?)", (key, key)
        )


def _hold_with_subagents(tx: Tx, thread: str) -> list[str]:
    """The thread and those of its subagents. Each is held before it is looked at, so that none is made meanwhile."""
    found: dict[str, None] = {}
    queue = [thread]
    while queue:
        current = sessions.hold(tx, queue.pop())
        found[current] = None
        rows = tx.all(
            "SELECT c.id FROM sessions c JOIN sessions p ON p.id = c.parent_id "
            "WHERE p.thread_id = ? AND c.kind = 'subagent' ORDER BY c.id",
            (current,),
        )
        queue += [row[0] for row in rows if row[0] not in found]
    return list(found)


def _give_to_branches(tx: Tx, database: Database, threads: list[str]) -> None:
    """Messages that branches share become the oldest branch's own, and are indexed anew as such."""
    shared = tx.all(
        "SELECT m.id, s.thread_id FROM messages m JOIN places p ON p.message_id = m.id "
        "JOIN sessions s ON s.id = p.session_id "
        f"WHERE m.thread_id IN ({placeholders(threads)}) ORDER BY s.started DESC, s.id DESC",
        threads,
    )
    heirs: dict[int, str] = dict(shared)  # of several branches the last row, the oldest branch, stays
    for message_id, heir in heirs.items():
        taken = tx.one(
            "SELECT 1 FROM messages WHERE thread_id = ? AND event = (SELECT event FROM messages WHERE id = ?)",
            (heir, message_id),
        )
        tx.run(
            "UPDATE messages SET thread_id = ?, event = event || ? WHERE id = ?",
            (heir, f"/{message_id}" if taken else "", message_id),
        )
        _unindex(tx, database, "message_id = ?", (message_id,))
        tx.run(
            "INSERT INTO unindexed (message_id) SELECT id FROM messages WHERE id = ? AND kind = 'message'",
            (message_id,),
        )


def _unindex(tx: Tx, database: Database, where: str, values: Sequence[Any]) -> None:
    """Out of the queue first: whoever is indexing it has then finished, or will not begin."""
    tx.run(f"DELETE FROM unindexed WHERE {where}", values)
    pieces = tx.all(f"SELECT id FROM pieces WHERE {where}", values)
    database.unindex(tx, [row[0] for row in pieces])
    tx.run(f"DELETE FROM pieces WHERE {where}", values)


def _delete_messages(tx: Tx, database: Database, ids: list[int]) -> None:
    for start in range(0, len(ids), 500):
        some = ids[start : start + 500]
        marks = placeholders(some)
        _unindex(tx, database, f"message_id IN ({marks})", some)
        tx.run(f"DELETE FROM messages WHERE id IN ({marks})", some)


def _delete_outputs(tx: Tx, database: Database, threads: list[str]) -> None:
    """Stored outputs nobody else cites. Locked first: only then is it certain who does."""
    marks = placeholders(threads)
    of_threads = f"thread_id IN ({marks}) AND output_id IS NOT NULL"
    _unindex(tx, database, of_threads, threads)
    cited = tx.all(f"SELECT DISTINCT tenant, output_id FROM citations WHERE thread_id IN ({marks})", threads)
    tx.run(f"DELETE FROM citations WHERE thread_id IN ({marks})", threads)
    for tenant, key in sorted(cited):
        tx.one(f"SELECT 1 FROM outputs WHERE tenant = ? AND id = ? {tx.dialect.lock}", (tenant, key))
        heir = tx.one("SELECT MIN(thread_id) FROM citations WHERE tenant = ? AND output_id = ?", (tenant, key))
        if heir is None or heir[0] is None:
            tx.run("DELETE FROM outputs WHERE tenant = ? AND id = ?", (tenant, key))
        else:  # whose search must find it from now on
            outputs.queue(tx, heir[0], key)
