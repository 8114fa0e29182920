"""Score the chunks that may answer a question with their neighbours, and rank them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from everthread.core.lookup_tools import is_lookup_tool
from everthread.core.search.relevance import (
    DAY_SCORE,
    SPEAKER_BONUS,
    borrow_words,
    rate_closeness,
    rate_conversations,
    weigh_question,
)
from everthread.core.search.terms import list_query_terms
from everthread.store.database import Tx
from everthread.store.search.recall_candidates import (
    RecallSearch,
    WordScores,
    get_role_weight,
    load_candidates,
    number_conversations,
)
from everthread.store.search.recall_words import RecallWord
from everthread.store.search.stored_chunks import (
    StoredChunk,
    TextKey,
    read_chunk_texts,
)
from everthread.store.search_records import RecallQuery

MAX_EXEMPT_RANKS = 10
"""Number of best candidates that are exempt from `min_other_closeness`."""
DECIDING_RANKS = 10
"""At least one of this many best candidates must be close enough; otherwise there is no answer."""
MAX_SPEAKER_TEXTS = 40
"""How many of the best chunks are read to find out who speaks."""
MAX_SPEAKER_CHARS = 40
_SPEAKER_PATTERN = re.compile(r"([^\W\d_][\w .'-]*+):\s")


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


def rank_chunks(tx: Tx, search: RecallSearch) -> RecallRanking:
    """Load the chunks that may answer the question, score them with their neighbours, and rank them."""
    query = search.query
    candidates = load_candidates(tx, search)
    texts = [
        list(chunks)
        for _, chunks in itertools.groupby(candidates.chunks, key=lambda chunk: chunk.text_key)
    ]
    scores = _score_with_neighbours(texts, candidates.word_scores, candidates.day_chunks)
    speakers = _read_speakers(tx, candidates.chunks, scores)
    named_chunks = _find_chunks_of_named_speakers(speakers, search.words)
    scores = _add_speaker_bonus(scores, named_chunks)
    showable_chunks = [chunk for chunk in candidates.chunks if _may_be_shown(chunk, query)]
    ranking = _rank_candidates(showable_chunks, scores)
    if query.for_page:
        role_scores = scores
        if not speakers:  # if texts name their speakers, the role tells nothing
            role_word_scores = _weigh_roles(candidates.chunks, candidates.word_scores)
            role_scores = _add_speaker_bonus(
                _score_with_neighbours(texts, role_word_scores, candidates.day_chunks),
                named_chunks,
            )
        rare_chunks = [chunk for chunk in showable_chunks if chunk.id in candidates.rare_chunks]
        ranking = _interleave_rankings(
            [
                _rank_candidates(showable_chunks, role_scores),
                ranking,
                _rank_candidates(rare_chunks, scores),
            ]
        )
        ranking.sort(key=lambda chunk: -candidates.phrase_lengths.get(chunk.id, 0))
    closeness_by_chunk = _measure_closeness(ranking, search, candidates.day_chunks)
    closeness_by_chunk |= dict.fromkeys(
        closeness_by_chunk.keys() & candidates.phrase_lengths.keys(), 1.0
    )
    if max(islice(closeness_by_chunk.values(), DECIDING_RANKS), default=0.0) < query.min_closeness:
        return RecallRanking()
    ranking = [
        chunk
        for rank, chunk in enumerate(ranking)
        if rank < MAX_EXEMPT_RANKS or closeness_by_chunk[chunk.id] >= query.min_other_closeness
    ]
    exchanges = _find_exchanges(candidates.chunks) if query.for_page else ()
    return RecallRanking(ranking, scores, closeness_by_chunk, exchanges)


def _find_chunks_of_named_speakers(
    speakers: Mapping[int, str], words: Sequence[RecallWord]
) -> list[int]:
    """Return the chunks whose speakers the question names."""
    question_words = {word.search_word.forms[0] for word in words}
    return [
        chunk
        for chunk, speaker in speakers.items()
        if not question_words.isdisjoint(list_query_terms(speaker))
    ]


def _measure_closeness(
    chunks: Sequence[StoredChunk], search: RecallSearch, day_chunks: Collection[int]
) -> dict[int, float]:
    """Return the share of the question that each chunk holds, by the id of the chunk.

    Frequent words are ignored, except in a query for a page if no text holds one of the others.
    """
    counted_words = [word for word in search.words if word.is_distinguishing]
    if search.query.for_page and not any(word.chunks for word in counted_words):
        counted_words = list(search.words)
    held_weights = {chunk.id: 0.0 for chunk in chunks}
    for word in counted_words:
        # A chunk from a day that the question names need not mention the day.
        matching_chunks = (
            word.chunks if word.search_word.is_counted else word.chunks.union(day_chunks)
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
    best_chunks = sorted(beginnings, key=lambda chunk: -scores[chunk.id])[:MAX_SPEAKER_TEXTS]
    texts = zip(best_chunks, read_chunk_texts(tx, best_chunks), strict=True)
    speakers = {
        chunk.id: match[1].casefold()
        for chunk, text in texts
        if (match := _SPEAKER_PATTERN.match(text[:MAX_SPEAKER_CHARS])) is not None
    }
    is_chat = len(best_chunks) < 2 * len(speakers) >= 4 * len(set(speakers.values()))
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
    weighed_scores: dict[int, WordScores] = {}
    for chunk in chunks:
        if chunk.id in word_scores:
            weight = get_role_weight(chunk)
            scores = word_scores[chunk.id]
            weighed_scores[chunk.id] = {word: weight * score for word, score in scores.items()}
    return weighed_scores


def _score_with_neighbours(
    texts: Sequence[Sequence[StoredChunk]],
    word_scores: Mapping[int, WordScores],
    day_chunks: Collection[int],
) -> dict[int, float]:
    """Return the score of each chunk: the sum for its words, its neighbours' words, its conversation and its day."""
    conversation_numbers = list(number_conversations(text[0] for text in texts))
    text_scores = [_find_best_scores(text, word_scores) for text in texts]
    neighbour_scores = borrow_words(text_scores, conversation_numbers)
    conversation_scores = rate_conversations(
        [_sum_scores(scores) for scores in text_scores], conversation_numbers
    )
    return {
        chunk.id: _sum_higher_scores(word_scores.get(chunk.id, {}), other_scores)
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


def _sum_higher_scores(own_scores: WordScores, other_scores: WordScores) -> float:
    """Add up two sets of word scores. A word that is in both counts once, with its higher score."""
    if not own_scores:
        return _sum_scores(other_scores)
    if not other_scores:
        return _sum_scores(own_scores)
    increases = [
        max(0.0, score - own_scores.get(word, 0.0)) for word, score in other_scores.items()
    ]
    return _sum_scores(own_scores) + sum(increases)


def _may_be_shown(chunk: StoredChunk, query: RecallQuery) -> bool:
    """Return whether a chunk may be shown: not in the context, not a lookup, and of the query's role and tool."""
    if chunk.message_id in query.visible_messages or (chunk.tool and _has_lookup(chunk.tool)):
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
    """Return the candidates with a score, the best first, and only the best chunk of each text."""
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
        follows = chunk.message_id is not None and chunk.message_id - last_message in (0, 1)
        last_message = chunk.message_id if chunk.message_id is not None else -1
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
