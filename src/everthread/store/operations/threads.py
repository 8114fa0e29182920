"""Threads as a list shows them: when they were last used, and how much was said in them.

Both are kept with the session where a thread goes on and change with every append, so that a list reads no messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from everthread.store.base import Session, ThreadRow
from everthread.store.database import Tx
from everthread.store.operations import sessions

AT_TIP = "t.kind <> 'reverted' AND COALESCE(t.end_reason, '') <> 'compression'"
"""The sessions where threads go on, one of each; written as in the indexes of them."""
SAID = (
    "FROM sessions s JOIN places p ON p.session_id = s.id JOIN messages m ON m.id = p.message_id "
    "WHERE s.thread_id = {thread} AND s.kind <> 'reverted' AND (p.seq < 0 OR p.seq >= s.carried) AND m.kind = 'message'"
)
"""What was said in a thread: its history."""
CHUNK = 500


def listed(tx: Tx, tenant: str | None, limit: int, offset: int) -> list[ThreadRow]:
    """The last used first."""
    where, values = ("", ()) if tenant is None else (" AND t.tenant = ?", (tenant,))
    rows = tx.all(
        "SELECT r.*, (SELECT COUNT(*) FROM compactions c WHERE c.thread_id = r.thread_id AND c.reverted IS NULL) "
        "FROM (SELECT t.id, t.thread_id, t.said, t.said_tokens, t.active FROM sessions t "
        f"WHERE {AT_TIP}{where} ORDER BY t.active DESC, t.id DESC LIMIT ? OFFSET ?) r "
        "ORDER BY r.active DESC, r.id DESC",
        (*values, limit, offset),
    )
    known = _sessions(tx, list(dict.fromkeys(key for row in rows for key in row[:2])))
    return [ThreadRow(known[row[1]], known[row[0]], *row[2:]) for row in rows]


def _sessions(tx: Tx, ids: Sequence[str]) -> dict[str, Session]:
    found: dict[str, Session] = {}
    for start in range(0, len(ids), CHUNK):
        some = ids[start : start + CHUNK]
        rows = tx.all(f"{sessions.SELECT} WHERE s.id IN ({sessions.placeholders(some)})", some)
        found |= {row[0]: sessions.as_session(row) for row in rows}
    return found


def hand_over(tx: Tx, old: str, new: str) -> None:
    """The thread goes on in another session, which knows from now on what the old one knew."""
    row = tx.one("SELECT active, said, said_tokens FROM sessions WHERE id = ?", (old,))
    assert row is not None
    tx.run("UPDATE sessions SET active = ?, said = ?, said_tokens = ? WHERE id = ?", (*row, new))


def recount(tx: Tx, thread: str) -> None:
    """What was said in a thread that came as a whole: a branch, an import."""
    row = tx.one(f"SELECT COUNT(*), COALESCE(SUM(m.tokens), 0) {SAID.format(thread='?')}", (thread,))
    assert row is not None
    tx.run("UPDATE sessions SET said = ?, said_tokens = ? WHERE thread_id = ?", (*map(int, row), thread))


def note_last_use(tx: Tx, thread: str) -> None:
    """A thread that came as a whole was last used when its last message was said."""
    tx.run(
        "UPDATE sessions SET active = COALESCE((SELECT m.created FROM places p JOIN messages m ON m.id = p.message_id "
        "WHERE p.session_id = sessions.id AND m.kind = 'message' ORDER BY p.seq DESC LIMIT 1), started) "
        "WHERE thread_id = ?",
        (thread,),
    )
