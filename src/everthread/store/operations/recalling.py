"""Recall: what was said and returned earlier that may answer a message, the best first.

Each word of the message is looked up on its own, in all its forms. The best pieces and their neighbours are weighed
by what the index and a few columns tell; only what is shown is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from everthread.core.questions import Question
from everthread.core.ranking import OF_A_DAY, dilution
from everthread.core.redaction import redact_part
from everthread.store.base import SearchQuery
from everthread.store.database import Database, Tx
from everthread.store.operations.contenders import Contender, ranked, shared_scores, with_neighbours
from everthread.store.operations.scope import scope_of
from everthread.store.operations.search import COLUMNS, Found, chunks, said
from everthread.store.operations.sessions import placeholders
from everthread.store.operations.turns import Turns
from everthread.store.operations.wording import Word, held_by, looked_up, weighed
from everthread.store.queries import Match
from everthread.store.recalled import Passage, RecallQuery
from everthread.store.snippets import CONTEXT, richest_place

CONTENDERS = 60
"""So many pieces are weighed, and their neighbours."""
DECIDING = 10
"""Among so many first places one must be close enough."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A ranking: pieces, the best first, what each is worth and how close it is. Empty where none is close enough."""

    first: list[Contender] = field(default_factory=list)
    scores: Mapping[int, float] = field(default_factory=dict)
    close: Mapping[int, float] = field(default_factory=dict)


def recall(tx: Tx, database: Database, query: RecallQuery, question: Question, turns: Turns) -> list[Passage]:
    scope = scope_of(tx, SearchQuery("", tenant=query.tenant, thread=query.thread)) if question.sought else None
    if scope is None or query.limit <= 0:
        return []
    if query.thread is not None:  # which is the tenant's: `scope_of` has seen to it
        scope = replace(scope, names=scope.names[1:])
    words = looked_up(tx, database, scope, question.sought, query.thread)
    arm = _by_words(tx, scope, words, question, query)
    return _passages(tx, arm, words, query, turns)


def _by_words(tx: Tx, scope: Match, words: Sequence[Word], question: Question, query: RecallQuery) -> Arm:
    weights = weighed(words, CONTENDERS)
    best = sorted(weights, key=lambda piece_id: (-weights[piece_id], -piece_id))[:CONTENDERS]
    pieces = with_neighbours(tx, scope, best)
    own = {piece.id: weights[piece.id] / dilution(piece.length) for piece in pieces if piece.id in weights}
    scores = shared_scores(pieces, own)
    for piece in pieces if question.spans else ():
        if any(piece.created in span for span in question.spans):
            scores[piece.id] += OF_A_DAY
    first = list(islice(ranked(pieces, scores, query), max(query.limit, DECIDING)))
    close = {piece.id: held_by(piece.id, words) for piece in first}
    if max(list(close.values())[:DECIDING], default=0.0) < query.least:
        return Arm()
    return Arm(first, scores, close)


def _passages(tx: Tx, arm: Arm, words: Sequence[Word], query: RecallQuery, turns: Turns) -> list[Passage]:
    shown = _read(tx, [piece.id for piece in arm.first[: query.limit]])
    bodies: dict[int, str] = {}
    for some in chunks([piece.message for piece in shown if piece.message is not None]):
        bodies |= dict(tx.all(f"SELECT id, body FROM messages WHERE id IN ({placeholders(some)})", some))
    passages = []
    for piece in shown:
        held = [word for word in words if piece.id in word.pieces]
        text = _excerpt(said(tx, piece, bodies), piece, held, query.chars)
        turn = turns.of(tx, piece.thread, piece.message, piece.created)
        passages.append(
            Passage(
                piece.message, piece.output, piece.thread, piece.role, piece.tool, turn, piece.created, text,
                round(arm.scores[piece.id], 4), round(arm.close[piece.id], 4),
            )
        )  # fmt: skip
    return passages


def _read(tx: Tx, ids: Sequence[int]) -> list[Found]:
    """All that is known of pieces, in this order."""
    rows = tx.all(f"SELECT {COLUMNS} FROM pieces WHERE id IN ({placeholders(ids)})", ids) if ids else []
    found = {row[0]: Found(0.0, *row) for row in rows}
    return [found[piece_id] for piece_id in ids]


def _excerpt(text: str, piece: Found, held: Sequence[Word], chars: int) -> str:
    """All of a short text; of a longer one the part with the most words of the question."""
    if len(text) <= chars:
        start, end = 0, len(text)
    else:
        place = richest_place(text, [word.sought.forms for word in held], chars * 3 // 4)
        start = max(0, min(place - chars // 4, len(text) - chars))
        end = start + chars
    shown = redact_part(text, start, end, margin=CONTEXT).strip()
    return ("…" if start or piece.start else "") + shown + ("…" if end < len(text) else "")
