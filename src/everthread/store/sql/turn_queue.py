"""The queue of turns: messages that wait to be answered, and their results.

A turn is queued before its client learns that it was accepted. Only the process with the thread's lease answers the
queue, in order. If a process vanishes, the next one marks its running turn as lost; a turn never begins twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.errors import InputError, StoreDamagedError, UnknownIdError
from everthread.store.database import Row, Tx, notify, placeholders
from everthread.store.records import Lease
from everthread.store.sql.leases import require_lease
from everthread.store.sql.session_rows import find_thread, lock_thread
from everthread.store.turn_records import (
    NewQueuedTurn,
    QueuedTurn,
    TurnClaim,
    TurnState,
)
from everthread.store.value_codec import clean_text, decode_json, encode_json

TURN_COLUMNS = (
    "id, thread_id, tenant, position, key, state, message, options, "
    "result, cancel_requested, created, started_at, ended_at"
)
SELECT_TURN = f"SELECT {TURN_COLUMNS} FROM turns"
_IS_RUNNING = "state = 'running' AND ended_at IS NULL"
_IS_QUEUED = "state = 'queued' AND ended_at IS NULL"


def queue_turn(tx: Tx, new: NewQueuedTurn, max_waiting: int, now: float) -> QueuedTurn | None:
    """Queue a turn and return it, or return the stored turn with the same key, or None if the queue is full."""
    thread_id = lock_thread(tx, new.thread)
    key = clean_text(new.key)
    row = tx.one(f"{SELECT_TURN} WHERE thread_id = ? AND key = ?", (thread_id, key))
    if row is not None:
        return decode_turn(row)
    waiting_row = tx.one(
        f"SELECT COUNT(*) FROM turns WHERE thread_id = ? AND {_IS_QUEUED}", (thread_id,)
    )
    if waiting_row is not None and waiting_row[0] >= max_waiting:
        return None
    values = (
        new.id,
        thread_id,
        new.tenant,
        key,
        "queued",
        encode_json(dict(new.message)),
        encode_json(dict(new.options)),
        now,
        thread_id,
    )
    tx.run(
        "INSERT INTO turns (id, thread_id, tenant, key, state, message, options, created, position) "
        f"VALUES ({placeholders(values[:-1])}, (SELECT COALESCE(MAX(position), 0) + 1 FROM turns WHERE thread_id = ?))",
        values,
    )
    notify(tx, thread_id)
    return load_turn(tx, new.id, tenant=new.tenant)


def load_turn(tx: Tx, turn_id: str, *, tenant: str) -> QueuedTurn:
    """Return a turn; raise `UnknownIdError` if the tenant has none with this id."""
    row = tx.one(f"{SELECT_TURN} WHERE id = ? AND tenant = ?", (turn_id, tenant))
    if row is None:
        raise UnknownIdError(f"there is no turn {turn_id!r}")
    return decode_turn(row)


def list_turns(
    tx: Tx, thread_id: str, *, only_open: bool = False, limit: int = 50, offset: int = 0
) -> list[QueuedTurn]:
    """Return the turns of a thread, the newest first; with `only_open`, the open ones in queue order."""
    where, order = ("AND ended_at IS NULL", "position") if only_open else ("", "position DESC")
    rows = tx.all(
        f"{SELECT_TURN} WHERE thread_id = ? {where} ORDER BY {order} LIMIT ? OFFSET ?",
        (find_thread(tx, thread_id), limit, offset),
    )
    return [decode_turn(row) for row in rows]


def begin_turn(tx: Tx, lease: Lease, now: float) -> TurnClaim:
    """Begin the next turn. If turns are still running, return them as lost: the process that began them is gone."""
    thread_id = lock_thread(tx, lease.thread)
    require_lease(tx, thread_id, lease)
    lost_rows = tx.all(
        f"{SELECT_TURN} WHERE thread_id = ? AND {_IS_RUNNING} ORDER BY position", (thread_id,)
    )
    if lost_rows:
        return TurnClaim(None, tuple(decode_turn(row) for row in lost_rows))
    row = tx.one(
        f"UPDATE turns SET state = 'running', fence = ?, started_at = ? "
        f"WHERE id = (SELECT id FROM turns WHERE thread_id = ? AND {_IS_QUEUED} ORDER BY position LIMIT 1) "
        f"RETURNING {TURN_COLUMNS}",
        (lease.fence, now, thread_id),
    )
    return TurnClaim(None if row is None else decode_turn(row))


def end_turn(
    tx: Tx,
    turn_id: str,
    state: TurnState,
    result: Mapping[str, Any],
    lease: Lease,
    now: float,
) -> QueuedTurn:
    thread_id = lock_thread(tx, lease.thread)
    require_lease(tx, thread_id, lease)
    tx.run(
        f"UPDATE turns SET state = ?, result = ?, ended_at = ? WHERE id = ? AND thread_id = ? AND {_IS_RUNNING}",
        (state, encode_json(dict(result)), now, turn_id, thread_id),
    )
    notify(tx, thread_id)
    row = tx.one(f"{SELECT_TURN} WHERE id = ? AND thread_id = ?", (turn_id, thread_id))
    if row is None:
        raise InputError(f"the thread {thread_id} has no turn {turn_id!r}")
    return decode_turn(row)


def cancel_turn(tx: Tx, now: float, turn_id: str, *, tenant: str) -> QueuedTurn:
    """Cancel a waiting turn. For a running turn, ask the process that runs it to cancel."""
    turn = load_turn(tx, turn_id, tenant=tenant)
    lock_thread(tx, turn.thread)
    result = encode_json({"code": "cancelled", "message": "It was cancelled before it began."})
    tx.run(
        f"UPDATE turns SET state = 'cancelled', result = ?, ended_at = ? WHERE id = ? AND {_IS_QUEUED}",
        (result, now, turn_id),
    )
    notify(tx, turn.thread)
    tx.run(f"UPDATE turns SET cancel_requested = 1 WHERE id = ? AND {_IS_RUNNING}", (turn_id,))
    return load_turn(tx, turn_id, tenant=tenant)


def list_idle_queues(tx: Tx, *, limit: int = 50) -> list[str]:
    """Return threads that have open turns and no valid lease."""
    rows = tx.all(
        "SELECT DISTINCT t.thread_id FROM turns t LEFT JOIN leases l ON l.thread_id = t.thread_id "
        f"WHERE t.ended_at IS NULL AND (l.expires_at IS NULL OR l.expires_at <= {tx.dialect.now}) "
        "ORDER BY t.thread_id LIMIT ?",
        (limit,),
    )
    return [row[0] for row in rows]


def decode_turn(row: Row) -> QueuedTurn:
    message = decode_json(row[6])
    options = decode_json(row[7])
    if not isinstance(message, dict) or not isinstance(options, dict):
        raise StoreDamagedError(f"the turn {row[0]} is not a JSON object")
    result = None if row[8] is None else decode_json(row[8])
    return QueuedTurn(*[*row[:6], message, options, result, bool(row[9]), *row[10:]])
