"""Rank the chunks that hold words of a question, with the help of their neighbours."""

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
from everthread.store.search.index_query import IndexQuery, make_phrase
from everthread.store.search.recall_words import (
    RecallWord,
    discount_parts,
    score_chunks,
)
from everthread.store.search.stored_chunks import (
    ChunkSummary,
    StoredChunk,
    TextKey,
    load_chunk_summaries,
    load_chunks,
    read_chunk_texts,
)
from everthread.store.search_records import RecallQuery
from everthread.store.sql.session_rows import THREAD_NUMBERS

SILENCE_SECONDS = 1_800.0
"""Seconds of silence after which a message does not answer the one before."""
NEIGHBOURS_PER_SIDE = 2
"""How many texts before, and how many after, count as the neighbours of a text."""
MAX_COMPARED_CHUNKS = 600
"""How many chunks with the most words are compared by a few columns."""
MAX_COMPARED_USER_CHUNKS = 75
"""How many chunks of users' messages are compared for a page, whatever other chunks hold."""
MAX_SCORED_CHUNKS = 40
"""How many of the compared chunks are scored with their neighbours: the best by their words, and for a page as many of
the best by words and roles."""
MIN_SHARE_OF_BEST = 0.2
"""Minimum weight of a chunk to compare, as a share of the best chunk's weight: lighter chunks never win."""
MAX_EXEMPT_RANKS = 10
"""Number of best candidates that are exempt from `min_other_closeness`."""
PHRASE_ONLY_WEIGHT = 0.01
"""The weight of a chunk that holds a phrase of the question and none of its words."""
MAX_RARE_CHUNKS = 32
"""A word in at most this many chunks is rare."""
DECIDING_RANKS = 10
"""At least one of this many best candidates must be close enough; otherwise there is no answer."""
ROLE_WEIGHTS = {"user": 1.0, "assistant": 0.5, "tool": 0.4}
"""The weight of a text by its role (`benchmarks retention`): users mostly ask for what users wrote."""
MAX_SPEAKER_TEXTS = 40
"""How many of the best chunks are read to find out who speaks."""
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
    """Chunks, the best first, with their scores and closeness. Empty if no chunk is close enough."""

    ranked: Sequence[StoredChunk] = ()
    scores: Mapping[int, float] = field(default_factory=dict)
    closeness: Mapping[int, float] = field(default_factory=dict)
    exchanges: Sequence[CallChunks] = ()
    """The calls among the candidates whose results are candidates too."""


@dataclass(slots=True)
class CallChunks:
    """Chunks of an assistant's message with calls, and of the results that follow it."""

    calls: list[StoredChunk] = field(default_factory=list)
    results: list[StoredChunk] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The chunks that may answer a question, with their neighbours."""

    chunks: Sequence[StoredChunk]
    """The chunks, ordered by thread and id."""
    word_scores: Mapping[int, WordScores]
    """The scores of the words in each chunk that holds any."""
    rare_chunks: Collection[int]
    """The chunks with the rarest identifier of the question."""
    phrase_lengths: Mapping[int, int]
    """The chunks with a phrase of the question as typed, and the number of the phrase's terms."""


def rank_by_words(
    tx: Tx,
    scope: IndexQuery,
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> RecallRanking:
    """Load the chunks that may answer the question, score them with their neighbours, and rank them."""
    candidates = _load_candidates(tx, scope, words, question, query)
    day_chunks = _find_chunks_of_day(candidates.chunks, question)
    texts = _group_texts(candidates.chunks)
    scores = _score_with_neighbours(texts, candidates.word_scores, day_chunks)
    speakers = _read_speakers(tx, candidates.chunks, scores)
    named_chunks = _find_chunks_of_named_speakers(speakers, words)
    scores = _add_speaker_bonus(scores, named_chunks)
    showable_chunks = [
        chunk for chunk in candidates.chunks if _may_be_shown(chunk, query)
    ]
    ranking = _rank_candidates(showable_chunks, scores)
    if query.for_page:
        role_scores = scores
        if not speakers:  # if texts name their speakers, the role tells nothing
            role_word_scores = _weigh_roles(candidates.chunks, candidates.word_scores)
            role_scores = _add_speaker_bonus(
                _score_with_neighbours(texts, role_word_scores, day_chunks),
                named_chunks,
            )
        rare_chunks = [
            chunk for chunk in showable_chunks if chunk.id in candidates.rare_chunks
        ]
        ranking = _interleave_rankings(
            [
                _rank_candidates(showable_chunks, role_scores),
                ranking,
                _rank_candidates(rare_chunks, scores),
            ]
        )
        ranking.sort(key=lambda chunk: -candidates.phrase_lengths.get(chunk.id, 0))
    closeness_by_chunk = _measure_closeness(ranking, words, day_chunks, query)
    closeness_by_chunk |= dict.fromkeys(
        closeness_by_chunk.keys() & candidates.phrase_lengths.keys(), 1.0
    )
    if (
        max(islice(closeness_by_chunk.values(), DECIDING_RANKS), default=0.0)
        < query.min_closeness
    ):
        return RecallRanking()
    ranking = [
        chunk
        for rank, chunk in enumerate(ranking)
        if rank < MAX_EXEMPT_RANKS
        or closeness_by_chunk[chunk.id] >= query.min_other_closeness
    ]
    exchanges = _find_exchanges(candidates.chunks) if query.for_page else ()
    return RecallRanking(ranking, scores, closeness_by_chunk, exchanges)


def _find_chunks_of_day(
    chunks: Sequence[StoredChunk | ChunkSummary], question: Question
) -> set[int]:
    if not question.date_spans:
        return set()
    return {
        chunk.id
        for chunk in chunks
        if any(chunk.created in span for span in question.date_spans)
    }


def _find_chunks_of_named_speakers(
    speakers: Mapping[int, str], words: Sequence[RecallWord]
) -> list[int]:
    """Return the chunks whose speakers the question names."""
    question_words = {word.search_word.forms[0] for word in words}
    return [
        chunk
        for chunk, speaker in speakers.items()
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
    weights = score_chunks(weighed_words, MAX_COMPARED_CHUNKS)
    # A chunk from a day that the question names may win although it holds few of the words.
    strong_chunks = (
        _select_best_chunks(weights, len(weights))
        if question.date_spans
        else _drop_weak_chunks(weights)
    )
    best_chunks = _vary_chunks(strong_chunks, words, MAX_COMPARED_CHUNKS)
    rare_ids: set[int] = set()
    phrase_lengths: dict[int, int] = {}
    user_chunks: list[int] = []
    if query.for_page:
        user_weights = score_chunks(
            [replace(word, chunks=word.user_chunks) for word in weighed_words],
            MAX_COMPARED_USER_CHUNKS,
        )
        weights |= user_weights
        rare_ids = weights.keys() & _find_rarest_identifier_chunks(words)
        user_chunks = _select_best_chunks(user_weights, MAX_COMPARED_USER_CHUNKS)
        phrase_lengths = _find_phrases(tx, scope, question)
    weights |= {
        chunk: weights.get(chunk, PHRASE_ONLY_WEIGHT) for chunk in phrase_lengths
    }
    certain_ids = [*sorted(rare_ids), *sorted(phrase_lengths)]
    chunks = _load_with_neighbours(
        tx,
        scope,
        weights=weights,
        best_ids=list(dict.fromkeys([*user_chunks, *certain_ids, *best_chunks])),
        certain_ids=certain_ids,
        words=words,
        question=question,
        query=query,
    )
    word_scores = {
        chunk.id: _score_words(chunk, weighed_words)
        for chunk in chunks
        if chunk.id in weights
    }
    return _Candidates(chunks, word_scores, rare_ids, phrase_lengths)


def _measure_closeness(
    chunks: Sequence[StoredChunk],
    words: Sequence[RecallWord],
    day_chunks: Collection[int],
    query: RecallQuery,
) -> dict[int, float]:
    """Return the share of the question that each chunk holds, by the id of the chunk.

    Frequent words are ignored, except in a query for a page if no text holds one of the others.
    """
    counted_words = [word for word in words if word.is_distinguishing]
    if query.for_page and not any(word.chunks for word in counted_words):
        counted_words = list(words)
    held_weights = {chunk.id: 0.0 for chunk in chunks}
    for word in counted_words:
        # A chunk from a day that the question names need not mention the day.
        matching_chunks = (
            word.chunks
            if word.search_word.is_counted
            else word.chunks.union(day_chunks)
        )
        for chunk_id in matching_chunks & held_weights.keys():
            held_weights[chunk_id] += word.weight
    question_weight = weigh_question([word.weight for word in counted_words])
    return {
        chunk_id: rate_closeness(weight, question_weight)
        for chunk_id, weight in held_weights.items()
    }


def _read_speakers(
    tx: Tx, chunks: Sequence[StoredChunk], scores: Mapping[int, float]
) -> dict[int, str]:
    """Return the speakers named at the beginning of the best chunks, as in a chat of several people ("Ann: …").

    The result is empty if most texts name no speaker, or if names hardly repeat, because then they are headings.
    """
    beginnings = [chunk for chunk in chunks if not (chunk.start or chunk.tool)]
    best = sorted(beginnings, key=lambda chunk: -scores[chunk.id])[:MAX_SPEAKER_TEXTS]
    texts = zip(best, read_chunk_texts(tx, best), strict=True)
    speakers = {
        chunk.id: match[1].casefold()
        for chunk, text in texts
        if (match := _SPEAKER.match(text[:MAX_SPEAKER_CHARS])) is not None
    }
    is_chat = len(best) < 2 * len(speakers) >= 4 * len(set(speakers.values()))
    return speakers if is_chat else {}


def _add_speaker_bonus(
    scores: Mapping[int, float], named_chunks: Collection[int]
) -> dict[int, float]:
    return {
        **scores,
        **{chunk: scores[chunk] * (1 + SPEAKER_BONUS) for chunk in named_chunks},
    }


def _weigh_roles(
    chunks: Sequence[StoredChunk], word_scores: Mapping[int, WordScores]
) -> Mapping[int, WordScores]:
    return {
        chunk.id: _scale_scores(word_scores[chunk.id], _get_role_weight(chunk))
        for chunk in chunks
        if chunk.id in word_scores
    }


def _find_phrases(tx: Tx, scope: IndexQuery, question: Question) -> dict[int, int]:
    """Return the chunks that hold a phrase of the question as typed, with the number of terms of the longest phrase.

    Skip phrases that are in many chunks.
    """
    lengths: dict[int, int] = {}
    for phrase in question.phrases:
        index_query = replace(scope, phrases=(make_phrase(phrase),))
        chunk_ids = tx.match_ids(index_query, MAX_RARE_CHUNKS + 1)
        if len(chunk_ids) <= MAX_RARE_CHUNKS:
            lengths = dict.fromkeys(chunk_ids, len(phrase)) | lengths
    return lengths


def _get_role_weight(chunk: StoredChunk | ChunkSummary) -> float:
    return ROLE_WEIGHTS.get("tool" if chunk.is_result else chunk.role, 1.0)


def _find_rarest_identifier_chunks(words: Sequence[RecallWord]) -> frozenset[int]:
    """Return the chunks with the rarest identifier of the question: the answer mostly stands near it."""
    chunk_sets = [
        word.chunks
        for word in words
        if word.is_distinguishing
        and 0 < len(word.chunks) <= MAX_RARE_CHUNKS
        and not word.search_word.forms[0].isalpha()
    ]
    return min(chunk_sets, key=len, default=frozenset())


def _select_best_chunks(weights: Mapping[int, float], max_chunks: int) -> list[int]:
    """Return the chunks with the most weight, the heaviest first; of equally heavy ones the newest first."""
    newest_first = sorted(weights, reverse=True)
    return sorted(newest_first, key=weights.__getitem__, reverse=True)[:max_chunks]


def _drop_weak_chunks(weights: Mapping[int, float]) -> list[int]:
    """Return the chunks with at least `MIN_SHARE_OF_BEST` of the largest weight, the best first."""
    min_weight = MIN_SHARE_OF_BEST * max(weights.values(), default=0.0)
    strong_weights = {
        chunk: weight for chunk, weight in weights.items() if weight >= min_weight
    }
    return _select_best_chunks(strong_weights, len(strong_weights))


def _vary_chunks(
    ordered: Sequence[int], words: Sequence[RecallWord], max_chunks: int
) -> list[int]:
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
        (varied_chunks if counts[held] <= max_chunks // 4 else other_chunks).append(
            chunk_id
        )
        if len(varied_chunks) == max_chunks:
            break
    return [*varied_chunks, *other_chunks][:max_chunks]


def _load_with_neighbours(
    tx: Tx,
    scope: IndexQuery,
    weights: Mapping[int, float],
    best_ids: Sequence[int],
    certain_ids: Collection[int],
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> list[StoredChunk]:
    """Load the best chunks and their neighbours, sorted by thread and id."""
    chunk_summaries = load_chunk_summaries(tx, best_ids, scope.where, scope.values)
    best_chunks = _keep_best(
        chunk_summaries, weights, certain_ids, words, question=question, query=query
    )
    ids = _find_neighbours(tx, best_chunks).union(chunk.id for chunk in best_chunks)
    return sorted(
        load_chunks(tx, sorted(ids), scope.where, scope.values),
        key=lambda chunk: (chunk.thread, chunk.id),
    )


def _keep_best(
    chunks: Sequence[ChunkSummary],
    weights: Mapping[int, float],
    certain_ids: Iterable[int],
    words: Sequence[RecallWord],
    question: Question,
    query: RecallQuery,
) -> list[ChunkSummary]:
    """Return the certain chunks and those with the best scores by their words; for a page also by words and roles."""
    ordered_chunks = sorted(chunks, key=lambda chunk: (chunk.thread, chunk.id))
    conversation_numbers = list(_number_conversations(ordered_chunks))
    own_scores = [
        weights[chunk.id] / length_penalty(chunk.length) for chunk in ordered_chunks
    ]
    rankings = [own_scores]
    if query.for_page:
        rankings.append(
            [
                score * _get_role_weight(chunk)
                for chunk, score in zip(ordered_chunks, own_scores, strict=True)
            ]
        )
    kept_ids = set(certain_ids)
    for scores in rankings:
        final_scores = _estimate_scores(ordered_chunks, scores, conversation_numbers)
        for chunk_id in _find_chunks_of_day(ordered_chunks, question):
            final_scores[chunk_id] += DAY_SCORE
        kept_ids.update(
            _vary_chunks(_drop_weak_chunks(final_scores), words, MAX_SCORED_CHUNKS)
        )
    return [chunk for chunk in ordered_chunks if chunk.id in kept_ids]


def _estimate_scores(
    chunks: Sequence[ChunkSummary],
    own_scores: Sequence[float],
    conversation_numbers: Sequence[int],
) -> dict[int, float]:
    """Estimate the scores that chunks will have with their neighbours, which are not loaded yet.

    If one word decides, hundreds of chunks hold the same words. They are ranked by length, neighbours and conversation,
    not by age.
    """
    message_scores: dict[int | None, float] = {}
    for chunk, score in zip(chunks, own_scores, strict=True):
        if score > message_scores.get(chunk.message, 0.0):
            message_scores[chunk.message] = score
    neighbour_scores = _sum_neighbour_scores(message_scores)
    conversation_scores = rate_conversations(own_scores, conversation_numbers)
    return {
        chunk.id: score
        + neighbour_scores.get(chunk.message, 0.0)
        + conversation_scores[conversation]
        for chunk, score, conversation in zip(
            chunks, own_scores, conversation_numbers, strict=True
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


def _find_neighbours(tx: Tx, chunks: Sequence[ChunkSummary]) -> set[int]:
    """Return the ids of the first chunks of the nearest texts in the same threads.

    Messages of one turn mostly have consecutive ids, so these ids are read first. Neighbours are searched for only if
    another thread wrote in between, or if the thread begins or ends there.
    """
    texts = {chunk.message: chunk for chunk in chunks if chunk.message is not None}
    steps = range(1, NEIGHBOURS_PER_SIDE + 1)
    nearby_ids = sorted(
        {
            message + side * step
            for message in texts
            for side in _NEIGHBOUR_CONDITIONS
            for step in steps
        }
    )
    select_first_chunks = "SELECT message_id, thread_id, id FROM piece_details WHERE message_id IN ({}) AND start = 0"
    thread_and_chunk_by_message: dict[int, tuple[str, int]] = {
        row[0]: row[1:] for row in tx.all_for_keys(select_first_chunks, nearby_ids)
    }
    neighbours: set[int] = set()
    neighbour_queries: list[SqlQuery] = []
    for chunk in [
        *texts.values(),
        *(chunk for chunk in chunks if chunk.message is None),
    ]:
        for side, condition in _NEIGHBOUR_CONDITIONS.items():
            nearby_chunks = [
                thread_and_chunk_by_message.get((chunk.message or 0) + side * step)
                for step in steps
            ]
            same_thread_ids = [
                other[1]
                for other in nearby_chunks
                if other is not None and other[0] == chunk.thread
            ]
            if (
                chunk.message is not None
                and len(same_thread_ids) == NEIGHBOURS_PER_SIDE
            ):
                neighbours.update(same_thread_ids)
            else:
                sql = (
                    f"SELECT id FROM pieces WHERE thread = ({THREAD_NUMBERS.format('?')}) "
                    f"AND {condition} LIMIT {NEIGHBOURS_PER_SIDE}"
                )
                neighbour_queries.append((sql, (chunk.thread, chunk.id)))
    neighbours.update(
        row[0]
        for rows in (tx.all_of_each(neighbour_queries) if neighbour_queries else ())
        for row in rows
    )
    return neighbours


def _score_words(chunk: StoredChunk, words: Sequence[RecallWord]) -> WordScores:
    """Return the score of each word in a chunk. A chunk with only a phrase of the question gets a small score."""
    penalty = length_penalty(chunk.length)
    scores = {
        number: word.weight / penalty
        for number, word in enumerate(words)
        if chunk.id in word.chunks or chunk.id in word.user_chunks
    }
    return scores or {len(words): PHRASE_ONLY_WEIGHT}


def _scale_scores(scores: WordScores, factor: float) -> WordScores:
    return {number: factor * score for number, score in scores.items()}


def _group_texts(chunks: Sequence[StoredChunk]) -> list[list[StoredChunk]]:
    """Group the chunks by the text they are part of."""
    return [
        list(group)
        for _, group in itertools.groupby(chunks, key=lambda chunk: chunk.text_key)
    ]


def _score_with_neighbours(
    texts: Sequence[Sequence[StoredChunk]],
    word_scores: Mapping[int, WordScores],
    day_chunks: Collection[int],
) -> dict[int, float]:
    """Return the score of each chunk: the sum for its words, its neighbours' words, its conversation and its day."""
    conversation_numbers = list(_number_conversations(text[0] for text in texts))
    text_scores = [_find_best_scores(text, word_scores) for text in texts]
    neighbour_scores = borrow_words(text_scores, conversation_numbers)
    conversation_scores = rate_conversations(
        [_sum_scores(scores) for scores in text_scores], conversation_numbers
    )
    return {
        chunk.id: _sum_with_others(word_scores.get(chunk.id, {}), other_scores)
        + conversation_scores[conversation]
        + DAY_SCORE * (chunk.id in day_chunks)
        for text, other_scores, conversation in zip(
            texts, neighbour_scores, conversation_numbers, strict=True
        )
        for chunk in text
    }


def _find_best_scores(
    text: Sequence[StoredChunk], word_scores: Mapping[int, WordScores]
) -> WordScores:
    """Return the word scores of the best chunk of a text."""
    if len(text) == 1:
        return word_scores.get(text[0].id, {})
    return max((word_scores.get(chunk.id, {}) for chunk in text), key=_sum_scores)


def _sum_scores(scores: WordScores) -> float:
    return sum(scores.values())


def _sum_with_others(own_scores: WordScores, other_scores: WordScores) -> float:
    """Return the sum of a chunk's own scores and others; of a word in both, count only the higher score."""
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
    chunks: Iterable[StoredChunk | ChunkSummary],
) -> Iterator[int]:
    """Yield a number for each chunk: the same for neighbours in one thread without a long silence between them."""
    number = 0
    thread = ""
    last_time = 0.0
    for chunk in chunks:
        if chunk.thread != thread or abs(chunk.created - last_time) > SILENCE_SECONDS:
            number += 1
        thread = chunk.thread
        last_time = chunk.created
        yield number


def _may_be_shown(chunk: StoredChunk, query: RecallQuery) -> bool:
    """Return whether a chunk may be shown: not in the context, not a lookup, and of the query's role and tool."""
    if chunk.message in query.visible_messages or (
        chunk.tool and _has_lookup(chunk.tool)
    ):
        return False
    if query.speech_only and (chunk.tool or chunk.role == "tool"):
        return False
    if query.tool is not None and query.tool not in chunk.tool.split(","):
        return False
    return query.role in (None, chunk.role)


@functools.lru_cache(maxsize=1024)
def _has_lookup(tool_names: str) -> bool:
    return any(map(is_lookup_tool, tool_names.split(",")))


def _rank_candidates(
    chunks: Iterable[StoredChunk], scores: Mapping[int, float]
) -> list[StoredChunk]:
    """Return the candidates with a score, the best first, and of each text only the best chunk."""
    scored_chunks = [chunk for chunk in chunks if scores[chunk.id] > 0]
    scored_chunks.sort(key=lambda chunk: (scores[chunk.id], chunk.id), reverse=True)
    best_by_text: dict[TextKey, StoredChunk] = {}
    for chunk in scored_chunks:
        best_by_text.setdefault(chunk.text_key, chunk)
    return list(best_by_text.values())


def _interleave_rankings(
    rankings: Sequence[Iterable[StoredChunk]],
) -> list[StoredChunk]:
    """Merge rankings: take the best remaining candidate of each ranking in turn."""
    waiting_rankings = [iter(ranking) for ranking in rankings]
    chosen_chunks: dict[int, StoredChunk] = {}
    while waiting_rankings:
        ranking = waiting_rankings.pop(0)
        for chunk in ranking:
            if chunk.id not in chosen_chunks:
                chosen_chunks[chunk.id] = chunk
                waiting_rankings.append(ranking)
                break
    return list(chosen_chunks.values())


def _find_exchanges(chunks: Iterable[StoredChunk]) -> list[CallChunks]:
    """Return the calls with their results among ordered chunks. A call and its results have consecutive message ids."""
    exchanges = [CallChunks()]
    last_message = -1
    for chunk in chunks:
        follows = chunk.message is not None and chunk.message - last_message in (0, 1)
        last_message = chunk.message if chunk.message is not None else -1
        if not follows or not (
            chunk.is_result or (chunk.role == "assistant" and not exchanges[-1].results)
        ):
            exchanges.append(CallChunks())
        if chunk.is_result:
            exchanges[-1].results.append(chunk)
        elif chunk.role == "assistant":
            exchanges[-1].calls.append(chunk)
        else:
            last_message = -1
    return [exchange for exchange in exchanges if exchange.calls and exchange.results]
