"""What must always be true of a store, as questions to it."""

from __future__ import annotations

from collections.abc import Iterator

from everthread.core.fingerprints import byte_fingerprint
from everthread.errors import StoreDamagedError
from everthread.store.database import Tx
from everthread.store.operations import outputs, threads
from everthread.store.operations.sessions import from_json

CHECKS = {
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
        f"SELECT COUNT(*) FROM sessions t WHERE {threads.AT_TIP} AND (t.said, t.said_tokens) <> "
        f"(SELECT COUNT(*), COALESCE(SUM(m.tokens), 0) {threads.SAID.format(thread='t.thread_id')})"
    ),
    "session(s) have lost their system prompt": (
        "SELECT COUNT(*) FROM sessions s LEFT JOIN texts t ON t.hash = s.system_hash "
        "WHERE s.system_hash IS NOT NULL AND t.hash IS NULL"
    ),
    "compaction(s) name a session that is not there": (
        "SELECT COUNT(*) FROM compactions c LEFT JOIN sessions s ON s.id = c.session_id WHERE s.id IS NULL"
    ),
    "citation(s) name an output that is not there": (
        "SELECT COUNT(*) FROM citations c LEFT JOIN outputs o ON o.tenant = c.tenant AND o.id = c.output_id "
        "WHERE o.id IS NULL"
    ),
    "citation(s) are of a thread that is not there": (
        "SELECT COUNT(*) FROM citations c LEFT JOIN sessions s ON s.id = c.thread_id WHERE s.id IS NULL"
    ),
}


CHUNK = 500


def problems(tx: Tx) -> list[str]:
    """Every rule that is broken, with how often; and every content that is not what it was."""
    found = [*_changed_messages(tx), *_changed_outputs(tx)]
    for what, sql in CHECKS.items():
        row = tx.one(sql)
        if row and row[0]:
            found.append(f"{row[0]} {what}")
    return found


def _changed_messages(tx: Tx) -> Iterator[str]:
    last = 0
    while rows := tx.all("SELECT id, body, byte_order FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, CHUNK)):
        last = rows[-1][0]
        for message_id, body, fingerprint in rows:
            if byte_fingerprint(from_json(body)) != fingerprint:
                yield f"message {message_id} is not what was stored"


def _changed_outputs(tx: Tx) -> Iterator[str]:
    for tenant, key in tx.all("SELECT tenant, id FROM outputs"):
        try:
            outputs.get(tx, key, tenant)
        except StoreDamagedError as error:
            yield str(error)
