"""Delete a thread with everything that belongs only to it. Its cost stays in the accounts, without any content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.store.database import Tx, placeholders, split_batches
from everthread.store.sql.session_rows import SELECT_THREAD_NUMBERS, lock_thread
from everthread.store.sql.stored_outputs import queue_output


def delete_thread(tx: Tx, thread_id: str) -> int:
    """Delete a thread and its subagents; return the number of sessions. Branches keep the messages they share."""
    threads = _lock_with_subagents(tx, thread_id)
    thread_placeholders = placeholders(threads)
    rows = tx.all(
        f"SELECT id, system_hash FROM sessions WHERE thread_id IN ({thread_placeholders})",
        threads,
    )
    ids = [row[0] for row in rows]
    tx.run_many("DELETE FROM places WHERE session_id = ?", [(session_id,) for session_id in ids])
    orphan_rows = tx.all(
        f"SELECT m.id FROM messages m WHERE m.thread_id IN ({thread_placeholders}) "
        "AND NOT EXISTS (SELECT 1 FROM places p WHERE p.message_id = m.id)",
        threads,
    )
    for batch in split_batches([row[0] for row in orphan_rows]):
        _unindex_messages(tx, batch)
        tx.run(f"DELETE FROM messages WHERE id IN ({placeholders(batch)})", batch)
    _give_shared_messages_to_branches(tx, threads)
    _delete_outputs(tx, threads)
    for table in (
        "compactions",
        "nodes",
        "leases",
        "links",
        "rewrites",
        "turns",
        "pins",
    ):
        tx.run(f"DELETE FROM {table} WHERE thread_id IN ({thread_placeholders})", threads)
    tx.run_many("DELETE FROM state WHERE scope = ?", [(session_id,) for session_id in ids])
    tx.run_many("DELETE FROM sessions WHERE id = ?", [(session_id,) for session_id in ids])
    _delete_prompts(tx, sorted({row[1] for row in rows if row[1] is not None}))
    return len(ids)


def _delete_prompts(tx: Tx, hashes: list[str]) -> None:
    """Delete the system prompts that no session uses. Each prompt is locked before its use is checked."""
    for prompt_hash in hashes:
        tx.one(
            f"SELECT 1 FROM texts WHERE hash = ? {tx.dialect.for_update}",
            (prompt_hash,),
        )
        tx.run(
            "DELETE FROM texts WHERE hash = ? AND NOT EXISTS (SELECT 1 FROM sessions WHERE system_hash = ?)",
            (prompt_hash, prompt_hash),
        )


def _lock_with_subagents(tx: Tx, thread_id: str) -> list[str]:
    """Lock a thread and its subagents, and return their ids.

    Each thread is locked before its subagents are read, so that none is missed.
    """
    locked_threads: dict[str, None] = {}
    waiting_threads = [thread_id]
    while waiting_threads:
        locked_thread = lock_thread(tx, waiting_threads.pop())
        locked_threads[locked_thread] = None
        rows = tx.all(
            "SELECT c.id FROM sessions c JOIN sessions p ON p.id = c.parent_id "
            "WHERE p.thread_id = ? AND c.kind IN ('subagent', 'side') ORDER BY c.id",
            (locked_thread,),
        )
        waiting_threads += [row[0] for row in rows if row[0] not in locked_threads]
    return list(locked_threads)


def _give_shared_messages_to_branches(tx: Tx, threads: list[str]) -> None:
    """Give messages that branches share to the oldest branch, and index them again for it."""
    rows = tx.all(
        "SELECT m.id, s.thread_id FROM messages m JOIN places p ON p.message_id = m.id "
        "JOIN sessions s ON s.id = p.session_id "
        f"WHERE m.thread_id IN ({placeholders(threads)}) ORDER BY s.started DESC, s.id DESC",
        threads,
    )
    # The last row of a message, that of the oldest branch, replaces the others.
    new_owners: dict[int, str] = dict(rows)
    for message_id, new_owner in new_owners.items():
        same_event = tx.one(
            "SELECT 1 FROM messages WHERE thread_id = ? AND event = (SELECT event FROM messages WHERE id = ?)",
            (new_owner, message_id),
        )
        tx.run(
            "UPDATE messages SET thread_id = ?, event = event || ? WHERE id = ?",
            (new_owner, f"/{message_id}" if same_event else "", message_id),
        )
        _unindex_messages(tx, [message_id])
        tx.run(
            "INSERT INTO unindexed (message_id) SELECT id FROM messages WHERE id = ? AND kind = 'message'",
            (message_id,),
        )


def _unindex_messages(tx: Tx, ids: Sequence[int]) -> None:
    """Remove messages from the queue of the index, so that no process indexes them later, and then from the index."""
    where = f"message_id IN ({placeholders(ids)})"
    tx.run(f"DELETE FROM unindexed WHERE {where}", ids)
    _delete_chunks(tx, where, ids)


def _delete_chunks(tx: Tx, where: str, values: Sequence[Any]) -> None:
    chunks = tx.all(f"SELECT id FROM chunks WHERE {where}", values)
    tx.unindex([row[0] for row in chunks])
    tx.run(f"DELETE FROM chunks WHERE {where}", values)


def _delete_outputs(tx: Tx, threads: list[str]) -> None:
    """Delete the stored outputs that no other thread cites. Each output is locked before its citations are checked."""
    thread_placeholders = placeholders(threads)
    tx.run(
        f"DELETE FROM unindexed WHERE thread_id IN ({thread_placeholders}) AND output_id IS NOT NULL",
        threads,
    )
    thread_numbers = SELECT_THREAD_NUMBERS.format(thread_placeholders)
    _delete_chunks(tx, f"thread IN ({thread_numbers}) AND output_id IS NOT NULL", threads)
    cited_outputs = tx.all(
        f"SELECT DISTINCT tenant, output_id FROM citations WHERE thread_id IN ({thread_placeholders})",
        threads,
    )
    tx.run(f"DELETE FROM citations WHERE thread_id IN ({thread_placeholders})", threads)
    for tenant, output_id in sorted(cited_outputs):
        tx.one(
            f"SELECT 1 FROM outputs WHERE tenant = ? AND id = ? {tx.dialect.for_update}",
            (tenant, output_id),
        )
        citing_thread = tx.value(
            "SELECT MIN(thread_id) FROM citations WHERE tenant = ? AND output_id = ?",
            (tenant, output_id),
        )
        if citing_thread is None:
            tx.run("DELETE FROM outputs WHERE tenant = ? AND id = ?", (tenant, output_id))
        else:
            # The output is indexed for the first thread that cites it.
            queue_output(tx, citing_thread, output_id)
