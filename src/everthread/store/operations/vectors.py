"""Pieces as vectors: which have none yet, and which are near a question."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from everthread.core.lookup import is_lookup
from everthread.core.vectors import Vector, nearest
from everthread.store.database import Tx
from everthread.store.operations.scope import sources_of
from everthread.store.operations.search import COLUMNS, Found, chunks, said
from everthread.store.operations.sessions import placeholders, plain, thread_of
from everthread.store.recalled import RecallQuery

PAGE = 200
COMPARED = 20_000
"""The newest so many vectors are compared with a question."""


def without(tx: Tx, thread: str, model: str, seen: Collection[int], limit: int) -> list[tuple[int, str]]:
    """Pieces of a thread that have no vector yet and are not in view, with what they say; the oldest first."""
    pieces = list(islice(_bare(tx, thread_of(tx, thread), plain(model), seen), limit))
    bodies: dict[int, str] = {}
    for some in chunks([piece.message for piece in pieces if piece.message is not None]):
        bodies |= dict(tx.all(f"SELECT id, body FROM messages WHERE id IN ({placeholders(some)})", some))
    return [(piece.id, said(tx, piece, bodies)) for piece in pieces]


def _bare(tx: Tx, thread: str, model: str, seen: Collection[int]) -> Iterator[Found]:
    columns = ", ".join(f"p.{column}" for column in COLUMNS.split(", "))
    after = 0
    while rows := tx.all(
        f"SELECT {columns} FROM pieces p WHERE p.thread_id = ? AND p.id > ? "
        f"AND NOT EXISTS (SELECT 1 FROM vectors v WHERE v.piece_id = p.id AND v.model = ?) ORDER BY p.id LIMIT {PAGE}",
        (thread, after, model),
    ):
        after = rows[-1][0]
        for piece in (Found(0.0, *row) for row in rows):
            if piece.message not in seen and not any(map(is_lookup, piece.tool.split(","))):
                yield piece


def put(tx: Tx, model: str, made: Sequence[tuple[int, bytes]]) -> None:
    """Keep vectors; not those of pieces that are gone meanwhile."""
    tx.many(
        "INSERT INTO vectors (piece_id, model, tenant, thread_id, packed) "
        "SELECT p.id, ?, p.tenant, p.thread_id, ? FROM pieces p WHERE p.id = ? ON CONFLICT DO NOTHING",
        [(plain(model), packed, piece_id) for piece_id, packed in made],
    )


def near(tx: Tx, query: RecallQuery, wanted: Vector, most: int) -> list[tuple[int, float]]:
    """The pieces nearest to a question within its scope, with how near they are."""
    if query.thread is None:
        where, values = "tenant = ?", [query.tenant]
    else:
        values = sources_of(tx, thread_of(tx, query.thread))
        where = f"thread_id IN ({placeholders(values)})"
    rows = tx.all(
        f"SELECT piece_id, packed FROM vectors WHERE {where} AND model = ? ORDER BY piece_id DESC LIMIT ?",
        (*values, plain(wanted.model), COMPARED),
    )
    return nearest(wanted.packed, [(row[0], bytes(row[1])) for row in rows], most, least=query.similarity)
