"""Number the turns of a thread: each message of the user begins one."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.store.database import Tx
from everthread.store.sql.pieces import Piece

# A branch continues the count of its parent.
_TURNS = (
    "(SELECT COUNT(*) FROM messages u WHERE u.thread_id = s.id AND u.opens_turn = 1 AND {0}) + "
    "CASE WHEN s.kind = 'branch' THEN (SELECT COUNT(*) FROM places p JOIN messages u ON u.id = p.message_id "
    "WHERE p.session_id = s.id AND u.thread_id <> s.id AND u.opens_turn = 1 AND {0}) ELSE 0 END"
)
_OF_MESSAGES = (
    f"SELECT m.id, {_TURNS.format('u.id <= m.id')} FROM messages m JOIN sessions s ON s.id = m.thread_id "
    "WHERE m.id IN ({})"
)
_OF_TIME = f"SELECT {_TURNS.format('u.created <= ?')} FROM sessions s WHERE s.id = ?"


def number_turns(tx: Tx, pieces: Sequence[Piece]) -> dict[int, int]:
    """Return the turn of each piece by its id: 0 before the first turn. An output belongs to the turn of its time."""
    messages = [piece.message for piece in pieces if piece.message is not None]
    of_messages: dict[int, int] = dict(tx.all_for_keys(_OF_MESSAGES, messages))
    return {
        piece.id: _turn_at(tx, piece.thread, piece.created)
        if piece.message is None
        else of_messages.get(piece.message, 0)
        for piece in pieces
    }


def _turn_at(tx: Tx, thread: str, moment: float) -> int:
    return int(tx.value(_OF_TIME, (moment, moment, thread)) or 0)
