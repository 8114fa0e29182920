"""Pieces that may be recalled, as far as they are known before they are read; with what their neighbours give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from everthread.core.lookup import is_lookup
from everthread.core.ranking import spread
from everthread.store.database import Tx
from everthread.store.operations.neighbours import neighbours
from everthread.store.operations.search import chunks
from everthread.store.operations.sessions import placeholders
from everthread.store.queries import Match
from everthread.store.recalled import RecallQuery

SITTING = 1_800.0
"""Seconds of silence after which what is said next is no answer to what was said before."""


class Contender(NamedTuple):
    id: int
    thread: str
    message: int | None
    output: str | None
    role: str
    tool: str
    length: int
    created: float


def with_neighbours(tx: Tx, scope: Match, best: Sequence[int]) -> list[Contender]:
    """The pieces and those around them in their threads, thread by thread, in the order they were said."""
    found = _read(tx, scope, best)
    known = {piece.id for piece in found}
    around = neighbours(tx, [(piece.id, piece.thread) for piece in found])
    return sorted([*found, *_read(tx, scope, sorted(around - known))], key=lambda piece: (piece.thread, piece.id))


def shared_scores(pieces: Sequence[Contender], own: Mapping[int, float]) -> dict[int, float]:
    """What each piece is worth by itself and by its neighbours."""
    values = spread([own.get(piece.id, 0.0) for piece in pieces], list(_sittings(pieces)))
    return dict(zip((piece.id for piece in pieces), values, strict=True))


def ranked(pieces: Iterable[Contender], scores: Mapping[int, float], query: RecallQuery) -> Iterator[Contender]:
    """The best first, each text once; not what is in view, nor what only looked things up."""
    known: set[tuple[int | None, str | None]] = set()
    worth = (piece for piece in pieces if scores[piece.id] > 0)
    for piece in sorted(worth, key=lambda piece: (-scores[piece.id], -piece.id)):
        text = piece.message, piece.output
        if text in known or piece.message in query.seen or any(map(is_lookup, piece.tool.split(","))):
            continue
        if query.spoken and (piece.tool or piece.role == "tool"):
            continue
        known.add(text)
        yield piece


def _read(tx: Tx, scope: Match, ids: Sequence[int]) -> list[Contender]:
    within = f" AND {scope.where}" if scope.where else ""
    return [
        Contender(*row)
        for some in chunks(ids)
        for row in tx.all(
            "SELECT p.id, p.thread_id, p.message_id, p.output_id, p.role, p.tool, p.length, p.created "
            f"FROM pieces p WHERE p.id IN ({placeholders(some)}){within}",
            (*some, *scope.values),
        )
    ]


def _sittings(pieces: Iterable[Contender]) -> Iterator[int]:
    """A number for each piece, the same for those of one thread without a long silence between them."""
    number, thread, last = 0, "", 0.0
    for piece in pieces:
        if piece.thread != thread or abs(piece.created - last) > SITTING:
            number += 1
        thread, last = piece.thread, piece.created
        yield number
