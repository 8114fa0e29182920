"""Continue a thread in a new session after a compaction, undo that, and end a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from typing import Any

from everthread.core.types import Node, System
from everthread.errors import InputError, NothingToUndoError, UnknownIdError
from everthread.store.database import Row, Tx
from everthread.store.records import (
    CompactionRecord,
    Continuation,
    Lease,
    NewCompaction,
    NewMessage,
    NewSession,
    Session,
)
from everthread.store.rewrite_records import UNDONE_STATE_KEY
from everthread.store.sql.leases import require_lease
from everthread.store.sql.session_rows import (
    ThreadTip,
    find_thread,
    insert_session,
    load_session,
    lock_tip,
)
from everthread.store.sql.session_state import put_nodes, put_state
from everthread.store.sql.stored_messages import insert_message, prepare_message
from everthread.store.sql.thread_rows import copy_activity
from everthread.store.value_codec import decode_json, encode_json

MIN_GROWTH_AFTER_UNDO = 1.1
"""Growth of a history after an undo, as a ratio, from which it is compacted again."""
RESERVED_END_REASONS = frozenset({"compression", "reverted"})


def continue_session(
    tx: Tx,
    session_id: str,
    compacted: Sequence[int | NewMessage],
    *,
    seen_count: int,
    now: float,
    compaction: NewCompaction | None = None,
    system: System = None,
    nodes: Sequence[Node] = (),
    lease: Lease | None = None,
) -> Continuation:
    """End a session and continue it in a new one. If another process did so first, return that continuation.

    `compacted`: ids of kept messages, and new messages. `seen_count`: how many messages of the session were compacted;
    later ones are kept. `nodes`: summaries that the compacted messages cite, stored in the same transaction.
    """
    old_tip = lock_tip(tx, session_id)
    if old_tip.id != session_id:
        return Continuation(load_session(tx, old_tip.id), is_committed=False)
    require_lease(tx, old_tip.thread_id, lease)
    if not 0 <= seen_count <= old_tip.next_seq:
        raise InputError(
            f"session {session_id} has {old_tip.next_seq} messages, {seen_count} cannot have been seen"
        )
    parent = load_session(tx, session_id)
    new_id = _insert_continuation(tx, parent, system, now)
    unseen_rows = tx.all(
        "SELECT message_id FROM places WHERE session_id = ? AND seq >= ? ORDER BY seq",
        (session_id, seen_count),
    )
    placed_ids = [_keep_or_insert(tx, old_tip.thread_id, entry, now) for entry in compacted]
    place_messages(tx, new_id, [*placed_ids, *(row[0] for row in unseen_rows)])
    put_nodes(tx, [replace(node, thread=old_tip.thread_id) for node in nodes])
    copy_activity(tx, session_id, new_id)
    # A thread that has ended stays ended.
    _set_end(tx, new_id, parent.ended, parent.end_reason)
    _set_end(tx, session_id, now, "compression")
    _insert_compaction(
        tx, (old_tip.thread_id, session_id, new_id, now), compaction or NewCompaction()
    )
    return Continuation(load_session(tx, new_id), is_committed=True)


def _insert_continuation(tx: Tx, parent: Session, system: System, now: float) -> str:
    """Insert a session that continues another, with the same system prompt unless another is given; return its id."""
    new = NewSession(
        kind="continuation",
        parent=parent.id,
        tenant=parent.tenant,
        platform=parent.platform,
        user=parent.user,
        title=parent.title,
        model=parent.model,
        client=parent.client,
        client_session=parent.client_session,
        system=parent.system if system is None else system,
    )
    insert_session(tx, new, thread_id=parent.thread, now=now)
    return new.id


def _set_end(tx: Tx, session_id: str, ended_at: float | None, reason: str | None) -> None:
    tx.run(
        "UPDATE sessions SET ended = ?, end_reason = ? WHERE id = ?",
        (ended_at, reason, session_id),
    )


def _keep_or_insert(tx: Tx, thread_id: str, entry: int | NewMessage, now: float) -> int:
    """Return the id of a kept message, or insert a new one and return its id."""
    if isinstance(entry, int):
        # The thread's own message, or one that it inherited as a branch.
        select_if_in_thread = (
            "SELECT 1 FROM messages WHERE id = ? AND (thread_id = ? OR EXISTS "
            "(SELECT 1 FROM places WHERE session_id = ? AND message_id = messages.id))"
        )
        if tx.one(select_if_in_thread, (entry, thread_id, thread_id)) is None:
            raise UnknownIdError(f"thread {thread_id} has no message {entry}; nothing was changed")
        return entry
    if entry.kind == "message":
        raise InputError("a compaction makes summaries and derived messages; append other messages")
    message_id = insert_message(tx, thread_id, prepare_message(entry), now)
    if message_id is None:
        message_id = tx.value(
            "SELECT id FROM messages WHERE thread_id = ? AND event = ?",
            (thread_id, entry.event),
        )
    return int(message_id)


def place_messages(tx: Tx, session_id: str, ids: Sequence[int]) -> None:
    """Place messages at the beginning of a new session, each once. They count as inherited, not as new."""
    unique_ids = list(dict.fromkeys(ids))
    rows = ((session_id, seq, message_id) for seq, message_id in enumerate(unique_ids))
    tx.run_many("INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)", rows)
    tx.run(
        "UPDATE sessions SET next_seq = ?, inherited_count = ? WHERE id = ?",
        (len(unique_ids), len(unique_ids), session_id),
    )


def undo_compaction(tx: Tx, now: float, session_id: str, *, lease: Lease | None = None) -> Session:
    """Undo the thread's last compaction: reopen the session before it, with the messages added since."""
    tip = lock_tip(tx, session_id)
    require_lease(tx, tip.thread_id, lease)
    if tip.kind != "continuation" or tip.parent_id is None:
        raise NothingToUndoError(f"thread {tip.thread_id} has no compaction that could be undone")
    parent = load_session(tx, tip.parent_id)
    added_rows = tx.all(
        "SELECT p.message_id FROM places p JOIN sessions s ON s.id = p.session_id "
        "WHERE p.session_id = ? AND p.seq >= s.inherited_count ORDER BY p.seq",
        (tip.id,),
    )
    rows = [
        (parent.id, parent.message_count + offset, row[0]) for offset, row in enumerate(added_rows)
    ]
    tx.run_many("INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)", rows)
    tx.run(
        "UPDATE sessions SET next_seq = ? WHERE id = ?",
        (parent.message_count + len(rows), parent.id),
    )
    tx.run("UPDATE sessions SET kind = 'reverted' WHERE id = ?", (tip.id,))
    copy_activity(tx, tip.id, parent.id)
    _set_end(tx, parent.id, tip.ended_at, tip.end_reason)
    _set_end(tx, tip.id, now, "reverted")
    tx.run("UPDATE compactions SET reverted_at = ? WHERE session_id = ?", (now, tip.id))
    _undo_rewrites(tx, tip, now)
    return load_session(tx, parent.id)


def _undo_rewrites(tx: Tx, tip: ThreadTip, now: float) -> None:
    """Delete a session's rewrites, if the thread is one whose client keeps the history.

    The client sends the whole history again, which is as large as before the compaction. So the thread is not compacted
    again until the history has grown by a tenth.
    """
    deleted_rows = tx.all("DELETE FROM rewrites WHERE session_id = ? RETURNING digest", (tip.id,))
    if not deleted_rows:
        return
    size = tx.value(
        "SELECT COALESCE(SUM(COALESCE(tokens, (chars + 3) / 4)), 0) FROM messages "
        "WHERE thread_id = ? AND kind = 'message'",
        (tip.thread_id,),
    )
    state = {"until": round(MIN_GROWTH_AFTER_UNDO * int(size))}
    put_state(tx, now, tip.thread_id, UNDONE_STATE_KEY, state)


def list_compactions(tx: Tx, thread_id: str) -> list[CompactionRecord]:
    rows = tx.all(
        "SELECT id, thread_id, parent_id, session_id, created, reverted_at, record FROM compactions "
        "WHERE thread_id = ? ORDER BY id",
        (find_thread(tx, thread_id),),
    )
    return [decode_compaction_row(row) for row in rows]


def _insert_compaction(
    tx: Tx, identity_columns: tuple[str, str, str, float], compaction: NewCompaction
) -> None:
    """Insert a compaction. `identity_columns`: thread, session before, session after, and time."""
    tx.run(
        "INSERT INTO compactions (thread_id, parent_id, session_id, created, tokens_before, tokens_after, record) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *identity_columns,
            compaction.tokens_before,
            compaction.tokens_after,
            encode_record(compaction),
        ),
    )


def decode_compaction_row(row: Row) -> CompactionRecord:
    return CompactionRecord(*[*row[:6], decode_record(decode_json(row[6]))])


def decode_record(record: dict[str, Any]) -> NewCompaction:
    cost = None if record["cost"] is None else Decimal(record["cost"])
    return NewCompaction(**{**record, "cost": cost})


def encode_record(compaction: NewCompaction) -> str:
    record = asdict(compaction)
    cost = None if compaction.cost is None else str(compaction.cost)
    return encode_json(
        {
            **record,
            "covered": list(compaction.covered),
            "warnings": list(compaction.warnings),
            "cost": cost,
        }
    )


def end_session(
    tx: Tx, now: float, session_id: str, reason: str, *, lease: Lease | None = None
) -> Session:
    """End a thread for good, at the session in which it continues."""
    if reason in RESERVED_END_REASONS:
        raise InputError(f"the end reason {reason!r} is the store's own; give another")
    current = lock_tip(tx, session_id)
    require_lease(tx, current.thread_id, lease)
    tx.run(
        "UPDATE sessions SET ended = ?, end_reason = ? WHERE id = ? AND ended IS NULL",
        (now, reason, current.id),
    )
    return load_session(tx, current.id)
