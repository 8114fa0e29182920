"""Rank the pieces that hold words of a question, with the help of their neighbours."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from everthread.core.lookup_tools import is_lookup_tool
from everthread.core.search.query import Question
from everthread.core.search.relevance import (
    DAY_SCORE,
    NEIGHBOUR_SHARES,
    SPEAKER_BONUS,
    borrow_words,
    length_penalty,
    rate_closeness,
    rate_conversations,
    weigh_question,
)
from everthread.core.search.terms import query_terms
from everthread.store.database import SqlQuery, Tx
from everthread.store.index_query import IndexQuery, make_phrase
from everthread.store.search_records import RecallQuery
from everthread.store.sql.pieces import (
    PieceSummary,
    StoredPiece,
    TextKey,
    load_piece_summaries,
    load_pieces,
    read_piece_texts,
)
from everthread.store.sql.recall_words import RecallWord, discount_parts, score_pieces
from everthread.store.sql.session_rows import THREAD_NUMBERS

SILENCE_SECONDS = 1_800.0
"""Seconds of silence after which a message does not answer the one before."""
NEIGHBOURS_PER_SIDE = 2
"""How many texts before, and how many after, count as the neighbours of a text."""
MAX_COMPARED_PIECES = 600
"""How many pieces with the most words are compared by a few columns."""
MAX_COMPARED_USER_PIECES = 75
"""How many pieces of users' messages are compared for a page, whatever other pieces hold."""
MAX_SCORED_PIECES = 40
"""How many of the compared pieces are scored with their neighbours: the best by their words, and for a page as many of
the best by words and roles."""
MIN_SHARE_OF_BEST = 0.2
"""Minimum weight of a piece to compare, as a share of the best piece's weight: lighter pieces never win."""
MAX_EXEMPT_RANKS = 10
"""Number of best candidates that are exempt from `min_other_closeness`."""
PHRASE_ONLY_WEIGHT = 0.01
"""The weight of a piece that holds a phrase of the question and none of its words."""
MAX_RARE_PIECES = 32
"""A word in at most this many pieces is rare."""
DECIDING_RANKS = 10
"""At least one of this many best candidates must be close enough; otherwise there is no answer."""
ROLE_WEIGHTS = {"user": 1.0, "assistant": 0.5, "tool": 0.4}
"""The weight of a text by its role (`benchmarks retention`): users mostly ask for what users wrote."""
MAX_SPEAKER_TEXTS = 40
"""How many of the best pieces are read to find out who speaks."""
MAX_SPEAKER_CHARS = 40
_SPEAKER = re.compile(r"([^\W\d_][\w .'-]*+):\s")
WordScores = Mapping[int, float]
"""The scores of the question's words in a text, by the number of the word."""
_NEIGHBOUR_CONDITIONS = {
    -1: "id < ? AND start = 0 ORDER BY id DESC",
    1: "id > ? AND start = 0 ORDER BY id",
}


@dataclass(frozen=True, slots=True)
class RecallRanking:
    """Pieces, the best first, with their scores and closeness. Empty if no piece is close enough."""

    ranked: Sequence[StoredPiece] = ()
    scores: Mapping[int, float] = field(default_factory=dict)
    closeness: Mapping[int, float] = field(default_factory=dict)
    exchanges: Sequence[CallPieces] = ()
    """The calls among the candidates whose results are candidates too."""


@dataclass(slots=True)
class CallPieces:
    """Pieces of an assistant's message with calls, and of the results that follow it."""

    calls: list[StoredPiece] = field(default_factory=list)
    results: list[StoredPiece] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The pieces that may answer a question, with their neighbours."""

    pieces: Sequence[StoredPiece]
    """The pieces, ordered by thread and id."""
    word_scores: Mapping[int, WordScores]
    """The scores of the words in each piece that holds any."""
    rare_pieces: Collection[int]
    """The pieces with the rarest identifier of the question."""
    phrase_lengths: Mapping[int, int]
    """The pieces with a phrase of the question as typed, and the number of the phrase's terms."""


def rank_by_words(
    tx: Tx,
    scope: IndexQuery,
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> RecallRanking:
    """Load the pieces that may answer the question, score them with their neighbours, and rank them."""
    candidates = _load_candidates(tx, scope, words, question, query)
    day_pieces = _find_pieces_of_day(candidates.pieces, question)
    texts = _group_texts(candidates.pieces)
    scores = _score_with_neighbours(texts, candidates.word_scores, day_pieces)
    speakers = _read_speakers(tx, candidates.pieces, scores)
    named_pieces = _find_pieces_of_named_speakers(speakers, words)
    scores = _add_speaker_bonus(scores, named_pieces)
    showable_pieces = [
        piece for piece in candidates.pieces if _may_be_shown(piece, query)
    ]
    ranking = _rank_candidates(showable_pieces, scores)
    if query.for_page:
        role_scores = scores
        if not speakers:  # if texts name their speakers, the role tells nothing
            role_word_scores = _weigh_roles(candidates.pieces, candidates.word_scores)
            role_scores = _add_speaker_bonus(
                _score_with_neighbours(texts, role_word_scores, day_pieces),
                named_pieces,
            )
        rare_pieces = [
            piece for piece in showable_pieces if piece.id in candidates.rare_pieces
        ]
        ranking = _interleave_rankings(
            [
                _rank_candidates(showable_pieces, role_scores),
                ranking,
                _rank_candidates(rare_pieces, scores),
            ]
        )
        ranking.sort(key=lambda piece: -candidates.phrase_lengths.get(piece.id, 0))
    closeness_by_piece = _measure_closeness(ranking, words, day_pieces, query)
    closeness_by_piece |= dict.fromkeys(
        closeness_by_piece.keys() & candidates.phrase_lengths.keys(), 1.0
    )
    if (
        max(islice(closeness_by_piece.values(), DECIDING_RANKS), default=0.0)
        < query.min_closeness
    ):
        return RecallRanking()
    ranking = [
        piece
        for rank, piece in enumerate(ranking)
        if rank < MAX_EXEMPT_RANKS
        or closeness_by_piece[piece.id] >= query.min_other_closeness
    ]
    exchanges = _find_exchanges(candidates.pieces) if query.for_page else ()
    return RecallRanking(ranking, scores, closeness_by_piece, exchanges)


def _find_pieces_of_day(
    pieces: Sequence[StoredPiece | PieceSummary], question: Question
) -> set[int]:
    if not question.date_spans:
        return set()
    return {
        piece.id
        for piece in pieces
        if any(piece.created in span for span in question.date_spans)
    }


def _find_pieces_of_named_speakers(
    speakers: Mapping[int, str], words: Sequence[RecallWord]
) -> list[int]:
    """Return the pieces whose speakers the question names."""
    question_words = {word.search_word.forms[0] for word in words}
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
    weights = score_pieces(weighed_words, MAX_COMPARED_PIECES)
    # A piece from a day that the question names may win although it holds few of the words.
    strong_pieces = (
        _select_best_pieces(weights, len(weights))
        if question.date_spans
        else _drop_weak_pieces(weights)
    )
    best_pieces = _vary_pieces(strong_pieces, words, MAX_COMPARED_PIECES)
    rare_ids: set[int] = set()
    phrase_lengths: dict[int, int] = {}
    user_pieces: list[int] = []
    if query.for_page:
        user_weights = score_pieces(
            [replace(word, pieces=word.user_pieces) for word in weighed_words],
            MAX_COMPARED_USER_PIECES,
        )
        weights |= user_weights
        rare_ids = weights.keys() & _find_rarest_identifier_pieces(words)
        user_pieces = _select_best_pieces(user_weights, MAX_COMPARED_USER_PIECES)
        phrase_lengths = _find_phrases(tx, scope, question)
    weights |= {
        piece: weights.get(piece, PHRASE_ONLY_WEIGHT) for piece in phrase_lengths
    }
    certain_ids = [*sorted(rare_ids), *sorted(phrase_lengths)]
    pieces = _load_with_neighbours(
        tx,
        scope,
        weights=weights,
        best_ids=list(dict.fromkeys([*user_pieces, *certain_ids, *best_pieces])),
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
    pieces: Sequence[StoredPiece],
    words: Sequence[RecallWord],
    day_pieces: Collection[int],
    query: RecallQuery,
) -> dict[int, float]:
    """Return the share of the question that each piece holds, by the id of the piece.

    Frequent words are ignored, except in a query for a page if no text holds one of the others.
    """
    counted_words = [word for word in words if word.is_distinguishing]
    if query.for_page and not any(word.pieces for word in counted_words):
        counted_words = list(words)
    held_weights = {piece.id: 0.0 for piece in pieces}
    for word in counted_words:
        # A piece from a day that the question names need not mention the day.
        matching_pieces = (
            word.pieces
            if word.search_word.is_counted
            else word.pieces.union(day_pieces)
        )
        for piece_id in matching_pieces & held_weights.keys():
            held_weights[piece_id] += word.weight
    question_weight = weigh_question([word.weight for word in counted_words])
    return {
        piece_id: rate_closeness(weight, question_weight)
        for piece_id, weight in held_weights.items()
    }


def _read_speakers(
    tx: Tx, pieces: Sequence[StoredPiece], scores: Mapping[int, float]
) -> dict[int, str]:
    """Return the speakers named at the beginning of the best pieces, as in a chat of several people ("Ann: …").

    The result is empty if most texts name no speaker, or if names hardly repeat, because then they are headings.
    """
    beginnings = [piece for piece in pieces if not (piece.start or piece.tool)]
    best = sorted(beginnings, key=lambda piece: -scores[piece.id])[:MAX_SPEAKER_TEXTS]
    texts = zip(best, read_piece_texts(tx, best), strict=True)
    speakers = {
        piece.id: match[1].casefold()
        for piece, text in texts
        if (match := _SPEAKER.match(text[:MAX_SPEAKER_CHARS])) is not None
    }
    is_chat = len(best) < 2 * len(speakers) >= 4 * len(set(speakers.values()))
    return speakers if is_chat else {}


def _add_speaker_bonus(
    scores: Mapping[int, float], named_pieces: Collection[int]
) -> dict[int, float]:
    return {
        **scores,
        **{piece: scores[piece] * (1 + SPEAKER_BONUS) for piece in named_pieces},
    }


def _weigh_roles(
    pieces: Sequence[StoredPiece], word_scores: Mapping[int, WordScores]
) -> Mapping[int, WordScores]:
    return {
        piece.id: _scale_scores(word_scores[piece.id], _get_role_weight(piece))
        for piece in pieces
        if piece.id in word_scores
    }


def _find_phrases(tx: Tx, scope: IndexQuery, question: Question) -> dict[int, int]:
    """Return the pieces that hold a phrase of the question as typed, with the number of terms of the longest phrase.

    Skip phrases that are in many pieces.
    """
    lengths: dict[int, int] = {}
    for phrase in question.phrases:
        index_query = replace(scope, phrases=(make_phrase(phrase),))
        piece_ids = tx.match_ids(index_query, MAX_RARE_PIECES + 1)
        if len(piece_ids) <= MAX_RARE_PIECES:
            lengths = dict.fromkeys(piece_ids, len(phrase)) | lengths
    return lengths


def _get_role_weight(piece: StoredPiece | PieceSummary) -> float:
    return ROLE_WEIGHTS.get("tool" if piece.is_result else piece.role, 1.0)


def _find_rarest_identifier_pieces(words: Sequence[RecallWord]) -> frozenset[int]:
    """Return the pieces with the rarest identifier of the question: the answer mostly stands near it."""
    piece_sets = [
        word.pieces
        for word in words
        if word.is_distinguishing
        and 0 < len(word.pieces) <= MAX_RARE_PIECES
        and not word.search_word.forms[0].isalpha()
    ]
    return min(piece_sets, key=len, default=frozenset())


def _select_best_pieces(weights: Mapping[int, float], max_pieces: int) -> list[int]:
    """Return the pieces with the most weight, the heaviest first; of equally heavy ones the newest first."""
    newest_first = sorted(weights, reverse=True)
    return sorted(newest_first, key=weights.__getitem__, reverse=True)[:max_pieces]


def _drop_weak_pieces(weights: Mapping[int, float]) -> list[int]:
    """Return the pieces with at least `MIN_SHARE_OF_BEST` of the largest weight, the best first."""
    min_weight = MIN_SHARE_OF_BEST * max(weights.values(), default=0.0)
    strong_weights = {
        piece: weight for piece, weight in weights.items() if weight >= min_weight
    }
    return _select_best_pieces(strong_weights, len(strong_weights))


def _vary_pieces(
    ordered: Sequence[int], words: Sequence[RecallWord], max_pieces: int
) -> list[int]:
    """Return at most `max_pieces` pieces, the best first, in which no combination of words has more than a quarter.

    Pieces beyond that quarter only fill the places that remain. Otherwise the calls of one tool, thousands of which
    hold the same words, could exclude all other pieces.
    """
    varied_pieces: list[int] = []
    other_pieces: list[int] = []
    counts: Counter[tuple[bool, ...]] = Counter()
    # In C: a question compares thousands of pieces.
    word_tests = [map(word.pieces.__contains__, ordered) for word in words]
    held_words = zip(*word_tests, strict=True) if words else itertools.repeat(())
    for piece_id, held in zip(ordered, held_words, strict=False):
        counts[held] += 1
        (varied_pieces if counts[held] <= max_pieces // 4 else other_pieces).append(
            piece_id
        )
        if len(varied_pieces) == max_pieces:
            break
    return [*varied_pieces, *other_pieces][:max_pieces]


def _load_with_neighbours(
    tx: Tx,
    scope: IndexQuery,
    weights: Mapping[int, float],
    best_ids: Sequence[int],
    certain_ids: Collection[int],
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> list[StoredPiece]:
    """Load the best pieces and their neighbours, sorted by thread and id."""
    piece_summaries = load_piece_summaries(tx, best_ids, scope.where, scope.values)
    best_pieces = _keep_best(
        piece_summaries, weights, certain_ids, words, question=question, query=query
    )
    ids = _find_neighbours(tx, best_pieces).union(piece.id for piece in best_pieces)
    return sorted(
        load_pieces(tx, sorted(ids), scope.where, scope.values),
        key=lambda piece: (piece.thread, piece.id),
    )


def _keep_best(
    pieces: Sequence[PieceSummary],
    weights: Mapping[int, float],
    certain_ids: Iterable[int],
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> list[PieceSummary]:
    """Return the certain pieces and those with the best scores by their words; for a page also by words and roles."""
    ordered_pieces = sorted(pieces, key=lambda piece: (piece.thread, piece.id))
    conversation_numbers = list(_number_conversations(ordered_pieces))
    own_scores = [
        weights[piece.id] / length_penalty(piece.length) for piece in ordered_pieces
    ]
    rankings = [own_scores]
    if query.for_page:
        rankings.append(
            [
                score * _get_role_weight(piece)
                for piece, score in zip(ordered_pieces, own_scores, strict=True)
            ]
        )
    kept_ids = set(certain_ids)
    for scores in rankings:
        final_scores = _estimate_scores(ordered_pieces, scores, conversation_numbers)
        for piece_id in _find_pieces_of_day(ordered_pieces, question):
            final_scores[piece_id] += DAY_SCORE
        kept_ids.update(
            _vary_pieces(_drop_weak_pieces(final_scores), words, MAX_SCORED_PIECES)
        )
    return [piece for piece in ordered_pieces if piece.id in kept_ids]


def _estimate_scores(
    pieces: Sequence[PieceSummary],
    own_scores: Sequence[float],
    conversation_numbers: Sequence[int],
) -> dict[int, float]:
    """Estimate the scores that pieces will have with their neighbours, which are not loaded yet.

    If one word decides, hundreds of pieces hold the same words. They are ranked by length, neighbours and conversation,
    not by age.
    """
    message_scores: dict[int | None, float] = {}
    for piece, score in zip(pieces, own_scores, strict=True):
        if score > message_scores.get(piece.message, 0.0):
            message_scores[piece.message] = score
    neighbour_scores = _sum_neighbour_scores(message_scores)
    conversation_scores = rate_conversations(own_scores, conversation_numbers)
    return {
        piece.id: score
        + neighbour_scores.get(piece.message, 0.0)
        + conversation_scores[conversation]
        for piece, score, conversation in zip(
            pieces, own_scores, conversation_numbers, strict=True
        )
    }


def _sum_neighbour_scores(
    message_scores: Mapping[int | None, float],
) -> dict[int | None, float]:
    """Return what each message's neighbours add to its score. Only the few messages that have any are listed."""
    messages = sorted(message for message in message_scores if message is not None)
    max_step = max(NEIGHBOUR_SHARES)
    near_messages = {
        message
        for pair in itertools.pairwise(messages)
        if pair[1] - pair[0] <= max_step
        for message in pair
    }
    neighbour_scores: dict[int | None, float] = {}
    for message in near_messages:
        total = 0.0
        for step, share in NEIGHBOUR_SHARES.items():
            total += share * message_scores.get(message + step, 0.0)
        neighbour_scores[message] = total
    return neighbour_scores


def _find_neighbours(tx: Tx, pieces: Sequence[PieceSummary]) -> set[int]:
    """Return the ids of the first pieces of the nearest texts in the same threads.

    Messages of one turn mostly have consecutive ids, so these ids are read first. Neighbours are searched for only if
    another thread wrote in between, or if the thread begins or ends there.
    """
    texts = {piece.message: piece for piece in pieces if piece.message is not None}
    steps = range(1, NEIGHBOURS_PER_SIDE + 1)
    nearby_ids = sorted(
        {
            message + side * step
            for message in texts
            for side in _NEIGHBOUR_CONDITIONS
            for step in steps
        }
    )
    select_first_pieces = "SELECT message_id, thread_id, id FROM piece_details WHERE message_id IN ({}) AND start = 0"
    thread_and_piece_by_message: dict[int, tuple[str, int]] = {
        row[0]: row[1:] for row in tx.all_for_keys(select_first_pieces, nearby_ids)
    }
    neighbours: set[int] = set()
    neighbour_queries: list[SqlQuery] = []
    for piece in [
        *texts.values(),
        *(piece for piece in pieces if piece.message is None),
    ]:
        for side, condition in _NEIGHBOUR_CONDITIONS.items():
            nearby_pieces = [
                thread_and_piece_by_message.get((piece.message or 0) + side * step)
                for step in steps
            ]
            same_thread_ids = [
                other[1]
                for other in nearby_pieces
                if other is not None and other[0] == piece.thread
            ]
            if (
                piece.message is not None
                and len(same_thread_ids) == NEIGHBOURS_PER_SIDE
            ):
                neighbours.update(same_thread_ids)
            else:
                sql = (
                    f"SELECT id FROM pieces WHERE thread = ({THREAD_NUMBERS.format('?')}) "
                    f"AND {condition} LIMIT {NEIGHBOURS_PER_SIDE}"
                )
                neighbour_queries.append((sql, (piece.thread, piece.id)))
    neighbours.update(
        row[0]
        for rows in (tx.all_of_each(neighbour_queries) if neighbour_queries else ())
        for row in rows
    )
    return neighbours


def _score_words(piece: StoredPiece, words: Sequence[RecallWord]) -> WordScores:
    """Return the score of each word in a piece. A piece with only a phrase of the question gets a small score."""
    penalty = length_penalty(piece.length)
    scores = {
        number: word.weight / penalty
        for number, word in enumerate(words)
        if piece.id in word.pieces or piece.id in word.user_pieces
    }
    return scores or {len(words): PHRASE_ONLY_WEIGHT}


def _scale_scores(scores: WordScores, factor: float) -> WordScores:
    return {number: factor * score for number, score in scores.items()}


def _group_texts(pieces: Sequence[StoredPiece]) -> list[list[StoredPiece]]:
    """Group the pieces by the text they are part of."""
    return [
        list(group)
        for _, group in itertools.groupby(pieces, key=lambda piece: piece.text_key)
    ]


def _score_with_neighbours(
    texts: Sequence[Sequence[StoredPiece]],
    word_scores: Mapping[int, WordScores],
    day_pieces: Collection[int],
) -> dict[int, float]:
    """Return the score of each piece: the sum for its words, its neighbours' words, its conversation and its day."""
    conversation_numbers = list(_number_conversations(text[0] for text in texts))
    text_scores = [_find_best_scores(text, word_scores) for text in texts]
    neighbour_scores = borrow_words(text_scores, conversation_numbers)
    conversation_scores = rate_conversations(
        [_sum_scores(scores) for scores in text_scores], conversation_numbers
    )
    return {
        piece.id: _sum_with_others(word_scores.get(piece.id, {}), other_scores)
        + conversation_scores[conversation]
        + DAY_SCORE * (piece.id in day_pieces)
        for text, other_scores, conversation in zip(
            texts, neighbour_scores, conversation_numbers, strict=True
        )
        for piece in text
    }


def _find_best_scores(
    text: Sequence[StoredPiece], word_scores: Mapping[int, WordScores]
) -> WordScores:
    """Return the word scores of the best piece of a text."""
    if len(text) == 1:
        return word_scores.get(text[0].id, {})
    return max((word_scores.get(piece.id, {}) for piece in text), key=_sum_scores)


def _sum_scores(scores: WordScores) -> float:
    return sum(scores.values())


def _sum_with_others(own_scores: WordScores, other_scores: WordScores) -> float:
    """Return the sum of a piece's own scores and others; of a word in both, count only the higher score."""
    if not own_scores:
        return _sum_scores(other_scores)
    if not other_scores:
        return _sum_scores(own_scores)
    increases = [
        max(0.0, score - own_scores.get(word, 0.0))
        for word, score in other_scores.items()
    ]
    return _sum_scores(own_scores) + sum(increases)


def _number_conversations(
    pieces: Iterable[StoredPiece | PieceSummary],
) -> Iterator[int]:
    """Yield a number for each piece: the same for neighbours in one thread without a long silence between them."""
    number = 0
    thread = ""
    last_time = 0.0
    for piece in pieces:
        if piece.thread != thread or abs(piece.created - last_time) > SILENCE_SECONDS:
            number += 1
        thread = piece.thread
        last_time = piece.created
        yield number


def _may_be_shown(piece: StoredPiece, query: RecallQuery) -> bool:
    """Return whether a piece may be shown: not in the context, not a lookup, and of the query's role and tool."""
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
def _has_lookup(tool_names: str) -> bool:
    return any(map(is_lookup_tool, tool_names.split(",")))


def _rank_candidates(
    pieces: Iterable[StoredPiece], scores: Mapping[int, float]
) -> list[StoredPiece]:
    """Return the candidates with a score, the best first, and of each text only the best piece."""
    scored_pieces = [piece for piece in pieces if scores[piece.id] > 0]
    scored_pieces.sort(key=lambda piece: (scores[piece.id], piece.id), reverse=True)
    best_by_text: dict[TextKey, StoredPiece] = {}
    for piece in scored_pieces:
        best_by_text.setdefault(piece.text_key, piece)
    return list(best_by_text.values())


def _interleave_rankings(
    rankings: Sequence[Iterable[StoredPiece]],
) -> list[StoredPiece]:
    """Merge rankings: take the best remaining candidate of each ranking in turn."""
    waiting_rankings = [iter(ranking) for ranking in rankings]
    chosen_pieces: dict[int, StoredPiece] = {}
    while waiting_rankings:
        ranking = waiting_rankings.pop(0)
        for piece in ranking:
            if piece.id not in chosen_pieces:
                chosen_pieces[piece.id] = piece
                waiting_rankings.append(ranking)
                break
    return list(chosen_pieces.values())


def _find_exchanges(pieces: Iterable[StoredPiece]) -> list[CallPieces]:
    """Return the calls with their results among ordered pieces. A call and its results have consecutive message ids."""
    exchanges = [CallPieces()]
    last_message = -1
    for piece in pieces:
        follows = piece.message is not None and piece.message - last_message in (0, 1)
        last_message = piece.message if piece.message is not None else -1
        if not follows or not (
            piece.is_result or (piece.role == "assistant" and not exchanges[-1].results)
        ):
            exchanges.append(CallPieces())
        if piece.is_result:
            exchanges[-1].results.append(piece)
        elif piece.role == "assistant":
            exchanges[-1].calls.append(piece)
        else:
            last_message = -1
    return [exchange for exchange in exchanges if exchange.calls and exchange.results]
