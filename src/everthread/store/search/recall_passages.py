"""Recall stored texts and results that may answer a message, the best first.

Each word of the message is looked up on its own, in all its forms. The best chunks and their neighbours are ranked
by the index and a few columns; only the texts that are shown are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from everthread.core.equal_shares import find_largest_equal_share
from everthread.core.search.query import Question
from everthread.core.secrets.redaction import redact_part
from everthread.store.database import Tx
from everthread.store.search.recall_candidates import RecallSearch
from everthread.store.search.recall_ranking import RecallRanking, rank_chunks
from everthread.store.search.recall_words import RecallWord, look_up_words
from everthread.store.search.search_scope import make_search_scope
from everthread.store.search.snippets import (
    SECRET_MARGIN,
    find_richest_position,
    find_sentence_start,
)
from everthread.store.search.stored_chunks import (
    StoredChunk,
    load_chunks,
    read_chunk_texts,
)
from everthread.store.search_records import RecallPassage, RecallQuery, SearchQuery


def recall_passages(tx: Tx, query: RecallQuery, question: Question) -> list[RecallPassage]:
    bounds = SearchQuery(
        "",
        tenant=query.tenant,
        thread=query.thread,
        include_family=query.include_family,
    )
    scope = make_search_scope(tx, bounds) if question.search_words else None
    if scope is None or query.limit <= 0:
        return []
    if query.thread is not None:  # it is the tenant's: `search_scope` checks that
        scope = replace(scope, filter_terms=scope.filter_terms[1:])
    counted_thread = None if query.include_family else query.thread
    words = look_up_words(tx, scope, question.search_words, counted_thread, by_role=query.for_page)
    ranking = rank_chunks(tx, RecallSearch(query, question, scope, words))
    return _make_passages(tx, ranking, words, query)


MIN_SHARED_WORD_SHARE = 0.6
MIN_CONTAINED_WORD_SHARE = 0.9
"""A text repeats another if they share `MIN_SHARED_WORD_SHARE` of all their words, or if the other one holds
`MIN_CONTAINED_WORD_SHARE` of its words. Words of the question do not count."""
MIN_CONTAINED_TEXT_WORDS = 8
"""Minimum words of a text to which `MIN_CONTAINED_WORD_SHARE` applies."""
PREVIEW_CHARS = 200
"""Characters of a call or result that is shown only because it belongs to a better passage."""
MAX_SIMILAR_TEXTS = 2
"""Maximum texts to preview below a passage that they nearly repeat: the name or figure in which they differ may be the
answer."""
_WORD_PATTERN = re.compile(r"\w+")
WordsByChunk = Mapping[int, Sequence[RecallWord]]
"""The words of the question that each chunk holds."""


@dataclass(slots=True)
class _PassageContent:
    """A passage to show: one text, or a call with its result."""

    best_chunk: StoredChunk
    """The better part."""
    parts: dict[StoredChunk, str]
    """The parts with their texts. Ordered by id, a call comes before its result."""
    distinct_words: frozenset[str] = frozenset()
    """The words of the shown part, without those of the question."""
    previewed_chunk: StoredChunk | None = None
    """The part of which only a preview is shown."""
    similar: dict[StoredChunk, str] = field(default_factory=dict)
    """Texts that nearly repeat the passage."""


def _make_passages(
    tx: Tx,
    ranking: RecallRanking,
    words: Sequence[RecallWord],
    query: RecallQuery,
) -> list[RecallPassage]:
    words_by_chunk = _group_words_by_chunk(ranking, words)
    if query.for_page:
        contents = _choose_contents(tx, ranking, words_by_chunk, query)
        sizes = [len(text) for content in contents for text in content.parts.values()]
        max_chars = find_largest_equal_share(sizes, query.limit * query.max_chars)
        _add_partners(tx, contents, ranking, words_by_chunk)
    else:
        best_chunks = ranking.ranked[: query.limit]
        texts = read_chunk_texts(tx, best_chunks)
        contents = [
            _PassageContent(chunk, {chunk: text})
            for chunk, text in zip(best_chunks, texts, strict=True)
        ]
        max_chars = query.max_chars
    turns = _number_turns(tx, [content.best_chunk for content in contents])
    return [
        _make_passage(
            content,
            ranking,
            turn=turns[content.best_chunk.id],
            text=_render_passage(content, words_by_chunk, max_chars),
        )
        for content in contents
    ]


def _group_words_by_chunk(
    ranking: RecallRanking, words: Sequence[RecallWord]
) -> dict[int, list[RecallWord]]:
    """Return the words of the question in each ranked chunk and in each result of a call."""
    chunks = (
        *ranking.ranked,
        *(chunk for exchange in ranking.exchanges for chunk in exchange.results),
    )
    words_by_chunk: dict[int, list[RecallWord]] = {chunk.id: [] for chunk in chunks}
    for word in words:
        for chunk_id in word.chunks & words_by_chunk.keys():
            words_by_chunk[chunk_id].append(word)
    return words_by_chunk


def _render_passage(content: _PassageContent, words_by_chunk: WordsByChunk, max_chars: int) -> str:
    """Return the text of a passage: its parts, then previews of the similar texts that differ."""
    excerpts = []
    for part, text in sorted(content.parts.items()):
        if part == content.previewed_chunk:
            excerpts.append(_make_preview(text, part, words_by_chunk.get(part.id, ())))
        else:
            excerpts.append(_make_excerpt(text, part, words_by_chunk[part.id], max_chars))
    excerpt = "\n→ ".join(excerpts)
    previews = [
        _make_preview(text, part, words_by_chunk.get(part.id, ()))
        for part, text in content.similar.items()
    ]
    distinct_previews = [preview for preview in previews if preview.strip("…") not in excerpt]
    return excerpt + "".join(f"\n≈ {preview}" for preview in distinct_previews)


def _make_passage(
    content: _PassageContent, ranking: RecallRanking, *, turn: int, text: str
) -> RecallPassage:
    chunk = content.best_chunk
    answered_share = max(ranking.closeness.get(part.id, 0.0) for part in content.parts)
    return RecallPassage(
        message=chunk.message_id,
        output=chunk.output_id,
        thread=chunk.thread_id,
        role=chunk.role,
        tool=chunk.tool,
        turn=turn,
        created=chunk.created,
        text=text,
        score=round(ranking.scores[chunk.id], 4),
        closeness=round(answered_share, 4),
    )


def _choose_contents(
    tx: Tx, ranking: RecallRanking, words_by_chunk: WordsByChunk, query: RecallQuery
) -> list[_PassageContent]:
    """Return the best texts, up to the query's limit, leaving out texts that repeat a better one."""
    exchange_numbers = {
        chunk.id: number
        for number, exchange in enumerate(ranking.exchanges)
        for chunk in (*exchange.calls, *exchange.results)
    }
    contents: list[_PassageContent] = []
    open_exchanges: dict[tuple[int | None, bool], _PassageContent] = {}
    for start in range(0, len(ranking.ranked), query.limit):
        batch = ranking.ranked[start : start + query.limit]
        for chunk, text in zip(batch, read_chunk_texts(tx, batch), strict=True):
            words = words_by_chunk[chunk.id]
            number = exchange_numbers.get(chunk.id)
            is_call = chunk.role == "assistant"
            partner = open_exchanges.get((number, is_call)) if number is not None else None
            if partner is not None:
                if words:  # else it is shown as a preview
                    partner.parts[chunk] = text
                    del open_exchanges[number, is_call]
                continue
            span = _find_excerpt_span(text, words, query.max_chars)
            distinct_words = _list_distinct_words(text[slice(*span)], words)
            similar_content = _find_similar(contents, distinct_words)
            if similar_content is not None:
                if len(similar_content.similar) < MAX_SIMILAR_TEXTS:
                    similar_content.similar[chunk] = text
                continue
            if len(contents) == query.limit:
                return contents
            contents.append(_PassageContent(chunk, {chunk: text}, distinct_words))
            open_exchanges.setdefault((number, not is_call), contents[-1])
    return contents


def _find_similar(
    contents: Sequence[_PassageContent], distinct_words: frozenset[str]
) -> _PassageContent | None:
    """Return the first passage that a text with these words repeats."""
    for content in contents:
        if _is_repeated(distinct_words, content.distinct_words):
            return content
    return None


def _add_partners(
    tx: Tx,
    contents: Sequence[_PassageContent],
    ranking: RecallRanking,
    words_by_chunk: WordsByChunk,
) -> None:
    """Add the result to each call that is shown alone, and the call to each result: people need both together."""
    single_contents = {
        content.best_chunk.id: content for content in contents if len(content.parts) == 1
    }
    contents_by_partner: dict[StoredChunk, _PassageContent] = {}
    for exchange in ranking.exchanges:
        call_content = next(
            (single_contents[chunk.id] for chunk in exchange.calls if chunk.id in single_contents),
            None,
        )
        result_content = next(
            (
                single_contents[chunk.id]
                for chunk in exchange.results
                if chunk.id in single_contents
            ),
            None,
        )
        if call_content is not None:
            best_result = max(exchange.results, key=lambda chunk: ranking.scores.get(chunk.id, 0.0))
            if not words_by_chunk[best_result.id]:  # the outcome is at the end
                last_id = tx.value(
                    "SELECT MAX(id) FROM chunks WHERE message_id = ?",
                    (best_result.message_id,),
                )
                [best_result] = load_chunks(tx, [last_id])
            contents_by_partner[best_result] = call_content
        elif result_content is not None:
            contents_by_partner[exchange.calls[-1]] = result_content
    for partner, text in zip(
        contents_by_partner,
        read_chunk_texts(tx, list(contents_by_partner)),
        strict=True,
    ):
        contents_by_partner[partner].parts[partner] = text
        contents_by_partner[partner].previewed_chunk = partner


def _is_repeated(words: frozenset[str], other_words: frozenset[str]) -> bool:
    """Return whether a text repeats another, by their words. Their sizes alone may exclude it, which costs less."""
    size = len(words)
    min_contained = (
        MIN_CONTAINED_WORD_SHARE * size if size >= MIN_CONTAINED_TEXT_WORDS else math.inf
    )
    smaller_size = min(size, len(other_words))
    larger_size = max(size, len(other_words))
    if smaller_size < min_contained and smaller_size < MIN_SHARED_WORD_SHARE * larger_size:
        return False
    shared_count = len(words & other_words)
    return shared_count >= min_contained or shared_count >= MIN_SHARED_WORD_SHARE * (
        smaller_size + larger_size - shared_count
    )


def _list_distinct_words(text: str, question_words: Sequence[RecallWord]) -> frozenset[str]:
    """Return the words of a text, without those of the question."""
    question_forms = {form for word in question_words for form in word.search_word.forms}
    return frozenset(_WORD_PATTERN.findall(text.casefold())) - question_forms


def _make_excerpt(
    text: str, chunk: StoredChunk, words: Sequence[RecallWord], max_chars: int
) -> str:
    """Return a short text in full, or the part of a longer text with the most words of the question."""
    return _redact_and_mark_cuts(text, chunk, *_find_excerpt_span(text, words, max_chars))


def _find_excerpt_span(text: str, words: Sequence[RecallWord], max_chars: int) -> tuple[int, int]:
    if len(text) <= max_chars * 5 // 4:
        return 0, len(text)
    position = find_richest_position(
        text, [word.search_word.forms for word in words], max_chars * 3 // 4
    )
    start = find_sentence_start(text, max(0, min(position - max_chars // 4, len(text) - max_chars)))
    is_cut = len(text) - start > max_chars * 5 // 4
    return start, start + max_chars if is_cut else len(text)


def _make_preview(text: str, chunk: StoredChunk, words: Sequence[RecallWord]) -> str:
    """Return the text around the words of the question; without any, the beginning of a call or the end of a result."""
    if words:
        return _make_excerpt(text, chunk, words, PREVIEW_CHARS)
    if chunk.role == "assistant":
        return _redact_and_mark_cuts(text, chunk, 0, PREVIEW_CHARS)
    return _redact_and_mark_cuts(
        text,
        chunk,
        find_sentence_start(text, max(0, len(text) - PREVIEW_CHARS)),
        len(text),
    )


def _redact_and_mark_cuts(text: str, chunk: StoredChunk, start: int, end: int) -> str:
    excerpt = redact_part(text, start, end, margin=SECRET_MARGIN).strip()
    # Show arguments of a call without JSON's escapes.
    if chunk.role == "assistant" and chunk.tool:
        excerpt = excerpt.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    return ("…" if start or chunk.start else "") + excerpt + ("…" if end < len(text) else "")


# A branch continues the count of its parent.
_COUNT_TURNS = (
    "(SELECT COUNT(*) FROM messages u WHERE u.thread_id = s.id AND u.opens_turn = 1 AND {0}) + "
    "CASE WHEN s.kind = 'branch' THEN (SELECT COUNT(*) FROM places p JOIN messages u ON u.id = p.message_id "
    "WHERE p.session_id = s.id AND u.thread_id <> s.id AND u.opens_turn = 1 AND {0}) ELSE 0 END"
)
_SELECT_TURNS_OF_MESSAGES = (
    f"SELECT m.id, {_COUNT_TURNS.format('u.id <= m.id')} FROM messages m JOIN sessions s ON s.id = m.thread_id "
    "WHERE m.id IN ({})"
)
_SELECT_TURN_AT_TIME = (
    f"SELECT {_COUNT_TURNS.format('u.created <= ?')} FROM sessions s WHERE s.id = ?"
)


def _number_turns(tx: Tx, chunks: Sequence[StoredChunk]) -> dict[int, int]:
    """Return the turn of each chunk by its id; 0 before the first turn. For an output, its time decides."""
    messages = [chunk.message_id for chunk in chunks if chunk.message_id is not None]
    turns_by_message: dict[int, int] = dict(tx.all_for_keys(_SELECT_TURNS_OF_MESSAGES, messages))
    turns = {}
    for chunk in chunks:
        if chunk.message_id is not None:
            turns[chunk.id] = turns_by_message.get(chunk.message_id, 0)
        else:
            values = (chunk.created, chunk.created, chunk.thread_id)
            turns[chunk.id] = int(tx.value(_SELECT_TURN_AT_TIME, values) or 0)
    return turns
