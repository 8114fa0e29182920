"""Number the turns of a thread: each message of the user begins one."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.store.database import Tx
from everthread.store.search.stored_chunks import StoredChunk

# A branch continues the count of its parent.
_COUNT_TURNS = (
    "(SELECT COUNT(*) FROM messages u WHERE u.thread_id = s.id AND u.opens_turn = 1 AND {0}) + "
    "CASE WHEN s.kind = 'branch' THEN (SELECT COUNT(*) FROM places p JOIN messages u ON u.id = p.message_id "
    "WHERE p.session_id = s.id AND u.thread_id <> s.id AND u.opens_turn = 1 AND {0}) ELSE 0 END"
)
_SELECT_TURNS_OF_MESSAGES = (
    f"SELECT m.id, {_COUNT_TURNS.format('u.id <= m.id')} FROM messages m JOIN sessions s ON s.id = m.thread_id "
    "WHERE m.id IN ({})"
)
_SELECT_TURN_AT_TIME = (
    f"SELECT {_COUNT_TURNS.format('u.created <= ?')} FROM sessions s WHERE s.id = ?"
)


def number_turns(tx: Tx, chunks: Sequence[StoredChunk]) -> dict[int, int]:
    """Return the turn of each chunk by its id; 0 before the first turn. For an output, its time decides."""
    messages = [chunk.message for chunk in chunks if chunk.message is not None]
    turns_by_message: dict[int, int] = dict(
        tx.all_for_keys(_SELECT_TURNS_OF_MESSAGES, messages)
    )
    return {
        chunk.id: _load_turn_at(tx, chunk.thread, chunk.created)
        if chunk.message is None
        else turns_by_message.get(chunk.message, 0)
        for chunk in chunks
    }


def _load_turn_at(tx: Tx, thread: str, time: float) -> int:
    return int(tx.value(_SELECT_TURN_AT_TIME, (time, time, thread)) or 0)
