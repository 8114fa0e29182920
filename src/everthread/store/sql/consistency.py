"""Check a store for damaged content and broken rules."""

from __future__ import annotations

from collections.abc import Iterator

from everthread.errors import StoreDamagedError
from everthread.store.database import Tx
from everthread.store.sql.stored_outputs import load_output
from everthread.store.sql.thread_rows import FROM_THREAD_MESSAGES, IS_LISTED_TIP
from everthread.store.value_codec import checksum

CONSISTENCY_CHECKS = {
    "message position(s) refer to a missing message": (
        "SELECT COUNT(*) FROM places p LEFT JOIN messages m ON m.id = p.message_id WHERE m.id IS NULL"
    ),
    "message position(s) refer to a missing session": (
        "SELECT COUNT(*) FROM places p LEFT JOIN sessions s ON s.id = p.session_id WHERE s.id IS NULL"
    ),
    "message(s) are in no session": (
        "SELECT COUNT(*) FROM messages m WHERE NOT EXISTS (SELECT 1 FROM places p WHERE p.message_id = m.id)"
    ),
    "message(s) belong to a missing thread": (
        "SELECT COUNT(*) FROM messages m LEFT JOIN sessions s ON s.id = m.thread_id WHERE s.id IS NULL"
    ),
    "session(s) have gaps between their messages": (
        "SELECT COUNT(*) FROM (SELECT s.id FROM sessions s LEFT JOIN places p ON p.session_id = s.id AND p.seq >= 0 "
        "GROUP BY s.id, s.next_seq HAVING COUNT(p.seq) <> s.next_seq OR COALESCE(MAX(p.seq) + 1, 0) <> s.next_seq) g"
    ),
    "session(s) show a message twice": (
        "SELECT COUNT(*) FROM (SELECT session_id FROM places "
        "GROUP BY session_id, message_id, CASE WHEN seq < 0 THEN 1 ELSE 0 END HAVING COUNT(*) > 1) d"
    ),
    "session(s) inherited more messages than they show": (
        "SELECT COUNT(*) FROM sessions WHERE inherited_count < 0 OR inherited_count > next_seq"
    ),
    "session(s) ended by compression have no continuation": (
        "SELECT COUNT(*) FROM sessions s WHERE s.end_reason = 'compression' AND NOT EXISTS "
        "(SELECT 1 FROM sessions c WHERE c.parent_id = s.id AND c.kind = 'continuation')"
    ),
    "continuation(s) follow a session that did not end by compression": (
        "SELECT COUNT(*) FROM sessions c LEFT JOIN sessions p ON p.id = c.parent_id WHERE c.kind = 'continuation' "
        "AND COALESCE(p.end_reason, '') <> 'compression'"
    ),
    "thread(s) continue in no session, or in several": (
        "SELECT COUNT(*) FROM (SELECT thread_id FROM sessions GROUP BY thread_id HAVING "
        "SUM(CASE WHEN kind <> 'reverted' AND COALESCE(end_reason, '') <> 'compression' THEN 1 ELSE 0 END) <> 1) t"
    ),
    "thread(s) are listed with wrong counts": (
        # All threads are counted in one pass, because a count for each takes hours on a large server.
        "SELECT COUNT(*) FROM sessions t LEFT JOIN (SELECT s.thread_id, COUNT(*) AS messages, SUM(m.tokens) AS tokens "
        f"{FROM_THREAD_MESSAGES.format(thread='s.thread_id')} GROUP BY s.thread_id) c ON c.thread_id = t.thread_id "
        f"WHERE {IS_LISTED_TIP} "
        "AND (t.message_count <> COALESCE(c.messages, 0) OR t.token_count <> COALESCE(c.tokens, 0))"
    ),
    "session(s) have lost their system prompt": (
        "SELECT COUNT(*) FROM sessions s LEFT JOIN texts t ON t.hash = s.system_hash "
        "WHERE s.system_hash IS NOT NULL AND t.hash IS NULL"
    ),
    "compaction(s) refer to a missing session": (
        "SELECT COUNT(*) FROM compactions c LEFT JOIN sessions s ON s.id = c.session_id WHERE s.id IS NULL"
    ),
    "link(s) follow a link that is not in their thread": (
        "SELECT COUNT(*) FROM links l WHERE l.follows <> '' AND NOT EXISTS "
        "(SELECT 1 FROM links p WHERE p.digest = l.follows AND p.thread_id = l.thread_id)"
    ),
    "link(s) have older messages than the link they follow": (
        "SELECT COUNT(*) FROM links l JOIN links p ON p.digest = l.follows AND p.thread_id = l.thread_id "
        "WHERE l.last_message_id < p.last_message_id"
    ),
    "citation(s) refer to a missing output": (
        "SELECT COUNT(*) FROM citations c LEFT JOIN outputs o ON o.tenant = c.tenant AND o.id = c.output_id "
        "WHERE o.id IS NULL"
    ),
    "citation(s) belong to a missing thread": (
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
                yield f"message {message_id} has changed since it was stored"


def _find_changed_outputs(tx: Tx) -> Iterator[str]:
    for tenant, output_id in tx.all("SELECT tenant, id FROM outputs"):
        try:
            load_output(tx, output_id, tenant=tenant)
        except StoreDamagedError as error:
            yield str(error)
