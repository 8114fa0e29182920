"""Search for words, phrases, identifiers and Chinese, Japanese or Korean characters in messages and outputs."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from everthread.store.database import Tx
from everthread.store.search.index_query import (
    IndexMatch,
    IndexQuery,
    ParsedQuery,
    QueryPhrase,
    parse_query,
)
from everthread.store.search.search_scope import (
    find_path_calls,
    make_search_scope,
    touches_path,
)
from everthread.store.search.snippets import make_snippet
from everthread.store.search.stored_chunks import (
    StoredChunk,
    TextKey,
    load_chunks,
    read_chunk_texts,
)
from everthread.store.search.text_chunks import PART_OF_LONG_TEXT, make_filter_term
from everthread.store.search_records import RecallPassage, SearchHit, SearchQuery
from everthread.store.sql.stored_messages import ORIGINAL_PLACE_FIRST

MATCHES_PER_BATCH = 500
"""Matches to rank at a time, the newest first: a very frequent word finds recent texts first."""
RARITY_SAMPLE_CHUNKS = 1_000
"""The newest chunks in which the rarity of a term is measured."""
MAX_COMBINED_CHUNKS = 2_000
"""If no chunk has all words, combine at most this many chunks of long texts for each word, the newest."""
MAX_COMBINED_THREADS = 50
"""Maximum threads to name in one query."""
TYPICAL_TEXT_CHARS = 400
"""Typical length of a text. A match in a longer text scores lower."""
ScoredChunk = tuple[float, StoredChunk]
"""The score of a chunk, and the chunk."""


def search_texts(tx: Tx, query: SearchQuery) -> list[SearchHit]:
    """Return messages and outputs that hold every word, phrase and prefix of the query, the best first."""
    parsed = parse_query(query.text)
    scope = make_search_scope(tx, query)
    first_rank = max(query.offset, 0)
    end_rank = max(query.offset, 0) + max(query.limit, 0)
    if scope is None or not parsed.variants or first_rank == end_rank:
        return []
    matches: dict[TextKey, ScoredChunk] = {}
    path_calls = find_path_calls(tx, query, query.path) if query.path else set()
    for score, chunk in _match_variants(tx, parsed, scope):
        if chunk.message_id in query.visible_messages:
            continue
        if query.path and not touches_path(tx, chunk, query.path, path_calls):
            continue
        # Keep the first match of a text, so that pages of any length agree.
        matches.setdefault(chunk.text_key, (score, chunk))
        if len(matches) == end_rank:
            break
    return _make_hits(tx, list(matches.values())[first_rank:], parsed, query.session)


def _match_variants(tx: Tx, parsed: ParsedQuery, scope: IndexQuery) -> Iterator[ScoredChunk]:
    """Yield matches, those of the strictest variant first. Read only as many as the caller takes."""
    sample = _PhraseSample(tx, scope)
    for variant_number, phrases in enumerate(parsed.variants):
        index_query = replace(scope, phrases=phrases)
        weights: list[float] = []
        while candidates := tx.match(index_query, MATCHES_PER_BATCH):
            weights = weights or _compute_term_weights(sample, index_query.ranking_terms)
            yield from _rank_chunks(
                tx, candidates, weights, bonus=len(parsed.variants) - variant_number
            )
            if len(candidates) < MATCHES_PER_BATCH:
                break
            index_query = replace(index_query, end_id=candidates[-1].id)
    if len(parsed.variants[-1]) > 1:
        yield from _match_across_chunks(tx, replace(scope, phrases=parsed.variants[-1]), sample)


class _PhraseSample:
    """A counter of the newest chunks that hold a phrase, each phrase once."""

    def __init__(self, tx: Tx, scope: IndexQuery) -> None:
        self._tx = tx
        self._tenant_filter = scope.filter_terms[:1]
        self._counts: dict[QueryPhrase, int] = {}

    def count(self, phrase: QueryPhrase) -> int:
        if phrase not in self._counts:
            index_query = IndexQuery((phrase,), self._tenant_filter, self._oldest_sampled_id)
            self._counts[phrase] = len(self._tx.match_ids(index_query, RARITY_SAMPLE_CHUNKS))
        return self._counts[phrase]

    @functools.cached_property
    def _oldest_sampled_id(self) -> int:
        return (self._tx.value("SELECT MAX(id) FROM chunks") or 0) - RARITY_SAMPLE_CHUNKS + 1


def _compute_term_weights(sample: _PhraseSample, terms: Sequence[str]) -> list[float]:
    """Return the weight of each ranking term: the rarer, the higher. The weights add up to 1."""
    if len(terms) < 2:
        return [1.0] * len(terms)
    weights = [
        math.log(1 + RARITY_SAMPLE_CHUNKS / (1 + sample.count(QueryPhrase((term,)))))
        for term in terms
    ]
    return [weight / sum(weights) for weight in weights]


def _rank_chunks(
    tx: Tx, candidates: Sequence[IndexMatch], weights: Sequence[float], *, bonus: float
) -> list[ScoredChunk]:
    """Return the chunks, the best first; among equals, the newest first, and in one text the earliest."""
    weights_by_chunk = {
        candidate.id: sum(map(operator.mul, weights, candidate.strengths)) if weights else 1.0
        for candidate in candidates
    }

    def score(chunk: StoredChunk) -> float:
        dilution = 1 + math.log2(1 + chunk.length / TYPICAL_TEXT_CHARS) / 4
        return round(bonus + weights_by_chunk[chunk.id] / dilution, 2)

    def best_first(scored_chunk: ScoredChunk) -> tuple[Any, ...]:
        chunk = scored_chunk[1]
        return (
            -scored_chunk[0],
            -chunk.created,
            -(chunk.message_id or 0),
            chunk.output_id or "",
            chunk.start,
            -chunk.id,
        )

    return sorted(
        ((score(chunk), chunk) for chunk in load_chunks(tx, list(weights_by_chunk))),
        key=best_first,
    )


def _match_across_chunks(
    tx: Tx, index_query: IndexQuery, sample: _PhraseSample
) -> list[ScoredChunk]:
    """Return long texts that have every phrase although no single chunk has; the newest first.

    The rarest phrase is looked up first. If few threads have it, the others are looked up only in these threads.
    """
    texts: dict[TextKey, StoredChunk] = {}
    for number, phrase in enumerate(sorted(index_query.phrases, key=sample.count)):
        threads = sorted({chunk.thread_id for chunk in texts.values()})
        filter_terms = [*index_query.filter_terms, (PART_OF_LONG_TEXT,)]
        if 0 < len(threads) <= MAX_COMBINED_THREADS:
            filter_terms.append(tuple(make_filter_term("thread", thread) for thread in threads))
        phrase_query = replace(index_query, phrases=(phrase,), filter_terms=tuple(filter_terms))
        chunks = load_chunks(tx, tx.match_ids(phrase_query, MAX_COMBINED_CHUNKS))
        phrase_texts = {chunk.text_key: chunk for chunk in sorted(chunks, reverse=True)}
        if number == 0:
            texts = phrase_texts
        for text in texts.keys() - phrase_texts.keys():
            del texts[text]
        if not texts:
            break
    return [
        (0.0, chunk)
        for chunk in sorted(texts.values(), key=lambda chunk: (-chunk.created, -chunk.id))
    ]


def _make_hits(
    tx: Tx, matches: Sequence[ScoredChunk], parsed: ParsedQuery, session_id: str | None
) -> list[SearchHit]:
    sessions_by_message = _find_original_sessions(tx, [chunk.message_id for _, chunk in matches])
    hits = []
    for (score, chunk), text in zip(
        matches, read_chunk_texts(tx, [chunk for _, chunk in matches]), strict=True
    ):
        original_session, thread = sessions_by_message.get(
            chunk.message_id, (chunk.thread_id, chunk.thread_id)
        )
        snippet = make_snippet(text, parsed.highlighted, is_continued=chunk.start > 0)
        hits.append(
            SearchHit(
                message=chunk.message_id,
                output=chunk.output_id,
                thread=thread,
                session=session_id or original_session,
                role=chunk.role,
                tool=chunk.tool,
                created=chunk.created,
                snippet=snippet,
                score=score,
            )
        )
    return hits


def _find_original_sessions(
    tx: Tx, messages: Sequence[int | None]
) -> dict[int | None, tuple[str, str]]:
    """Return the session in which each message was said, and its thread."""
    rows = tx.all_for_keys(
        "SELECT m.id, s.id, s.thread_id FROM messages m JOIN places p ON p.message_id = m.id "
        f"JOIN sessions s ON s.id = p.session_id WHERE m.id IN ({{}}) ORDER BY {ORIGINAL_PLACE_FIRST}",
        [message for message in messages if message is not None],
    )
    return {message: (session, thread) for message, session, thread in reversed(rows)}


def make_hits_of_passages(tx: Tx, results: Sequence[SearchHit | RecallPassage]) -> list[SearchHit]:
    """Return the hits, and the passages as hits in the sessions in which they were said."""
    passages = [result for result in results if isinstance(result, RecallPassage)]
    sessions_by_message = _find_original_sessions(tx, [passage.message for passage in passages])
    hits = []
    for result in results:
        if isinstance(result, SearchHit):
            hits.append(result)
            continue
        hit = SearchHit(
            message=result.message,
            output=result.output,
            thread=result.thread,
            session=sessions_by_message.get(result.message, (result.thread, ""))[0],
            role=result.role,
            tool=result.tool,
            created=result.created,
            snippet=result.text,
            score=result.score,
            is_passage=True,
        )
        hits.append(hit)
    return hits
