"""The turns of threads: which message of the user a message belongs to."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from everthread.core.transcript import is_user_message
from everthread.store.database import Tx
from everthread.store.sql.pieces import Piece
from everthread.store.sql.search_scope import list_sources
from everthread.store.value_encoding import decode_body

MAX_THREADS = 64


@dataclass(frozen=True, slots=True)
class _ThreadTurns:
    """The user's messages of a thread (`is_user_message`): their ids and their times, both in order."""

    last: int = 0
    """The id of the newest message that was read, of any thread."""
    ids: Sequence[int] = ()
    times: Sequence[float] = ()


class TurnIndex:
    """The turns of threads, cached: stored messages do not change, so only new ones are read.

    Shared by reader threads. Each update makes a new entry, so that no reader sees a half-made one.
    """

    def __init__(self) -> None:
        self._threads: dict[str, _ThreadTurns] = {}

    def forget(self) -> None:
        """Drop the cache: a thread was deleted, and others may have inherited its messages."""
        self._threads.clear()

    def of(self, tx: Tx, piece: Piece) -> int:
        """The turn of a message, or of a stored output by its time; 0 before the first."""
        entry = self._threads.get(piece.thread)
        if entry is None or piece.message is None or piece.message > entry.last:
            if len(self._threads) >= MAX_THREADS:
                self._threads.clear()
            entry = self._threads[piece.thread] = _read_turns(
                tx, piece.thread, entry or _ThreadTurns()
            )
        if piece.message is None:
            return bisect.bisect(entry.times, piece.created)
        return bisect.bisect(entry.ids, piece.message)


def _read_turns(tx: Tx, thread: str, earlier: _ThreadTurns) -> _ThreadTurns:
    last = tx.value("SELECT MAX(id) FROM messages") or 0
    if last <= earlier.last:
        return earlier
    of_user = "m.role = 'user' AND m.kind = 'message'"
    # Search by id if the cache has messages: few are newer, while the thread may have many.
    of_thread = "m.thread_id || '' = ?" if earlier.last else "m.thread_id = ?"
    rows = tx.all(
        f"SELECT m.id, m.created, m.body FROM messages m WHERE {of_thread} AND m.id > ? AND m.id <= ? AND {of_user}",
        (thread, earlier.last, last),
    )
    if (
        not earlier.last and len(list_sources(tx, thread)) > 1
    ):  # a branch continues the count of its parent
        rows += tx.all(
            "SELECT m.id, m.created, m.body FROM places p JOIN messages m ON m.id = p.message_id "
            f"WHERE p.session_id = ? AND m.thread_id <> ? AND {of_user}",
            (thread, thread),
        )
    spoken = sorted(row[:2] for row in rows if is_user_message(decode_body(row[2])))
    times = sorted([*earlier.times, *(created for _, created in spoken)])
    return _ThreadTurns(last, [*earlier.ids, *(number for number, _ in spoken)], times)
