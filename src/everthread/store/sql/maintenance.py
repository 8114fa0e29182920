"""Consistency checks of a store, and the deletion of a thread.

Deleting a thread deletes everything that belongs only to it. Its cost stays in the accounts, without any content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from everthread.errors import StoreDamagedError
from everthread.store.database import Tx, chunks, placeholders
from everthread.store.sql.session_rows import (
    IS_LISTED_TIP,
    THREAD_MESSAGES,
    THREAD_NUMBERS,
    lock_thread,
)
from everthread.store.sql.stored_outputs import load_output, queue_output
from everthread.store.value_encoding import checksum

CONSISTENCY_CHECKS = {
    "place(s) name a message that is not there": (
        "SELECT COUNT(*) FROM places p LEFT JOIN messages m ON m.id = p.message_id WHERE m.id IS NULL"
    ),
    "place(s) name a session that is not there": (
        "SELECT COUNT(*) FROM places p LEFT JOIN sessions s ON s.id = p.session_id WHERE s.id IS NULL"
    ),
    "message(s) stand in no session": (
        "SELECT COUNT(*) FROM messages m WHERE NOT EXISTS (SELECT 1 FROM places p WHERE p.message_id = m.id)"
    ),
    "message(s) belong to a thread that is not there": (
        "SELECT COUNT(*) FROM messages m LEFT JOIN sessions s ON s.id = m.thread_id WHERE s.id IS NULL"
    ),
    "session(s) have gaps among their places": (
        "SELECT COUNT(*) FROM (SELECT s.id FROM sessions s LEFT JOIN places p ON p.session_id = s.id AND p.seq >= 0 "
        "GROUP BY s.id, s.next_seq HAVING COUNT(p.seq) <> s.next_seq OR COALESCE(MAX(p.seq) + 1, 0) <> s.next_seq) g"
    ),
    "session(s) place a message twice": (
        "SELECT COUNT(*) FROM (SELECT session_id FROM places "
        "GROUP BY session_id, message_id, CASE WHEN seq < 0 THEN 1 ELSE 0 END HAVING COUNT(*) > 1) d"
    ),
    "session(s) carried more than they place": (
        "SELECT COUNT(*) FROM sessions WHERE carried < 0 OR carried > next_seq"
    ),
    "session(s) ended by compression have no continuation": (
        "SELECT COUNT(*) FROM sessions s WHERE s.end_reason = 'compression' AND NOT EXISTS "
        "(SELECT 1 FROM sessions c WHERE c.parent_id = s.id AND c.kind = 'continuation')"
    ),
    "continuation(s) follow a session that did not end by compression": (
        "SELECT COUNT(*) FROM sessions c LEFT JOIN sessions p ON p.id = c.parent_id WHERE c.kind = 'continuation' "
        "AND COALESCE(p.end_reason, '') <> 'compression'"
    ),
    "thread(s) go on at no place, or at several": (
        "SELECT COUNT(*) FROM (SELECT thread_id FROM sessions GROUP BY thread_id HAVING "
        "SUM(CASE WHEN kind <> 'reverted' AND COALESCE(end_reason, '') <> 'compression' THEN 1 ELSE 0 END) <> 1) t"
    ),
    "thread(s) are listed with wrong counts": (
        # All threads are counted in one pass, because a count for each takes hours on a large server.
        "SELECT COUNT(*) FROM sessions t LEFT JOIN (SELECT s.thread_id, COUNT(*) AS said, SUM(m.tokens) AS tokens "
        f"{THREAD_MESSAGES.format(thread='s.thread_id')} GROUP BY s.thread_id) c ON c.thread_id = t.thread_id "
        f"WHERE {IS_LISTED_TIP} AND (t.said <> COALESCE(c.said, 0) OR t.said_tokens <> COALESCE(c.tokens, 0))"
    ),
    "session(s) have lost their system prompt": (
        "SELECT COUNT(*) FROM sessions s LEFT JOIN texts t ON t.hash = s.system_hash "
        "WHERE s.system_hash IS NOT NULL AND t.hash IS NULL"
    ),
    "compaction(s) name a session that is not there": (
        "SELECT COUNT(*) FROM compactions c LEFT JOIN sessions s ON s.id = c.session_id WHERE s.id IS NULL"
    ),
    "point(s) of a thread follow a point that is not in it": (
        "SELECT COUNT(*) FROM links l WHERE l.follows <> '' AND NOT EXISTS "
        "(SELECT 1 FROM links p WHERE p.digest = l.follows AND p.thread_id = l.thread_id)"
    ),
    "point(s) of a thread have messages from before those of the point they follow": (
        "SELECT COUNT(*) FROM links l JOIN links p ON p.digest = l.follows AND p.thread_id = l.thread_id "
        "WHERE l.message_id < p.message_id"
    ),
    "citation(s) name an output that is not there": (
        "SELECT COUNT(*) FROM citations c LEFT JOIN outputs o ON o.tenant = c.tenant AND o.id = c.output_id "
        "WHERE o.id IS NULL"
    ),
    "citation(s) are of a thread that is not there": (
        "SELECT COUNT(*) FROM citations c LEFT JOIN sessions s ON s.id = c.thread_id WHERE s.id IS NULL"
    ),
}
MESSAGES_PER_CHECK = 500


def find_problems(tx: Tx) -> list[str]:
    """Return each broken rule with its count, and each message or output that was changed."""
    problems = [*_find_changed_messages(tx), *_find_changed_outputs(tx)]
    for problem, sql in CONSISTENCY_CHECKS.items():
        if count := tx.value(sql):
            problems.append(f"{count} {problem}")
    return problems


def _find_changed_messages(tx: Tx) -> Iterator[str]:
    last_id = 0
    while rows := tx.all(
        "SELECT id, body, checksum FROM messages WHERE id > ? ORDER BY id LIMIT ?",
        (last_id, MESSAGES_PER_CHECK),
    ):
        last_id = rows[-1][0]
        for message_id, body, stored_checksum in rows:
            if checksum(body) != stored_checksum:
                yield f"message {message_id} is not as it was stored"


def _find_changed_outputs(tx: Tx) -> Iterator[str]:
    for tenant, output_id in tx.all("SELECT tenant, id FROM outputs"):
        try:
            load_output(tx, output_id, tenant=tenant)
        except StoreDamagedError as error:
            yield str(error)


def delete_thread(tx: Tx, thread: str) -> int:
    """Delete a thread and its subagents; return the number of sessions. Branches keep the messages they share."""
    threads = _lock_with_subagents(tx, thread)
    thread_placeholders = placeholders(threads)
    rows = tx.all(
        f"SELECT id, system_hash FROM sessions WHERE thread_id IN ({thread_placeholders})",
        threads,
    )
    ids = [row[0] for row in rows]
    tx.run_many(
        "DELETE FROM places WHERE session_id = ?", [(session_id,) for session_id in ids]
    )
    orphan_rows = tx.all(
        f"SELECT m.id FROM messages m WHERE m.thread_id IN ({thread_placeholders}) "
        "AND NOT EXISTS (SELECT 1 FROM places p WHERE p.message_id = m.id)",
        threads,
    )
    for chunk in chunks([row[0] for row in orphan_rows]):
        _unindex_messages(tx, chunk)
        tx.run(f"DELETE FROM messages WHERE id IN ({placeholders(chunk)})", chunk)
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
        tx.run(
            f"DELETE FROM {table} WHERE thread_id IN ({thread_placeholders})", threads
        )
    tx.run_many(
        "DELETE FROM state WHERE scope = ?", [(session_id,) for session_id in ids]
    )
    tx.run_many(
        "DELETE FROM sessions WHERE id = ?", [(session_id,) for session_id in ids]
    )
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


def _lock_with_subagents(tx: Tx, thread: str) -> list[str]:
    """Lock a thread and its subagents, and return their ids.

    Each thread is locked before its subagents are read, so that none is missed.
    """
    locked_threads: dict[str, None] = {}
    waiting_threads = [thread]
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
    # Of several branches the last row, the oldest branch, stays.
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
    _delete_pieces(tx, where, ids)


def _delete_pieces(tx: Tx, where: str, values: Sequence[Any]) -> None:
    pieces = tx.all(f"SELECT id FROM pieces WHERE {where}", values)
    tx.unindex([row[0] for row in pieces])
    tx.run(f"DELETE FROM pieces WHERE {where}", values)


def _delete_outputs(tx: Tx, threads: list[str]) -> None:
    """Delete the stored outputs that no other thread cites. Each output is locked before its citations are checked."""
    thread_placeholders = placeholders(threads)
    tx.run(
        f"DELETE FROM unindexed WHERE thread_id IN ({thread_placeholders}) AND output_id IS NOT NULL",
        threads,
    )
    thread_numbers = THREAD_NUMBERS.format(thread_placeholders)
    _delete_pieces(
        tx, f"thread IN ({thread_numbers}) AND output_id IS NOT NULL", threads
    )
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
            tx.run(
                "DELETE FROM outputs WHERE tenant = ? AND id = ?", (tenant, output_id)
            )
        else:
            # The output is indexed for the first thread that cites it.
            queue_output(tx, citing_thread, output_id)
