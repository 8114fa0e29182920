"""Search for words, phrases, identifiers and Chinese, Japanese or Korean characters in messages and outputs."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from everthread.store.database import Tx
from everthread.store.index_pieces import PART_OF_LONG_TEXT, filter_name
from everthread.store.index_query import (
    IndexMatch,
    IndexQuery,
    ParsedQuery,
    QueryPhrase,
    parse_query,
)
from everthread.store.records import RecallPassage, SearchHit, SearchQuery
from everthread.store.sql.message_rows import ORIGINAL_PLACE_FIRST
from everthread.store.sql.pieces import Piece, TextKey, load_pieces, read_pieces
from everthread.store.sql.search_scope import find_path_calls, is_of_path, search_scope
from everthread.store.sql.snippets import make_snippet

SEARCH_CANDIDATES = 500
"""Matches ranked at a time, the newest first: a very frequent word is answered by recent texts."""
RARITY_SAMPLE = 1_000
"""The newest pieces in which the rarity of a term is measured."""
SPREAD_PIECES = 2_000
"""If no piece has all words: the newest pieces of long texts that are combined for each word."""
SPREAD_THREADS = 50
"""As many threads as are named in one question."""
TYPICAL_LENGTH = 400
"""Characters. A match in a longer text says less."""
ScoredPiece = tuple[float, Piece]


def search_texts(tx: Tx, query: SearchQuery) -> list[SearchHit]:
    """Messages and outputs that hold every word, phrase and prefix of the query, best first."""
    parsed = parse_query(query.text)
    scope = search_scope(tx, query)
    skipped = max(query.offset, 0)
    end = max(query.offset, 0) + max(query.limit, 0)
    if scope is None or not parsed.variants or skipped == end:
        return []
    matches: dict[TextKey, ScoredPiece] = {}
    calls = find_path_calls(tx, query, query.path) if query.path else set()
    for score, piece in _match_all_ways(tx, parsed, scope):
        if query.path and not is_of_path(tx, piece, query.path, calls):
            continue
        # The first counts, so that pages of any length agree.
        matches.setdefault(piece.text, (score, piece))
        if len(matches) == end:
            break
    return _make_hits(tx, list(matches.values())[skipped:], parsed, query.session)


def _match_all_ways(
    tx: Tx, parsed: ParsedQuery, scope: IndexQuery
) -> Iterator[ScoredPiece]:
    """The matches, the strictest way first, read as far as the caller iterates."""
    sample = _PhraseSample(tx, scope)
    for rank, phrases in enumerate(parsed.variants):
        question = replace(scope, phrases=phrases)
        weights: list[float] = []
        while candidates := tx.match(question, SEARCH_CANDIDATES):
            weights = weights or _term_weights(sample, question.ranking_terms)
            yield from _rank_pieces(
                tx, candidates, weights, bonus=len(parsed.variants) - rank
            )
            if len(candidates) < SEARCH_CANDIDATES:
                break
            question = replace(question, before_id=candidates[-1].id)
    if len(parsed.variants[-1]) > 1:
        yield from _match_spread(
            tx, replace(scope, phrases=parsed.variants[-1]), sample
        )


class _PhraseSample:
    """Counts the newest pieces that hold a phrase."""

    def __init__(self, tx: Tx, scope: IndexQuery) -> None:
        self._tx = tx
        self._names = scope.filter_names[:1]
        self._counts: dict[QueryPhrase, int] = {}

    def count(self, phrase: QueryPhrase) -> int:
        if phrase not in self._counts:
            question = IndexQuery((phrase,), self._names, self._first)
            self._counts[phrase] = len(self._tx.match_ids(question, RARITY_SAMPLE))
        return self._counts[phrase]

    @functools.cached_property
    def _first(self) -> int:
        return (self._tx.value("SELECT MAX(id) FROM pieces") or 0) - RARITY_SAMPLE + 1


def _term_weights(sample: _PhraseSample, terms: Sequence[str]) -> list[float]:
    """How much each weighed term counts: the rarer the more. For a single one it makes no difference."""
    if len(terms) < 2:
        return [1.0] * len(terms)
    weights = [
        math.log(1 + RARITY_SAMPLE / (1 + sample.count(QueryPhrase((term,)))))
        for term in terms
    ]
    return [weight / sum(weights) for weight in weights]


def _rank_pieces(
    tx: Tx, candidates: Sequence[IndexMatch], weights: Sequence[float], *, bonus: float
) -> list[ScoredPiece]:
    """The pieces, best first; of equals the newest, of one text's the earliest."""
    weighed = {
        candidate.id: sum(map(operator.mul, weights, candidate.strengths))
        if weights
        else 1.0
        for candidate in candidates
    }

    def score(piece: Piece) -> float:
        dilution = 1 + math.log2(1 + piece.length / TYPICAL_LENGTH) / 4
        return round(bonus + weighed[piece.id] / dilution, 2)

    def best_first(pair: ScoredPiece) -> tuple[Any, ...]:
        piece = pair[1]
        return (
            -pair[0],
            -piece.created,
            -(piece.message or 0),
            piece.output or "",
            piece.start,
            -piece.id,
        )

    return sorted(
        ((score(piece), piece) for piece in load_pieces(tx, list(weighed))),
        key=best_first,
    )


def _match_spread(
    tx: Tx, question: IndexQuery, sample: _PhraseSample
) -> list[ScoredPiece]:
    """Return long texts that have every phrase although no single piece does; the newest first.

    The rarest phrase comes first: the others are looked for only in its threads if these are few.
    """
    texts: dict[TextKey, Piece] = {}
    for number, phrase in enumerate(sorted(question.phrases, key=sample.count)):
        threads = sorted({piece.thread for piece in texts.values()})
        thread_names = (
            [tuple(filter_name("thread", name) for name in threads)]
            if 0 < len(threads) <= SPREAD_THREADS
            else []
        )
        names = (*question.filter_names, (PART_OF_LONG_TEXT,), *thread_names)
        index_query = replace(question, phrases=(phrase,), filter_names=names)
        pieces = load_pieces(tx, tx.match_ids(index_query, SPREAD_PIECES))
        phrase_texts = {piece.text: piece for piece in sorted(pieces, reverse=True)}
        texts = (
            phrase_texts
            if number == 0
            else {text: piece for text, piece in texts.items() if text in phrase_texts}
        )
        if not texts:
            break
    return [
        (0.0, piece)
        for piece in sorted(
            texts.values(), key=lambda piece: (-piece.created, -piece.id)
        )
    ]


def _make_hits(
    tx: Tx, matches: Sequence[ScoredPiece], parsed: ParsedQuery, session: str | None
) -> list[SearchHit]:
    homes = _find_homes(tx, [piece.message for _, piece in matches])
    hits = []
    for (score, piece), text in zip(
        matches, read_pieces(tx, [piece for _, piece in matches]), strict=True
    ):
        home, thread = homes.get(piece.message, (piece.thread, piece.thread))
        snippet = make_snippet(text, parsed.highlighted, goes_before=piece.start > 0)
        source_fields = (
            piece.message,
            piece.output,
            thread,
            session or home,
            piece.role,
            piece.tool,
            piece.created,
        )
        hits.append(SearchHit(*source_fields, snippet, score))
    return hits


def _find_homes(
    tx: Tx, messages: Sequence[int | None]
) -> dict[int | None, tuple[str, str]]:
    """Return the session in which each message was said, and its thread."""
    rows = tx.all_for_keys(
        "SELECT m.id, s.id, s.thread_id FROM messages m JOIN places p ON p.message_id = m.id "
        f"JOIN sessions s ON s.id = p.session_id WHERE m.id IN ({{}}) ORDER BY {ORIGINAL_PLACE_FIRST}",
        [message for message in messages if message is not None],
    )
    return {message: (session, thread) for message, session, thread in reversed(rows)}


def as_hits(tx: Tx, found: Sequence[SearchHit | RecallPassage]) -> list[SearchHit]:
    """Return the hits, and the passages as hits in the sessions in which they were said."""
    passages = [item for item in found if isinstance(item, RecallPassage)]
    homes = _find_homes(tx, [passage.message for passage in passages])
    return [
        item
        if isinstance(item, SearchHit)
        else SearchHit(
            item.message,
            item.output,
            thread=item.thread,
            session=homes.get(item.message, (item.thread, ""))[0],
            role=item.role,
            tool=item.tool,
            created=item.created,
            snippet=item.text,
            score=item.score,
            is_passage=True,
        )
        for item in found
    ]
