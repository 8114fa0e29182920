"""List and count threads.

The last session of a thread keeps the time of last use and the number of messages and tokens. They change with every
append, so that a list of threads reads no messages.
"""

from __future__ import annotations

from everthread.store.database import Tx, make_equality_condition
from everthread.store.records import ThreadRow
from everthread.store.sql.session_rows import (
    SELECT_SESSION,
    decode_session,
    find_thread,
    load_session,
)

IS_LISTED_TIP = "t.kind <> 'reverted' AND COALESCE(t.end_reason, '') <> 'compression'"
"""SQL condition for the sessions in which threads continue, one of each thread; written as in the indexes."""
FROM_THREAD_MESSAGES = (
    "FROM sessions s JOIN places p ON p.session_id = s.id JOIN messages m ON m.id = p.message_id "
    "WHERE s.thread_id = {thread} AND s.kind <> 'reverted' AND (p.seq < 0 OR p.seq >= s.inherited_count) "
    "AND m.kind = 'message'"
)
"""SQL for the messages said in a thread: its history."""


AND_NOT_SIDE_CALL = (
    " AND NOT EXISTS "
    "(SELECT 1 FROM sessions f WHERE f.id = t.thread_id AND f.kind = 'side' AND f.parent_id IS NOT NULL)"
)
"""SQL condition that leaves out side calls, which are listed under their conversation."""


COUNT_SIDE_CALLS = "(SELECT COUNT(*) FROM sessions d WHERE d.parent_id = {} AND d.kind = 'side')"


def list_threads(
    tx: Tx, *, tenant: str | None = None, limit: int = 50, offset: int = 0
) -> list[ThreadRow]:
    """Return threads, the last used first. Side calls of a conversation are left out."""
    where, values = make_equality_condition({"t.tenant": tenant})
    rows = tx.all(
        "SELECT r.*, (SELECT COUNT(*) FROM compactions c WHERE c.thread_id = r.thread_id AND c.reverted_at IS NULL), "
        f"{COUNT_SIDE_CALLS.format('r.thread_id')} "
        "FROM (SELECT t.id, t.thread_id, t.message_count, t.token_count, t.last_active FROM sessions t "
        f"WHERE {IS_LISTED_TIP}{AND_NOT_SIDE_CALL} AND {where} "
        "ORDER BY t.last_active DESC, t.id DESC LIMIT ? OFFSET ?) r "
        "ORDER BY r.last_active DESC, r.id DESC",
        (*values, limit, offset),
    )
    ids = list(dict.fromkeys(session_id for row in rows for session_id in row[:2]))
    loaded = tx.all_for_keys(f"{SELECT_SESSION} WHERE s.id IN ({{}})", ids)
    sessions = {row[0]: decode_session(row) for row in loaded}
    return [ThreadRow(sessions[row[1]], sessions[row[0]], *row[2:]) for row in rows]


def count_threads(tx: Tx, *, tenant: str | None = None) -> int:
    """Count the threads that `list_threads` lists."""
    where, values = make_equality_condition({"t.tenant": tenant})
    return int(
        tx.value(
            f"SELECT COUNT(*) FROM sessions t WHERE {IS_LISTED_TIP}{AND_NOT_SIDE_CALL} AND {where}",
            values,
        )
    )


def copy_activity(tx: Tx, old_session: str, new_session: str) -> None:
    """Copy the activity of a thread's old session to the one in which it continues."""
    tx.run(
        "UPDATE sessions SET (last_active, message_count, token_count) = "
        "(SELECT last_active, message_count, token_count FROM sessions WHERE id = ?) WHERE id = ?",
        (old_session, new_session),
    )


def recount_thread(tx: Tx, thread_id: str) -> None:
    """Count the messages and tokens of a thread that was created with its messages: a branch or an import."""
    [row] = tx.all(
        f"SELECT COUNT(*), COALESCE(SUM(m.tokens), 0) {FROM_THREAD_MESSAGES.format(thread='?')}",
        (thread_id,),
    )
    tx.run(
        "UPDATE sessions SET message_count = ?, token_count = ? WHERE thread_id = ?",
        (*map(int, row), thread_id),
    )


def refresh_activity(tx: Tx, thread_id: str) -> None:
    """Set the time of last use of an imported thread to that of its last message."""
    tx.run(
        "UPDATE sessions SET last_active = COALESCE((SELECT m.created FROM places p "
        "JOIN messages m ON m.id = p.message_id WHERE p.session_id = sessions.id AND m.kind = 'message' "
        "ORDER BY p.seq DESC LIMIT 1), started) "
        "WHERE thread_id = ?",
        (thread_id,),
    )


def load_thread_row(tx: Tx, thread_id: str) -> ThreadRow:
    """Return a thread as a row of the list of threads."""
    thread_id = find_thread(tx, thread_id)
    [tip] = tx.all(
        f"SELECT t.id, t.message_count, t.token_count, t.last_active FROM sessions t "
        f"WHERE t.thread_id = ? AND {IS_LISTED_TIP}",
        (thread_id,),
    )
    compactions = tx.value(
        "SELECT COUNT(*) FROM compactions WHERE thread_id = ? AND reverted_at IS NULL",
        (thread_id,),
    )
    side_calls = tx.value(f"SELECT {COUNT_SIDE_CALLS.format('?')}", (thread_id,))
    first = load_session(tx, thread_id)
    last = load_session(tx, tip[0])
    return ThreadRow(first, last, *[*tip[1:], compactions, side_calls])
