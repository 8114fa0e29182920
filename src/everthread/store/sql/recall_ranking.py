"""Rank the pieces that hold words of a question, with the help of their neighbours."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from everthread.core.search.query import Question
from everthread.core.search.relevance import (
    DAY_SCORE,
    NEIGHBOUR_SHARES,
    SPEAKER_BONUS,
    borrow_words,
    closeness,
    length_penalty,
    rate_sittings,
    weigh_question,
)
from everthread.core.search.terms import query_terms
from everthread.core.transcript import is_lookup_tool
from everthread.store.database import SqlQuery, Tx
from everthread.store.index_query import IndexQuery, make_phrase
from everthread.store.records import RecallQuery
from everthread.store.sql.pieces import (
    Piece,
    RoughPiece,
    TextKey,
    load_pieces,
    load_rough_pieces,
    read_pieces,
)
from everthread.store.sql.recall_words import RecallWord, discount_parts, weigh_pieces
from everthread.store.sql.session_rows import THREAD_NUMBERS

SILENCE_SECONDS = 1_800.0
"""Seconds of silence after which a message does not answer the one before."""
NEIGHBOUR_REACH = 2
"""How many texts before and after a text are its neighbours."""
ROUGH_CANDIDATES = 600
"""How many pieces with the most words are compared by a few columns."""
ROUGH_OF_USERS = 75
"""How many pieces of users' messages are compared for a page, whatever other pieces hold."""
RECALL_CANDIDATES = 40
"""How many of these are scored with their neighbours: those that come first by their words, and for a page as many that
come first by words and roles."""
MIN_SHARE_OF_BEST = 0.2
"""The least share of the best piece's weight that a piece compared with it must have: others never come first."""
BEST_PLACES = 10
"""How many of the best candidates may hold less of the question than others must."""
MIN_WEIGHT = 0.01
"""The weight of a piece that holds a phrase of the question and none of its words."""
MAX_RARE = 32
"""A word in at most this many pieces is rare."""
DECIDING_PLACES = 10
"""One of this many first candidates must be close enough."""
ROLE_WEIGHTS = {"user": 1.0, "assistant": 0.5, "tool": 0.4}
"""The weight of a text by its role (`benchmarks retention`): users mostly ask for what users wrote."""
SPEAKER_CANDIDATES = 40
"""How many of the best pieces are read to see who speaks."""
MAX_SPEAKER_CHARS = 40
_SPEAKER = re.compile(r"([^\W\d_][\w .'-]*+):\s")
WordScores = Mapping[int, float]
"""The scores of the question's words that a text has, by the number of the word."""
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


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The pieces that may answer a question, with their neighbours."""

    pieces: Sequence[Piece]
    """By thread and in order."""
    word_scores: Mapping[int, WordScores]
    """The words of each piece that has any."""
    rare: Collection[int]
    """Those with the rarest identifier of the question."""
    phrased: Mapping[int, int]
    """Those with a phrase of the question as typed, and the number of its terms."""


def rank_by_words(
    tx: Tx,
    scope: IndexQuery,
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> RecallRanking:
    """Load candidates, score them with their neighbours, rank them, and see whether one is close enough."""
    candidates = _load_candidates(tx, scope, words, question, query)
    of_day = _find_pieces_of_day(candidates.pieces, question)
    texts = _group_texts(candidates.pieces)
    scores = _share_scores(texts, candidates.word_scores, of_day)
    speakers = _read_speakers(tx, candidates.pieces, scores)
    of_named_speakers = _find_named(speakers, words)
    scores = _raise_speakers(scores, of_named_speakers)
    choices = [piece for piece in candidates.pieces if _may_be_shown(piece, query)]
    ranking = _rank_candidates(choices, scores)
    if query.for_page:
        by_role = scores
        if not speakers:  # where texts name their speakers, the role says nothing
            weighed = _weigh_roles(candidates.pieces, candidates.word_scores)
            by_role = _raise_speakers(
                _share_scores(texts, weighed, of_day), of_named_speakers
            )
        by_rarest = [piece for piece in choices if piece.id in candidates.rare]
        ranking = _take_turns(
            [
                _rank_candidates(choices, by_role),
                ranking,
                _rank_candidates(by_rarest, scores),
            ]
        )
        ranking.sort(key=lambda piece: -candidates.phrased.get(piece.id, 0))
    close = _measure_closeness(ranking, words, of_day, query)
    close |= dict.fromkeys(close.keys() & candidates.phrased.keys(), 1.0)
    if max(islice(close.values(), DECIDING_PLACES), default=0.0) < query.min_closeness:
        return RecallRanking()
    ranking = [
        piece
        for place, piece in enumerate(ranking)
        if place < BEST_PLACES or close[piece.id] >= query.min_other_closeness
    ]
    exchanges = _find_exchanges(candidates.pieces) if query.for_page else ()
    return RecallRanking(ranking, scores, close, exchanges)


def _find_pieces_of_day(
    pieces: Sequence[Piece | RoughPiece], question: Question
) -> set[int]:
    if not question.date_spans:
        return set()
    return {
        piece.id
        for piece in pieces
        if any(piece.created in span for span in question.date_spans)
    }


def _find_named(speakers: Mapping[int, str], words: Sequence[RecallWord]) -> list[int]:
    """The pieces whose speakers the question names."""
    question_words = {word.search_words.forms[0] for word in words}
    return [
        piece
        for piece, speaker in speakers.items()
        if not question_words.isdisjoint(query_terms(speaker))
    ]


def _load_candidates(
    tx: Tx,
    scope: IndexQuery,
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> _Candidates:
    weighed_words = discount_parts(words)
    weights = weigh_pieces(weighed_words, ROUGH_CANDIDATES)
    # A piece said on a named day is good though it holds few of the words.
    strong = (
        _best_pieces(weights, len(weights))
        if question.date_spans
        else _leave_out_weak(weights)
    )
    best = _vary_pieces(strong, words, ROUGH_CANDIDATES)
    rare_ids: set[int] = set()
    phrase_lengths: dict[int, int] = {}
    of_users: list[int] = []
    if query.for_page:
        user_weights = weigh_pieces(
            [replace(word, pieces=word.of_users) for word in weighed_words],
            ROUGH_OF_USERS,
        )
        weights |= user_weights
        rare_ids = weights.keys() & _rarest_pieces(words)
        of_users = _best_pieces(user_weights, ROUGH_OF_USERS)
        phrase_lengths = _find_phrases(tx, scope, question)
    weights |= {piece: weights.get(piece, MIN_WEIGHT) for piece in phrase_lengths}
    certain_ids = [*sorted(rare_ids), *sorted(phrase_lengths)]
    pieces = _load_with_neighbours(
        tx,
        scope,
        weights=weights,
        best=list(dict.fromkeys([*of_users, *certain_ids, *best])),
        certain_ids=certain_ids,
        words=words,
        question=question,
        query=query,
    )
    word_scores = {
        piece.id: _score_words(piece, weighed_words)
        for piece in pieces
        if piece.id in weights
    }
    return _Candidates(pieces, word_scores, rare_ids, phrase_lengths)


def _measure_closeness(
    pieces: Sequence[Piece],
    words: Sequence[RecallWord],
    of_day: Collection[int],
    query: RecallQuery,
) -> dict[int, float]:
    """Return the share of the question that each piece holds, by the id of the piece.

    Frequent words are ignored, except in a query for a page if no text holds one of the others.
    """
    counted_words = [word for word in words if word.telling]
    if query.for_page and not any(word.pieces for word in counted_words):
        counted_words = list(words)
    held_weights = {piece.id: 0.0 for piece in pieces}
    for word in counted_words:
        # A piece said on a named day need not mention the day.
        holding_pieces = (
            word.pieces if word.search_words.is_counted else word.pieces.union(of_day)
        )
        for piece_id in holding_pieces & held_weights.keys():
            held_weights[piece_id] += word.weight
    question_weight = weigh_question([word.weight for word in counted_words])
    return {
        piece_id: closeness(weight, question_weight)
        for piece_id, weight in held_weights.items()
    }


def _read_speakers(
    tx: Tx, pieces: Sequence[Piece], scores: Mapping[int, float]
) -> dict[int, str]:
    """The names that the best pieces begin with, as chats of several people are written ("Ann: …").

    Empty if most texts name nobody, or if hardly a name comes twice: then these are headings.
    """
    beginnings = [piece for piece in pieces if not (piece.start or piece.tool)]
    best = sorted(beginnings, key=lambda piece: -scores[piece.id])[:SPEAKER_CANDIDATES]
    texts = zip(best, read_pieces(tx, best), strict=True)
    speakers = {
        piece.id: match[1].casefold()
        for piece, text in texts
        if (match := _SPEAKER.match(text[:MAX_SPEAKER_CHARS])) is not None
    }
    is_chat = len(best) < 2 * len(speakers) >= 4 * len(set(speakers.values()))
    return speakers if is_chat else {}


def _raise_speakers(
    scores: Mapping[int, float], of_named_speakers: Collection[int]
) -> dict[int, float]:
    return {
        **scores,
        **{piece: scores[piece] * (1 + SPEAKER_BONUS) for piece in of_named_speakers},
    }


def _weigh_roles(
    pieces: Sequence[Piece], word_scores: Mapping[int, WordScores]
) -> Mapping[int, WordScores]:
    return {
        piece.id: _scale(word_scores[piece.id], _role_weight(piece))
        for piece in pieces
        if piece.id in word_scores
    }


def _find_phrases(tx: Tx, scope: IndexQuery, question: Question) -> dict[int, int]:
    """The pieces that hold a phrase of the question as typed, with the number of its terms; the longest counts.

    A phrase that is in many pieces is passed over.
    """
    lengths: dict[int, int] = {}
    for phrase in question.phrases:
        index_query = replace(scope, phrases=(make_phrase(phrase),))
        piece_ids = tx.match_ids(index_query, MAX_RARE + 1)
        if len(piece_ids) <= MAX_RARE:
            lengths = dict.fromkeys(piece_ids, len(phrase)) | lengths
    return lengths


def _role_weight(piece: Piece | RoughPiece) -> float:
    return ROLE_WEIGHTS.get("tool" if piece.is_result else piece.role, 1.0)


def _rarest_pieces(words: Sequence[RecallWord]) -> frozenset[int]:
    """Return the pieces with the rarest identifier of the question: the answer is mostly beside it."""
    piece_sets = [
        word.pieces
        for word in words
        if word.telling
        and 0 < len(word.pieces) <= MAX_RARE
        and not word.search_words.forms[0].isalpha()
    ]
    return min(piece_sets, key=len, default=frozenset())


def _best_pieces(weights: Mapping[int, float], most: int) -> list[int]:
    """The pieces with the most weight, of equals the newest."""
    newest_first = sorted(weights, reverse=True)
    return sorted(newest_first, key=weights.__getitem__, reverse=True)[:most]


def _leave_out_weak(weights: Mapping[int, float]) -> list[int]:
    """The pieces with at least a share of the most weight, the best first."""
    least = MIN_SHARE_OF_BEST * max(weights.values(), default=0.0)
    strong = {piece: weight for piece, weight in weights.items() if weight >= least}
    return _best_pieces(strong, len(strong))


def _vary_pieces(
    ordered: Iterable[int], words: Sequence[RecallWord], most: int
) -> list[int]:
    """Return the first `most` pieces; pieces with the same words fill at most a quarter before others have their turn.

    The name of a tool puts the same words into thousands of calls, and these must not shut out all other pieces.
    """
    varied_pieces: list[int] = []
    other_pieces: list[int] = []
    counts: Counter[tuple[bool, ...]] = Counter()
    piece_sets = [word.pieces for word in words]
    for piece_id in ordered:
        held_words = tuple([piece_id in some for some in piece_sets])
        counts[held_words] += 1
        (varied_pieces if counts[held_words] <= most // 4 else other_pieces).append(
            piece_id
        )
        if len(varied_pieces) == most:
            break
    return [*varied_pieces, *other_pieces][:most]


def _load_with_neighbours(
    tx: Tx,
    scope: IndexQuery,
    weights: Mapping[int, float],
    best: Sequence[int],
    certain_ids: Collection[int],
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> list[Piece]:
    """The best pieces and their neighbours, by thread and in order."""
    rough_pieces = load_rough_pieces(tx, best, scope.where, scope.values)
    best_pieces = _keep_best(
        rough_pieces, weights, certain_ids, words, question=question, query=query
    )
    ids = _find_neighbours(tx, best_pieces).union(piece.id for piece in best_pieces)
    return sorted(
        load_pieces(tx, sorted(ids), scope.where, scope.values),
        key=lambda piece: (piece.thread, piece.id),
    )


def _keep_best(
    pieces: Sequence[RoughPiece],
    weights: Mapping[int, float],
    certain_ids: Iterable[int],
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> list[RoughPiece]:
    """The certain pieces, and those that come first by their words, or for a page by their words and roles."""
    ordered_pieces = sorted(pieces, key=lambda piece: (piece.thread, piece.id))
    sittings = list(_number_conversations(ordered_pieces))
    own_scores = [
        weights[piece.id] / length_penalty(piece.length) for piece in ordered_pieces
    ]
    rankings = [own_scores]
    if query.for_page:
        rankings.append(
            [
                score * _role_weight(piece)
                for piece, score in zip(ordered_pieces, own_scores, strict=True)
            ]
        )
    kept_ids = set(certain_ids)
    for scores in rankings:
        final_scores = _estimate_scores(ordered_pieces, scores, sittings)
        for piece_id in _find_pieces_of_day(ordered_pieces, question):
            final_scores[piece_id] += DAY_SCORE
        kept_ids.update(
            _vary_pieces(_leave_out_weak(final_scores), words, RECALL_CANDIDATES)
        )
    return [piece for piece in ordered_pieces if piece.id in kept_ids]


def _estimate_scores(
    pieces: Sequence[RoughPiece], own_scores: Sequence[float], sittings: Sequence[int]
) -> dict[int, float]:
    """About the scores that pieces will have with their neighbours, which are not loaded yet.

    Where one word decides, hundreds of pieces hold the same words: then their length, their neighbours and their
    sitting decide, not which of them is newest.
    """
    message_scores: dict[int, float] = {}
    for piece, score in zip(pieces, own_scores, strict=True):
        if piece.message is not None and score > message_scores.get(piece.message, 0.0):
            message_scores[piece.message] = score
    sitting_scores = rate_sittings(own_scores, sittings)
    estimates: dict[int, float] = {}
    for piece, score, sitting in zip(pieces, own_scores, sittings, strict=True):
        neighbour_score = 0.0
        if piece.message is not None:
            for step, share in NEIGHBOUR_SHARES.items():
                neighbour_score += share * message_scores.get(piece.message + step, 0.0)
        estimates[piece.id] = score + neighbour_score + sitting_scores[sitting]
    return estimates


def _find_neighbours(tx: Tx, pieces: Sequence[RoughPiece]) -> set[int]:
    """The ids of the first pieces of the nearest texts in the same threads.

    Messages of one turn mostly have ids in a row, so these are read first. Only where another thread wrote in between,
    or the thread begins or ends there, is the index asked for the neighbours.
    """
    texts = {piece.message: piece for piece in pieces if piece.message is not None}
    steps = range(1, NEIGHBOUR_REACH + 1)
    nearby_ids = sorted(
        {
            message + side * step
            for message in texts
            for side in _SIDES
            for step in steps
        }
    )
    beginnings = "SELECT message_id, thread_id, id FROM piece_details WHERE message_id IN ({}) AND start = 0"
    nearby: dict[int, tuple[str, int]] = {
        row[0]: row[1:] for row in tx.all_for_keys(beginnings, nearby_ids)
    }
    neighbours: set[int] = set()
    neighbour_queries: list[SqlQuery] = []
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
                neighbour_queries.append((sql, (piece.thread, piece.id)))
    neighbours.update(
        row[0]
        for rows in (tx.all_of_each(neighbour_queries) if neighbour_queries else ())
        for row in rows
    )
    return neighbours


def _score_words(piece: Piece, words: Sequence[RecallWord]) -> WordScores:
    """The score of each word in a piece. A piece that has only a phrase of the question counts a little."""
    diluted = length_penalty(piece.length)
    scores = {
        number: word.weight / diluted
        for number, word in enumerate(words)
        if piece.id in word.pieces or piece.id in word.of_users
    }
    return scores or {len(words): MIN_WEIGHT}


def _scale(scores: WordScores, factor: float) -> WordScores:
    return {number: factor * score for number, score in scores.items()}


def _group_texts(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces of each text together."""
    return [
        list(group)
        for _, group in itertools.groupby(pieces, key=lambda piece: piece.text)
    ]


def _share_scores(
    texts: Sequence[Sequence[Piece]],
    word_scores: Mapping[int, WordScores],
    of_day: Collection[int],
) -> dict[int, float]:
    """The score of each piece: of its words, of its neighbours' words, of its sitting, and for its day."""
    sittings = list(_number_conversations(text[0] for text in texts))
    text_scores = [_best_scores(text, word_scores) for text in texts]
    neighbour_scores = borrow_words(text_scores, sittings)
    sitting_scores = rate_sittings(
        [_sum_scores(scores) for scores in text_scores], sittings
    )
    return {
        piece.id: _sum_with_others(word_scores.get(piece.id, {}), others)
        + sitting_scores[sitting]
        + DAY_SCORE * (piece.id in of_day)
        for text, others, sitting in zip(texts, neighbour_scores, sittings, strict=True)
        for piece in text
    }


def _best_scores(
    text: Sequence[Piece], word_scores: Mapping[int, WordScores]
) -> WordScores:
    """The scores of the words in the best piece of a text."""
    if len(text) == 1:
        return word_scores.get(text[0].id, {})
    return max((word_scores.get(piece.id, {}) for piece in text), key=_sum_scores)


def _sum_scores(scores: WordScores) -> float:
    return sum(scores.values())


def _sum_with_others(own_scores: WordScores, other_scores: WordScores) -> float:
    """Return the sum of the scores; for a word in both, count only the higher score."""
    if not own_scores:
        return _sum_scores(other_scores)
    increases = [
        max(0.0, score - own_scores.get(word, 0.0))
        for word, score in other_scores.items()
    ]
    return _sum_scores(own_scores) + sum(increases)


def _number_conversations(pieces: Iterable[Piece | RoughPiece]) -> Iterator[int]:
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


def _may_be_shown(piece: Piece, query: RecallQuery) -> bool:
    """Whether a piece is asked for: no text in view, no search, and of the role and tool if one is named."""
    if piece.message in query.visible_messages or (
        piece.tool and _has_lookup(piece.tool)
    ):
        return False
    if query.speech_only and (piece.tool or piece.role == "tool"):
        return False
    if query.tool is not None and query.tool not in piece.tool.split(","):
        return False
    return query.role in (None, piece.role)


@functools.lru_cache(maxsize=1024)
def _has_lookup(tools: str) -> bool:
    return any(map(is_lookup_tool, tools.split(",")))


def _rank_candidates(
    pieces: Iterable[Piece], scores: Mapping[int, float]
) -> list[Piece]:
    """The candidates, the best first, each text once."""
    worth = [piece for piece in pieces if scores[piece.id] > 0]
    worth.sort(key=lambda piece: (scores[piece.id], piece.id), reverse=True)
    best: dict[TextKey, Piece] = {}
    for piece in worth:
        best.setdefault(piece.text, piece)
    return list(best.values())


def _take_turns(rankings: Sequence[Iterable[Piece]]) -> list[Piece]:
    """Several rankings as one: in turn each gives its best candidate that is not chosen yet."""
    waiting_rankings = [iter(ranking) for ranking in rankings]
    chosen_pieces: dict[int, Piece] = {}
    while waiting_rankings:
        ranking = waiting_rankings.pop(0)
        for piece in ranking:
            if piece.id not in chosen_pieces:
                chosen_pieces[piece.id] = piece
                waiting_rankings.append(ranking)
                break
    return list(chosen_pieces.values())


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
