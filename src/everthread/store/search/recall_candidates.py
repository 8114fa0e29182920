"""Choose the chunks that may answer a question, and load them with their neighbours.

Thousands of chunks may hold a word of the question. They are compared by the weights of their words, then by a few
columns; only the best are loaded.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from everthread.core.search.query import Question
from everthread.core.search.relevance import (
    DAY_SCORE,
    NEIGHBOUR_SHARES,
    compute_length_penalty,
    rate_conversations,
)
from everthread.core.search.terms import list_query_terms
from everthread.store.database import SqlQuery, Tx
from everthread.store.search.index_query import IndexQuery, make_phrase
from everthread.store.search.recall_words import RecallWord
from everthread.store.search.stored_chunks import (
    ChunkHeader,
    StoredChunk,
    load_chunk_headers,
    load_chunks,
)
from everthread.store.search_records import RecallQuery
from everthread.store.sql.session_rows import SELECT_THREAD_NUMBERS

SILENCE_SECONDS = 1_800.0
"""Seconds of silence after which a message does not answer the one before."""
NEIGHBOURS_PER_SIDE = 2
"""How many texts before, and how many after, count as the neighbours of a text."""
MAX_COMPARED_CHUNKS = 600
"""How many chunks with the most words are compared by a few columns."""
MAX_COMPARED_USER_CHUNKS = 75
"""How many chunks of users' messages are compared for a page, in addition to the others."""
MAX_SCORED_CHUNKS = 40
"""How many of the compared chunks are scored with their neighbours: the best by their words; for a page, the same
number of the best by words and roles too."""
MIN_SHARE_OF_BEST = 0.2
"""Minimum weight of a chunk to compare, as a share of the best chunk's weight: lighter chunks never win."""
PHRASE_ONLY_WEIGHT = 0.01
"""The weight of a chunk that holds a phrase of the question and none of its words."""
MAX_RARE_CHUNKS = 32
"""A word in at most this many chunks is rare."""
ROLE_WEIGHTS = {"user": 1.0, "assistant": 0.5, "tool": 0.4}
"""The weight of a text by its role (`benchmarks retention`): users usually ask for what users wrote."""
WordScores = Mapping[int, float]
"""The scores of the question's words in a text, by the number of the word."""
_NEIGHBOUR_CONDITIONS = {
    -1: "id < ? AND start = 0 ORDER BY id DESC",
    1: "id > ? AND start = 0 ORDER BY id",
}


@dataclass(frozen=True, slots=True)
class RecallSearch:
    """A question with its words, looked up within the bounds of a query."""

    query: RecallQuery
    question: Question
    scope: IndexQuery
    words: Sequence[RecallWord]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The chunks that may answer a question, with their neighbours."""

    chunks: Sequence[StoredChunk]
    """The chunks, ordered by thread and id."""
    word_scores: Mapping[int, WordScores]
    """The scores of the words in each chunk that holds any."""
    rare_chunks: Collection[int]
    """The chunks with the rarest identifier of the question."""
    phrase_lengths: Mapping[int, int]
    """The chunks with a phrase of the question as typed, and the number of the phrase's terms."""
    day_chunks: Collection[int]
    """The chunks from a day that the question names."""


def _find_chunks_of_day(
    chunks: Sequence[StoredChunk | ChunkHeader], question: Question
) -> set[int]:
    if not question.date_spans:
        return set()
    day_ids = set()
    for chunk in chunks:
        if any(chunk.created in span for span in question.date_spans):
            day_ids.add(chunk.id)
    return day_ids


def load_candidates(tx: Tx, search: RecallSearch) -> Candidates:
    """Load the chunks that may answer a question, and the scores by which they are ranked."""
    weighed_words = _discount_parts(search.words)
    weights = _score_chunks(weighed_words, MAX_COMPARED_CHUNKS)
    if search.question.date_spans:
        # A chunk from a day that the question names may win although it holds few of the words.
        strong_chunks = _select_best_chunks(weights, len(weights))
    else:
        strong_chunks = _drop_weak_chunks(weights)
    best_ids = _vary_chunks(strong_chunks, search.words, MAX_COMPARED_CHUNKS)
    rare_ids: set[int] = set()
    phrase_lengths: dict[int, int] = {}
    user_ids: list[int] = []
    if search.query.for_page:
        user_weights = _score_chunks(
            [replace(word, chunks=word.user_chunks) for word in weighed_words],
            MAX_COMPARED_USER_CHUNKS,
        )
        weights |= user_weights
        rare_ids = weights.keys() & _find_rarest_identifier_chunks(search.words)
        user_ids = _select_best_chunks(user_weights, MAX_COMPARED_USER_CHUNKS)
        phrase_lengths = _find_phrases(tx, search)
    weights |= {chunk: weights.get(chunk, PHRASE_ONLY_WEIGHT) for chunk in phrase_lengths}
    certain_ids = [*sorted(rare_ids), *sorted(phrase_lengths)]
    compared_ids = list(dict.fromkeys([*user_ids, *certain_ids, *best_ids]))
    kept_chunks = _keep_best(
        load_chunk_headers(tx, compared_ids, search.scope.where, search.scope.values),
        search,
        weights=weights,
        certain_ids=certain_ids,
    )
    kept_ids = {chunk.id for chunk in kept_chunks} | _find_neighbours(tx, kept_chunks)
    chunks = sorted(
        load_chunks(tx, sorted(kept_ids), search.scope.where, search.scope.values),
        key=lambda chunk: (chunk.thread_id, chunk.id),
    )
    word_scores = {
        chunk.id: _score_words(chunk, weighed_words) for chunk in chunks if chunk.id in weights
    }
    return Candidates(
        chunks,
        word_scores,
        rare_chunks=rare_ids,
        phrase_lengths=phrase_lengths,
        day_chunks=_find_chunks_of_day(chunks, search.question),
    )


def _find_phrases(tx: Tx, search: RecallSearch) -> dict[int, int]:
    """Return the chunks that hold a phrase of the question as typed, with the number of terms of the longest phrase.

    Skip phrases that are in many chunks.
    """
    lengths: dict[int, int] = {}
    for phrase in search.question.phrases:
        index_query = replace(search.scope, phrases=(make_phrase(phrase),))
        chunk_ids = tx.match_ids(index_query, MAX_RARE_CHUNKS + 1)
        if len(chunk_ids) <= MAX_RARE_CHUNKS:
            lengths = dict.fromkeys(chunk_ids, len(phrase)) | lengths
    return lengths


def get_role_weight(chunk: StoredChunk | ChunkHeader) -> float:
    return ROLE_WEIGHTS.get("tool" if chunk.is_result else chunk.role, 1.0)


def _find_rarest_identifier_chunks(words: Sequence[RecallWord]) -> frozenset[int]:
    """Return the chunks with the rarest identifier of the question: the answer is usually near it."""
    chunk_sets = [
        word.chunks
        for word in words
        if word.is_distinguishing
        and 0 < len(word.chunks) <= MAX_RARE_CHUNKS
        and not word.search_word.forms[0].isalpha()
    ]
    return min(chunk_sets, key=len, default=frozenset())


def _select_best_chunks(weights: Mapping[int, float], max_chunks: int) -> list[int]:
    """Return the chunks with the most weight, the heaviest first; among equals, the newest first."""
    newest_first = sorted(weights, reverse=True)
    return sorted(newest_first, key=weights.__getitem__, reverse=True)[:max_chunks]


def _drop_weak_chunks(weights: Mapping[int, float]) -> list[int]:
    """Return the chunks with at least `MIN_SHARE_OF_BEST` of the largest weight, the best first."""
    min_weight = MIN_SHARE_OF_BEST * max(weights.values(), default=0.0)
    strong_weights = {chunk: weight for chunk, weight in weights.items() if weight >= min_weight}
    return _select_best_chunks(strong_weights, len(strong_weights))


def _vary_chunks(ordered: Sequence[int], words: Sequence[RecallWord], max_chunks: int) -> list[int]:
    """Return at most `max_chunks` chunks, the best first, in which no combination of words has more than a quarter.

    Chunks beyond that quarter only fill the places that remain. Otherwise the calls of one tool, thousands of which
    hold the same words, could exclude all other chunks.
    """
    varied_chunks: list[int] = []
    other_chunks: list[int] = []
    counts: Counter[tuple[bool, ...]] = Counter()
    # In C: a question compares thousands of chunks.
    word_tests = [map(word.chunks.__contains__, ordered) for word in words]
    held_words = zip(*word_tests, strict=True) if words else itertools.repeat(())
    for chunk_id, held in zip(ordered, held_words, strict=False):
        counts[held] += 1
        (varied_chunks if counts[held] <= max_chunks // 4 else other_chunks).append(chunk_id)
        if len(varied_chunks) == max_chunks:
            break
    return [*varied_chunks, *other_chunks][:max_chunks]


def _keep_best(
    chunks: Sequence[ChunkHeader],
    search: RecallSearch,
    weights: Mapping[int, float],
    certain_ids: Iterable[int],
) -> list[ChunkHeader]:
    """Return the certain chunks and those with the best scores by their words; for a page also by words and roles."""
    ordered_chunks = sorted(chunks, key=lambda chunk: (chunk.thread_id, chunk.id))
    conversation_numbers = list(number_conversations(ordered_chunks))
    own_scores = [
        weights[chunk.id] / compute_length_penalty(chunk.length) for chunk in ordered_chunks
    ]
    rankings = [own_scores]
    if search.query.for_page:
        rankings.append(
            [
                score * get_role_weight(chunk)
                for chunk, score in zip(ordered_chunks, own_scores, strict=True)
            ]
        )
    kept_ids = set(certain_ids)
    for scores in rankings:
        final_scores = _estimate_scores(ordered_chunks, scores, conversation_numbers)
        for chunk_id in _find_chunks_of_day(ordered_chunks, search.question):
            final_scores[chunk_id] += DAY_SCORE
        kept_ids.update(
            _vary_chunks(_drop_weak_chunks(final_scores), search.words, MAX_SCORED_CHUNKS)
        )
    return [chunk for chunk in ordered_chunks if chunk.id in kept_ids]


def _estimate_scores(
    chunks: Sequence[ChunkHeader],
    own_scores: Sequence[float],
    conversation_numbers: Sequence[int],
) -> dict[int, float]:
    """Estimate the scores that chunks will have with their neighbours, which are not loaded yet.

    If one word decides, hundreds of chunks hold the same words. They are ranked by length, neighbours and conversation,
    not by age.
    """
    message_scores: dict[int | None, float] = {}
    for chunk, score in zip(chunks, own_scores, strict=True):
        if score > message_scores.get(chunk.message_id, 0.0):
            message_scores[chunk.message_id] = score
    neighbour_scores = _sum_neighbour_scores(message_scores)
    conversation_scores = rate_conversations(own_scores, conversation_numbers)
    return {
        chunk.id: score
        + neighbour_scores.get(chunk.message_id, 0.0)
        + conversation_scores[conversation]
        for chunk, score, conversation in zip(chunks, own_scores, conversation_numbers, strict=True)
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


def _find_neighbours(tx: Tx, chunks: Sequence[ChunkHeader]) -> set[int]:
    """Return the ids of the first chunks of the nearest texts in the same threads.

    Messages of one turn usually have consecutive ids, so these ids are read first. Neighbours are searched for only if
    another thread wrote in between, or if the thread begins or ends there.
    """
    texts = {chunk.message_id: chunk for chunk in chunks if chunk.message_id is not None}
    steps = range(1, NEIGHBOURS_PER_SIDE + 1)
    nearby_ids = sorted(
        {
            message + side * step
            for message in texts
            for side in _NEIGHBOUR_CONDITIONS
            for step in steps
        }
    )
    select_first_chunks = (
        "SELECT message_id, thread_id, id FROM chunk_details WHERE message_id IN ({}) AND start = 0"
    )
    thread_and_chunk_by_message: dict[int, tuple[str, int]] = {
        row[0]: row[1:] for row in tx.all_for_keys(select_first_chunks, nearby_ids)
    }
    neighbours: set[int] = set()
    neighbour_queries: list[SqlQuery] = []
    for chunk in [
        *texts.values(),
        *(chunk for chunk in chunks if chunk.message_id is None),
    ]:
        for side, condition in _NEIGHBOUR_CONDITIONS.items():
            nearby_chunks = [
                thread_and_chunk_by_message.get((chunk.message_id or 0) + side * step)
                for step in steps
            ]
            same_thread_ids = [
                other[1]
                for other in nearby_chunks
                if other is not None and other[0] == chunk.thread_id
            ]
            if chunk.message_id is not None and len(same_thread_ids) == NEIGHBOURS_PER_SIDE:
                neighbours.update(same_thread_ids)
            else:
                sql = (
                    f"SELECT id FROM chunks WHERE thread = ({SELECT_THREAD_NUMBERS.format('?')}) "
                    f"AND {condition} LIMIT {NEIGHBOURS_PER_SIDE}"
                )
                neighbour_queries.append((sql, (chunk.thread_id, chunk.id)))
    neighbours.update(
        row[0]
        for rows in (tx.all_of_each(neighbour_queries) if neighbour_queries else ())
        for row in rows
    )
    return neighbours


def _score_words(chunk: StoredChunk, words: Sequence[RecallWord]) -> WordScores:
    """Return the score of each word in a chunk. A chunk with only a phrase of the question gets a small score."""
    penalty = compute_length_penalty(chunk.length)
    scores = {
        number: word.weight / penalty
        for number, word in enumerate(words)
        if chunk.id in word.chunks or chunk.id in word.user_chunks
    }
    return scores or {len(words): PHRASE_ONLY_WEIGHT}


def number_conversations(
    chunks: Iterable[StoredChunk | ChunkHeader],
) -> Iterator[int]:
    """Yield a number for each chunk: the same for neighbours in one thread without a long silence between them."""
    number = 0
    thread = ""
    last_time = 0.0
    for chunk in chunks:
        if chunk.thread_id != thread or abs(chunk.created - last_time) > SILENCE_SECONDS:
            number += 1
        thread = chunk.thread_id
        last_time = chunk.created
        yield number


def _discount_parts(words: Sequence[RecallWord]) -> list[RecallWord]:
    """Reduce the weight of an identifier by that of its parts, which occur wherever the identifier does."""
    weights = {word.search_word.forms[0]: word.weight for word in words}
    discounted_words = []
    for word in words:
        identifier = word.search_word.forms[0]
        part_weight = sum(
            weights.get(part, 0.0) for part in list_query_terms(identifier) if part != identifier
        )
        weight = word.weight
        if part_weight:
            weight = max(word.weight - part_weight, word.weight / 4)
        discounted_words.append(replace(word, weight=weight))
    return discounted_words


def _score_chunks(words: Sequence[RecallWord], max_chunks: int) -> dict[int, float]:
    """Return chunks with the sum of the weights of their words. The best `max_chunks` chunks are among them.

    Words with the most weight are added first. Once `max_chunks` chunks weigh more than all remaining words together,
    no further chunk can be among the best. Then the remaining words are added only to the chunks found so far.
    """
    weights: dict[int, float] = {}
    remaining_weight = sum(word.weight for word in words)
    is_complete = False
    for word in sorted(words, key=lambda word: -word.weight):
        is_complete = is_complete or (
            len(weights) >= max_chunks
            and sum(value >= remaining_weight for value in weights.values()) >= max_chunks
        )
        for chunk in weights.keys() & word.chunks if is_complete else word.chunks:
            weights[chunk] = weights.get(chunk, 0.0) + word.weight
        remaining_weight -= word.weight
    return weights
