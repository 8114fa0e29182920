"""Rank the pieces that hold words of a question, with the help of their neighbours."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from everthread.core.search.query import Question
from everthread.core.search.relevance import (
    DAY_SCORE,
    NEIGHBOUR_SHARES,
    closeness,
    dilution,
    spread,
)
from everthread.core.transcript import is_lookup
from everthread.store.database import Query, Tx
from everthread.store.index_query import IndexQuery, make_phrase
from everthread.store.records import RecallQuery
from everthread.store.sql.pieces import Piece, TextKey, load_pieces
from everthread.store.sql.recall_words import RecallWord, discount_parts, weigh_pieces
from everthread.store.sql.session_rows import THREAD_NUMBERS

SILENCE_SECONDS = 1_800.0
"""Seconds of silence after which a message does not answer the one before."""
NEIGHBOUR_REACH = 2
"""How many texts before and after a text are its neighbours."""
RECALL_CANDIDATES = 150
"""How many pieces are scored with their neighbours."""
ROUGH_CANDIDATES = 4 * RECALL_CANDIDATES
"""How many pieces with the most words these are chosen from."""
MIN_WEIGHT = 0.01
"""The weight of a piece that holds a phrase of the question and none of its words."""
MAX_RARE = 32
"""A word in at most this many pieces is rare."""
DECIDING_PLACES = 10
"""One of this many first candidates must be close enough."""
ROLE_WEIGHTS = {"user": 1.0, "assistant": 0.5, "tool": 0.4}
"""The weight of a text by its role (`benchmarks retention`): users mostly ask for what users wrote."""
_SIDES = {
    -1: "id < ? AND start = 0 ORDER BY id DESC",
    1: "id > ? AND start = 0 ORDER BY id",
}


@dataclass(frozen=True, slots=True)
class RecallRanking:
    """A ranking: pieces, the best first, with their scores and closeness. Empty if none is close enough."""

    first: Sequence[Piece] = ()
    scores: Mapping[int, float] = field(default_factory=dict)
    close: Mapping[int, float] = field(default_factory=dict)
    exchanges: Sequence[CallPieces] = ()
    """Calls with their results, where both were looked at."""


@dataclass(slots=True)
class CallPieces:
    """Pieces of an assistant's message with calls, and of the results that follow it."""

    calls: list[Piece] = field(default_factory=list)
    results: list[Piece] = field(default_factory=list)


def rank_by_words(
    tx: Tx,
    scope: IndexQuery,
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> RecallRanking:
    candidates = (
        _find_page_candidates(tx, scope, words, question)
        if query.as_page
        else _find_candidates(words)
    )
    pieces = _load_with_neighbours(
        tx,
        scope,
        weights=candidates.weights,
        best=list(dict.fromkeys([*candidates.certain, *candidates.best])),
        certain=set(candidates.certain),
        words=words,
    )
    own = {
        piece.id: candidates.weights[piece.id] / dilution(piece.length)
        for piece in pieces
        if piece.id in candidates.weights
    }
    of_day = {
        piece.id
        for piece in pieces
        if any(piece.created in span for span in question.spans)
    }
    scores = _share_scores(pieces, own, of_day)
    # A page leaves out texts that repeat others, so all candidates are ranked for it.
    most = len(pieces) if query.as_page else max(query.limit, DECIDING_PLACES)
    first = list(islice(_rank_candidates(pieces, scores, query), most))
    if query.as_page:
        role_scores = _share_scores(
            pieces,
            {p.id: own[p.id] * _role_weight(p) for p in pieces if p.id in own},
            of_day,
        )
        by_role = islice(_rank_candidates(pieces, role_scores, query), most)
        by_rarest = _rank_candidates(
            [piece for piece in pieces if piece.id in candidates.rare], scores, query
        )
        first = _take_turns([by_role, first, by_rarest], most)
        first.sort(key=lambda piece: piece.id not in candidates.phrased)
    close = _measure_closeness(first, words, of_day, as_page=query.as_page)
    close |= dict.fromkeys(close.keys() & candidates.phrased, 1.0)
    if max(list(close.values())[:DECIDING_PLACES], default=0.0) < query.least:
        return RecallRanking()
    return RecallRanking(
        first, scores, close, _find_exchanges(pieces) if query.as_page else ()
    )


@dataclass(frozen=True, slots=True)
class Candidates:
    """The ids of the pieces to score."""

    weights: dict[int, float]
    best: list[int]
    """Those with the most words, the best first."""
    certain: list[int] = field(default_factory=list)
    """Those that are scored in any case."""
    rare: Collection[int] = frozenset()
    """Those that hold the rarest words."""
    phrased: Collection[int] = frozenset()
    """Those that hold a phrase of the question as typed."""


def _find_candidates(words: Sequence[RecallWord]) -> Candidates:
    weights = weigh_pieces(discount_parts(words), ROUGH_CANDIDATES)
    best = _best_pieces(weights, len(weights))
    return Candidates(weights, _vary_pieces(best, words, ROUGH_CANDIDATES))


def _find_page_candidates(
    tx: Tx, scope: IndexQuery, words: Sequence[RecallWord], question: Question
) -> Candidates:
    """Add, for a page of results, the pieces of users, those with the rarest words and those with a whole phrase."""
    found = _find_candidates(words)
    spoken = weigh_pieces(
        [replace(word, pieces=word.of_users) for word in discount_parts(words)],
        RECALL_CANDIDATES,
    )
    weights = found.weights | spoken
    rare = weights.keys() & _rarest_pieces(words)
    phrased = _find_phrased(tx, scope, question)
    weights |= {piece: weights.get(piece, MIN_WEIGHT) for piece in phrased}
    certain = [
        *_best_pieces(spoken, RECALL_CANDIDATES // 2),
        *sorted(rare),
        *sorted(phrased),
    ]
    return Candidates(weights, found.best, certain, rare, phrased)


def _measure_closeness(
    pieces: Sequence[Piece],
    words: Sequence[RecallWord],
    of_day: Collection[int],
    *,
    as_page: bool,
) -> dict[int, float]:
    """Return for each piece how much of the question's telling words it holds.

    For a page, frequent words count if there are no others.
    """
    counted = [word for word in words if word.telling]
    if as_page and not counted:
        counted = list(words)
    wanted = [word.weight for word in counted]
    return {
        piece.id: closeness(
            [word.weight for word in counted if _holds_word(piece.id, word, of_day)],
            wanted,
        )
        for piece in pieces
    }


def _find_phrased(tx: Tx, scope: IndexQuery, question: Question) -> frozenset[int]:
    """The pieces that hold the longest phrase of the question as typed; none if the phrase is in many pieces."""
    for phrase in question.phrases:
        pieces = tx.match_ids(
            replace(scope, phrases=(make_phrase(phrase),)), MAX_RARE + 1
        )
        if pieces:
            return frozenset(pieces if len(pieces) <= MAX_RARE else ())
    return frozenset()


def _holds_word(piece: int, word: RecallWord, of_day: Collection[int]) -> bool:
    """Return whether a piece has a word. A piece said on a named day need not mention the day."""
    return piece in word.pieces or (not word.sought.counted and piece in of_day)


def _role_weight(piece: Piece) -> float:
    return ROLE_WEIGHTS.get("tool" if piece.is_result else piece.role, 1.0)


def _rarest_pieces(words: Sequence[RecallWord]) -> frozenset[int]:
    """Return the pieces with the rarest identifier of the question: the answer is mostly beside it."""
    counts = [
        word.pieces
        for word in words
        if word.telling
        and 0 < len(word.pieces) <= MAX_RARE
        and not word.sought.forms[0].isalpha()
    ]
    return min(counts, key=len, default=frozenset())


def _best_pieces(weights: Mapping[int, float], most: int) -> list[int]:
    return sorted(weights, key=lambda piece_id: (-weights[piece_id], -piece_id))[:most]


def _vary_pieces(
    ordered: Iterable[int], words: Sequence[RecallWord], most: int
) -> list[int]:
    """Return the first `most` pieces; pieces with the same words fill at most a quarter before others have their turn.

    The name of a tool puts the same words into thousands of calls, and these must not shut out all other pieces.
    """
    varied: list[int] = []
    rest: list[int] = []
    counts: Counter[tuple[bool, ...]] = Counter()
    for piece_id in ordered:
        held = tuple(piece_id in word.pieces for word in words)
        counts[held] += 1
        (varied if counts[held] <= most // 4 else rest).append(piece_id)
        if len(varied) == most:
            break
    return [*varied, *rest][:most]


def _load_with_neighbours(
    tx: Tx,
    scope: IndexQuery,
    weights: Mapping[int, float],
    best: Sequence[int],
    certain: Collection[int],
    words: Sequence[RecallWord],
) -> list[Piece]:
    """The best pieces and their neighbours, by thread and in order."""
    pieces = _keep_best(
        load_pieces(tx, best, scope.where, scope.values), weights, certain, words
    )
    around = _find_neighbours(tx, pieces) - {piece.id for piece in pieces}
    return sorted(
        [*pieces, *load_pieces(tx, sorted(around), scope.where, scope.values)],
        key=lambda piece: (piece.thread, piece.id),
    )


def _keep_best(
    pieces: list[Piece],
    weights: Mapping[int, float],
    certain: Collection[int],
    words: Sequence[RecallWord],
) -> list[Piece]:
    """The best `RECALL_CANDIDATES` pieces, the certain ones among them.

    Where one word decides, hundreds of pieces hold the same words: then their length and their neighbours decide,
    not which of them is newest.
    """
    if len(pieces) <= RECALL_CANDIDATES:
        return pieces
    own = {piece.id: weights[piece.id] / dilution(piece.length) for piece in pieces}
    of_message: dict[int, float] = {}
    for piece in pieces:
        if piece.message is not None:
            of_message[piece.message] = max(
                own[piece.id], of_message.get(piece.message, 0.0)
            )

    def rough_score(piece: Piece) -> tuple[bool, float, int]:
        near = sum(
            share * of_message.get((piece.message or 0) + step, 0.0)
            for step, share in NEIGHBOUR_SHARES.items()
        )
        return (
            piece.id in certain,
            own[piece.id] + near * (piece.message is not None),
            piece.id,
        )

    by_id = {piece.id: piece for piece in sorted(pieces, key=rough_score, reverse=True)}
    return [
        by_id[piece_id] for piece_id in _vary_pieces(by_id, words, RECALL_CANDIDATES)
    ]


def _find_neighbours(tx: Tx, pieces: Sequence[Piece]) -> set[int]:
    """The ids of the first pieces of the nearest texts in the same threads.

    Messages of one turn mostly have ids in a row, so these are read first. Only where another thread wrote in between,
    or the thread begins or ends there, is the index asked for the neighbours.
    """
    texts = {piece.message: piece for piece in pieces if piece.message is not None}
    steps = range(1, NEIGHBOUR_REACH + 1)
    near = sorted(
        {
            message + side * step
            for message in texts
            for side in _SIDES
            for step in steps
        }
    )
    beginnings = "SELECT message_id, thread_id, id FROM piece_details WHERE message_id IN ({}) AND start = 0"
    nearby: dict[int, tuple[str, int]] = {
        row[0]: row[1:] for row in tx.all_in(beginnings, near)
    }
    neighbours: set[int] = set()
    apart: list[Query] = []
    for piece in [
        *texts.values(),
        *(piece for piece in pieces if piece.message is None),
    ]:
        for side, condition in _SIDES.items():
            beside = [nearby.get((piece.message or 0) + side * step) for step in steps]
            inside = [
                other[1]
                for other in beside
                if other is not None and other[0] == piece.thread
            ]
            if piece.message is not None and len(inside) == NEIGHBOUR_REACH:
                neighbours.update(inside)
            else:
                sql = (
                    f"SELECT id FROM pieces WHERE thread = ({THREAD_NUMBERS.format('?')}) "
                    f"AND {condition} LIMIT {NEIGHBOUR_REACH}"
                )
                apart.append((sql, (piece.thread, piece.id)))
    neighbours.update(
        row[0] for rows in (tx.ask(apart) if apart else ()) for row in rows
    )
    return neighbours


def _share_scores(
    pieces: Sequence[Piece], own: Mapping[int, float], of_day: Collection[int]
) -> dict[int, float]:
    """The score of each piece: its own, a share of the best piece of each neighbouring text, and for its day."""
    texts = [
        list(group)
        for _, group in itertools.groupby(pieces, key=lambda piece: piece.text)
    ]
    best = [max(own.get(piece.id, 0.0) for piece in text) for text in texts]
    values = spread(best, list(_number_sittings(text[0] for text in texts)))
    return {
        piece.id: own.get(piece.id, 0.0)
        + value
        - alone
        + DAY_SCORE * (piece.id in of_day)
        for text, value, alone in zip(texts, values, best, strict=True)
        for piece in text
    }


def _number_sittings(pieces: Iterable[Piece]) -> Iterator[int]:
    """A number for each piece, the same for those of one thread without a long silence between them."""
    number = 0
    thread = ""
    last = 0.0
    for piece in pieces:
        if piece.thread != thread or abs(piece.created - last) > SILENCE_SECONDS:
            number += 1
        thread = piece.thread
        last = piece.created
        yield number


def _rank_candidates(
    pieces: Iterable[Piece], scores: Mapping[int, float], query: RecallQuery
) -> Iterator[Piece]:
    """The candidates, the best first, each text once; without texts in view and without searches."""
    shown: set[TextKey] = set()
    worth = (piece for piece in pieces if scores[piece.id] > 0)
    for piece in sorted(worth, key=lambda piece: (-scores[piece.id], -piece.id)):
        tools = piece.tool.split(",")
        if (
            piece.text in shown
            or piece.message in query.seen
            or any(map(is_lookup, tools))
        ):
            continue
        if query.spoken and (piece.tool or piece.role == "tool"):
            continue
        if query.role not in (None, piece.role) or query.tool not in (None, *tools):
            continue
        shown.add(piece.text)
        yield piece


def _take_turns(rankings: Sequence[Iterable[Piece]], most: int) -> list[Piece]:
    """Several rankings as one: in turn each gives its best candidate that is not chosen yet."""
    waiting = [iter(ranking) for ranking in rankings]
    chosen: dict[int, Piece] = {}
    while waiting and len(chosen) < most:
        ranking = waiting.pop(0)
        piece = next((piece for piece in ranking if piece.id not in chosen), None)
        if piece is not None:
            chosen[piece.id] = piece
            waiting.append(ranking)
    return list(chosen.values())


def _find_exchanges(pieces: Iterable[Piece]) -> list[CallPieces]:
    """The exchanges among pieces in order. Messages of one exchange follow each other."""
    exchanges = [CallPieces()]
    last = -1
    for piece in pieces:
        follows = piece.message is not None and piece.message - last in (0, 1)
        last = piece.message if piece.message is not None else -1
        if not follows or not (
            piece.is_result or (piece.role == "assistant" and not exchanges[-1].results)
        ):
            exchanges.append(CallPieces())
        if piece.is_result:
            exchanges[-1].results.append(piece)
        elif piece.role == "assistant":
            exchanges[-1].calls.append(piece)
        else:
            last = -1
    return [exchange for exchange in exchanges if exchange.calls and exchange.results]
