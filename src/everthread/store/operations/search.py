"""Search: words, phrases, identifiers and Chinese, Japanese or Korean characters in everything that was said."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.store.base import Hit, SearchQuery
from everthread.store.database import Database, Row, Tx
from everthread.store.indexing import LONG, searchable_text
from everthread.store.operations.indexing import output_text
from everthread.store.operations.messages import HOME_FIRST
from everthread.store.operations.paths import calls_naming
from everthread.store.operations.scope import scope_of
from everthread.store.operations.sessions import placeholders
from everthread.store.queries import Asked, Candidate, Match, Phrase, read_query
from everthread.store.snippets import snippet

CANDIDATES = 500
"""The newest so many matches are ranked, then the next: a word that stands everywhere is answered by what is recent."""
SAMPLE = 1_000
"""How rare a term is, is seen in the newest so many pieces."""
SPREAD = 2_000
"""Where no piece has all words: of each word the newest so many pieces of long texts are put together."""
TYPICAL = 400
"""Characters. A match in a longer text says less."""

COLUMNS = "id, message_id, output_id, tenant, thread_id, role, tool, start, length, said, created"
LENGTH = COLUMNS.split(", ").index("length")

Text = tuple[int | None, str | None, str]


@dataclass(frozen=True, slots=True)
class Found:
    """A piece that matches, with what is known of it."""

    score: float
    id: int
    message: int | None
    output: str | None
    tenant: str
    thread: str
    role: str
    tool: str
    start: int
    length: int
    said: str | None
    created: float

    @property
    def text(self) -> Text:
        """What it is a piece of: a message, or an output as a thread cites it."""
        return self.message, self.output, self.thread


def search(tx: Tx, database: Database, query: SearchQuery) -> list[Hit]:
    """Messages and outputs that hold every word, phrase and prefix of the query, best first."""
    asked, scope = read_query(query.text), scope_of(tx, query)
    skipped, wanted = max(query.offset, 0), max(query.offset, 0) + max(query.limit, 0)
    if scope is None or not asked.ways or skipped == wanted:
        return []
    found: dict[Text, Found] = {}
    calls = calls_naming(tx, database, query, query.path) if query.path else None
    for piece in _all_ways(tx, database, asked, scope):
        if calls is not None and not calls.hold(tx, piece.message, piece.output, piece.thread):
            continue
        found.setdefault(piece.text, piece)  # the first counts, so that a page does not depend on how long it is
        if len(found) == wanted:
            break
    return _hits(tx, list(found.values())[skipped:], asked, query.session)


def _all_ways(tx: Tx, database: Database, asked: Asked, scope: Match) -> Iterator[Found]:
    """What matches, the strictest way first. Only as much is looked up as is asked for."""
    for rank, phrases in enumerate(asked.ways):
        question = replace(scope, phrases=phrases)
        weights: list[float] = []
        while candidates := database.match(tx, question, CANDIDATES):
            weights = weights or _weights(tx, database, question)
            yield from _ranked(tx, candidates, weights, bonus=len(asked.ways) - rank)
            if len(candidates) < CANDIDATES:
                break
            question = replace(question, before=candidates[-1].id)
    if len(asked.ways[-1]) > 1:
        yield from _spread(tx, database, replace(scope, phrases=asked.ways[-1]))


def _weights(tx: Tx, database: Database, question: Match) -> list[float]:
    """How much each weighed term counts: the rarer the more. For a single one it makes no difference."""
    if len(question.weighed) < 2:
        return [1.0] * len(question.weighed)
    newest = tx.one("SELECT MAX(id) FROM pieces")
    sample = Match(names=question.names[:1], first=(newest[0] or 0) - SAMPLE + 1 if newest else 0)
    held = [len(database.match(tx, replace(sample, phrases=(Phrase((term,)),)), SAMPLE)) for term in question.weighed]
    weights = [math.log(1 + SAMPLE / (1 + count)) for count in held]
    return [weight / sum(weights) for weight in weights]


def _ranked(tx: Tx, candidates: Sequence[Candidate], weights: Sequence[float], *, bonus: float) -> list[Found]:
    """Best first; of equals the newest."""
    weighed = {
        candidate.id: sum(map(operator.mul, weights, candidate.strengths)) if weights else 1.0
        for candidate in candidates
    }

    def scored(row: Row) -> Found:
        dilution = 1 + math.log2(1 + row[LENGTH] / TYPICAL) / 4
        return Found(round(bonus + weighed[row[0]] / dilution, 2), *row)

    return sorted(map(scored, _pieces(tx, list(weighed))), key=_best_first)


def _best_first(piece: Found) -> tuple[float, float, int, str, int]:
    """Of equals the newest; of one text's the earliest."""
    return -piece.score, -piece.created, -(piece.message or 0), piece.output or "", piece.start


def _spread(tx: Tx, database: Database, question: Match) -> list[Found]:
    """Long texts that have every phrase, though no piece of them has all; the newest first."""
    texts: dict[Text, Found] = {}
    for number, phrase in enumerate(question.phrases):
        one = replace(question, phrases=(phrase,), names=(*question.names, (LONG,)))
        ids = [candidate.id for candidate in database.match(tx, one, SPREAD)]
        holding = {piece.text: piece for piece in (Found(0.0, *row) for row in _pieces(tx, ids))}
        texts = holding if number == 0 else {text: piece for text, piece in texts.items() if text in holding}
        if not texts:
            break
    return sorted(texts.values(), key=lambda piece: (-piece.created, -piece.id))


def _pieces(tx: Tx, ids: Sequence[int]) -> Iterator[Row]:
    """What is known of pieces, the newest first."""
    for some in chunks(ids):
        yield from tx.all(f"SELECT {COLUMNS} FROM pieces WHERE id IN ({placeholders(some)}) ORDER BY id DESC", some)


def _hits(tx: Tx, found: Sequence[Found], asked: Asked, session: str | None) -> list[Hit]:
    ids = [piece.message for piece in found if piece.message is not None]
    bodies: dict[int, str] = {}
    places: dict[int, Row] = {}
    for some in chunks(ids):
        marks = placeholders(some)
        bodies |= dict(tx.all(f"SELECT id, body FROM messages WHERE id IN ({marks})", some))
        rows = tx.all(
            "SELECT m.id, s.id, s.thread_id FROM messages m JOIN places p ON p.message_id = m.id "
            f"JOIN sessions s ON s.id = p.session_id WHERE m.id IN ({marks}) ORDER BY {HOME_FIRST}",
            some,
        )
        places |= {row[0]: row[1:] for row in reversed(rows)}
    hits = []
    for piece in found:
        place = places.get(piece.message or 0, (piece.thread, piece.thread))
        text = said(tx, piece, bodies)
        shown = snippet(text, asked.shown, goes_before=piece.start > 0)
        hits.append(
            Hit(
                piece.message, piece.output, place[1], session or place[0], piece.role, piece.tool, piece.created,
                shown, piece.score,
            )
        )  # fmt: skip
    return hits


def said(tx: Tx, piece: Found, bodies: dict[int, str]) -> str:
    """What a piece says."""
    if piece.said is not None:
        return piece.said
    if piece.output is not None:
        whole = output_text(tx, piece.output, piece.tenant)
    else:
        whole = searchable_text(json.loads(bodies.get(piece.message or 0, "{}")))
    return whole[piece.start : piece.start + piece.length]


def chunks(ids: Sequence[Any], size: int = 500) -> Iterable[Sequence[Any]]:
    """Ids in lists that a statement takes."""
    return (ids[start : start + size] for start in range(0, len(ids), size))
