"""Find a page of hits: the best answers to a question, then the texts that hold every word."""

from __future__ import annotations

import math
from dataclasses import replace

from everthread.core.search.query import read_question
from everthread.core.search.terms import list_query_terms
from everthread.store.database import Tx
from everthread.store.search.neighbours import find_neighbours
from everthread.store.search.recall_passages import recall_passages
from everthread.store.search.text_search import make_hits_of_passages, search_texts
from everthread.store.search_records import (
    HitPage,
    RecallPassage,
    RecallQuery,
    SearchHit,
    SearchQuery,
)

MAX_CLOSEST_TEXTS = 50
BEST_ANSWERS = 10
"""Number of best answers to a question that are listed before the texts with every word."""
MIN_CLOSENESS = 0.3
"""Minimum share of a short query that the closest text must hold; otherwise there are no hits."""
MIN_QUESTION_CLOSENESS = 1e-6
"""Minimum share of a question that the closest text must hold: any of its rare words, as answers use other words."""
MIN_ANSWER_CLOSENESS = 0.15
"""Minimum share of a question that each text after the best answers must hold."""


def find_page(tx: Tx, query: SearchQuery, now: float) -> HitPage:
    """Return a page of hits. The best answers to a question come first, then all texts that hold every word.

    If no text holds every word, the hits are the closest texts. All front ends search with this function.
    """
    end_rank = query.offset + query.limit
    best_passages: list[RecallPassage] = []
    exact_hits: list[SearchHit] = []
    is_recalled_first = query.is_question and end_rank < BEST_ANSWERS
    if is_recalled_first:
        best_passages = _find_closest(tx, query, BEST_ANSWERS, now=now)
    if len(best_passages) <= end_rank:
        exact_hits = search_texts(tx, replace(query, limit=end_rank + 1, offset=0))
    if not is_recalled_first and (query.is_question or not exact_hits):
        count = BEST_ANSWERS if exact_hits else max(BEST_ANSWERS, end_rank + 1)
        best_passages = _find_closest(tx, query, count, now=now)
    best_keys = {(passage.message, passage.output) for passage in best_passages}
    results: list[SearchHit | RecallPassage] = [*best_passages]
    results += (hit for hit in exact_hits if (hit.message, hit.output) not in best_keys)
    hits = make_hits_of_passages(tx, results[query.offset : end_rank])
    neighbours = find_neighbours(tx, [(hit.message, hit.snippet) for hit in hits])
    has_only_close_texts = not exact_hits and all(
        passage.closeness < 1 for passage in best_passages
    )
    return HitPage(
        tuple(
            replace(hit, before=before, after=after)
            for hit, (before, after) in zip(hits, neighbours, strict=True)
        ),
        has_more=len(results) > end_rank,
        is_approximate=bool(hits) and has_only_close_texts,
    )


def _find_closest(tx: Tx, query: SearchQuery, count: int, *, now: float) -> list[RecallPassage]:
    """Return up to `count` of the closest texts; none for a single word or a quoted query.

    For a question one of its rare words is enough; a text must hold more of a shorter query.
    """
    if query.is_literal or len(list_query_terms(query.text)) < 2 or query.session:
        return []
    # Ask for more texts if some may be outside the period.
    has_no_period = query.since is query.until is None
    recall_query = RecallQuery(
        query.text,
        query.tenant,
        query.thread,
        include_family=query.include_family,
        visible_messages=query.visible_messages,
        limit=count if has_no_period else min(2 * count, MAX_CLOSEST_TEXTS),
        min_closeness=MIN_QUESTION_CLOSENESS if query.is_question else MIN_CLOSENESS,
        min_other_closeness=MIN_ANSWER_CLOSENESS,
        role=query.role,
        tool=query.tool,
        for_page=True,
    )
    question = read_question(query.text, now, use_stop_words=True)
    since = query.since or 0
    until = query.until or math.inf
    # The answer to a question may hold none of its words, but follow a text that does.
    passages = [
        passage
        for passage in recall_passages(tx, recall_query, question)
        if since <= passage.created < until and (passage.closeness or query.is_sentence)
    ]
    # The best answers may hold little of the query; the others must hold more of it.
    other_passages = (
        passage for passage in passages[BEST_ANSWERS:] if passage.closeness >= MIN_ANSWER_CLOSENESS
    )
    return [*passages[:BEST_ANSWERS], *other_passages][:count]
