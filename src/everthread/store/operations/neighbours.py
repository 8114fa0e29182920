"""The pieces around pieces in their threads."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.store.database import Tx
from everthread.store.operations.sessions import placeholders

REACH = 2
"""How many places before and behind it a piece has neighbours."""
_SIDES = {-1: "id < ? ORDER BY id DESC", 1: "id > ? ORDER BY id"}


def neighbours(tx: Tx, pieces: Sequence[tuple[int, str]]) -> set[int]:
    """The ids of the nearest pieces of the same threads, given as id and thread.

    What is said in one go has ids in a row, so these are looked at first; only where another thread came between, or
    the thread begins or ends there, is it asked for.
    """
    steps = [step for step in range(-REACH, REACH + 1) if step]
    near = sorted({piece + step for piece, _ in pieces for step in steps})
    threads = dict(pieces)
    for start in range(0, len(near), 500):
        some = near[start : start + 500]
        threads |= dict(tx.all(f"SELECT id, thread_id FROM pieces WHERE id IN ({placeholders(some)})", some))
    found: set[int] = set()
    apart: list[tuple[str, tuple[str, int]]] = []
    for piece, thread in pieces:
        for side, condition in _SIDES.items():
            beside = [piece + side * step for step in range(1, REACH + 1)]
            if all(threads.get(other) == thread for other in beside):
                found.update(beside)
            else:
                apart.append(
                    (f"SELECT id FROM pieces WHERE thread_id = ? AND {condition} LIMIT {REACH}", (thread, piece))
                )
    found.update(row[0] for rows in (tx.ask(apart) if apart else ()) for row in rows)
    return found
