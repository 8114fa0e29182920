"""Messages: appended once, read as a session's context or as a thread's history."""

from __future__ import annotations

from everthread.errors import UnknownIdError
from everthread.store.base import StoredMessage
from everthread.store.database import Row, Tx
from everthread.store.operations import sessions
from everthread.store.operations.prepared import Prepared
from everthread.store.operations.sessions import LAST, Tip, from_json

COLUMNS = "m.id, p.session_id, p.seq, m.kind, m.body, m.event, m.tokens, m.canonical, m.byte_order, m.created, m.origin"


def as_stored(row: Row) -> StoredMessage:
    return StoredMessage(*[*row[:4], from_json(row[4]), *row[5:]])


def insert(tx: Tx, thread: str, item: Prepared, now: float) -> int | None:
    """The new message's id; None where its event is known already."""
    new = item.new
    row = tx.one(
        "INSERT INTO messages (thread_id, event, kind, role, tool, body, tokens, canonical, byte_order, created, "
        "origin) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (thread_id, event) DO NOTHING RETURNING id",
        (
            thread, new.event, new.kind, item.role, item.tool, item.text, new.tokens, item.canonical, item.byte_order,
            now if new.created is None else new.created, new.origin,
        ),
    )  # fmt: skip
    if row is None:
        return None
    if new.kind == "message":
        tx.run("INSERT INTO unindexed (message_id) VALUES (?)", row)
    return int(row[0])


def by_event(tx: Tx, current: Tip, event: str) -> StoredMessage:
    """The message of an event: where the thread shows it now, else where it was said."""
    row = tx.one(
        f"SELECT {COLUMNS} FROM messages m JOIN places p ON p.message_id = m.id JOIN sessions s ON s.id = p.session_id "
        f"WHERE m.thread_id = ? AND m.event = ? ORDER BY CASE WHEN s.id = ? THEN 0 ELSE 1 END, {HOME_FIRST} LIMIT 1",
        (current.thread, event, current.id),
    )
    assert row is not None, "a message stands in a session"
    return as_stored(row)


HOME_FIRST = (
    "CASE WHEN s.thread_id = m.thread_id AND s.kind <> 'reverted' AND p.seq >= s.carried THEN 0 ELSE 1 END, "
    "CASE WHEN s.kind <> 'reverted' THEN 0 ELSE 1 END, s.started, p.seq"
)
"""Of all places of a message first the one where it was said, which is in the history; no clock decides that."""


def of_session(tx: Tx, session_id: str, start: int, limit: int | None) -> list[StoredMessage]:
    """A session's messages in order: what the model sees."""
    sessions.get(tx, session_id)
    rows = tx.all(
        f"SELECT {COLUMNS} FROM places p JOIN messages m ON m.id = p.message_id "
        "WHERE p.session_id = ? AND p.seq >= ? ORDER BY p.seq LIMIT ?",
        (session_id, max(start, 0), LAST if limit is None else limit),
    )
    return [as_stored(row) for row in rows]


def get(tx: Tx, message_id: int, tenant: str | None) -> StoredMessage:
    """One message, at the place where it was said."""
    row = tx.one(
        f"SELECT {COLUMNS}, s.tenant FROM messages m JOIN places p ON p.message_id = m.id "
        f"JOIN sessions s ON s.id = p.session_id WHERE m.id = ? ORDER BY {HOME_FIRST} LIMIT 1",
        (message_id,),
    )
    if row is None or tenant not in (None, row[-1]):
        raise UnknownIdError(f"there is no message {message_id}")
    return as_stored(row[:-1])


def history(tx: Tx, session_id: str, start: int, limit: int | None) -> list[StoredMessage]:
    """Everything that was said in a thread, in order, once: what a person would read.

    A continuation adds what stands behind what it carried along. A branch begins with its parent's history up to
    where it left. Summaries and derived messages are context, not history.
    """
    found: list[StoredMessage] = []
    for session, carried in sessions.chain(tx, sessions.thread_of(tx, session_id)):
        if start:
            skipped = tx.one(f"SELECT COUNT(*) {SAID}", (session, carried))
            assert skipped is not None
            if skipped[0] <= start:
                start -= skipped[0]
                continue
        room = LAST if limit is None else limit - len(found)
        rows = tx.all(
            f"SELECT {COLUMNS} {SAID} ORDER BY p.seq LIMIT ? OFFSET ?", (session, carried, room, max(start, 0))
        )
        found += [as_stored(row) for row in rows]
        start = 0
        if limit is not None and len(found) >= limit:
            break
    return found


SAID = (
    "FROM places p JOIN messages m ON m.id = p.message_id "
    "WHERE p.session_id = ? AND (p.seq < 0 OR p.seq >= ?) AND m.kind = 'message'"
)
"""What a session adds to the history."""
