"""Look up the words of a question in the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everthread.core.search.indexed_terms import encode_term
from everthread.core.search.query import SearchWord
from everthread.core.search.relevance import compute_rarity, is_distinctive
from everthread.store.database import Tx, placeholders
from everthread.store.search.index_query import IndexQuery
from everthread.store.search.search_scope import list_source_threads
from everthread.store.search.text_chunks import make_filter_term
from everthread.store.sql.session_rows import SELECT_THREAD_NUMBERS

MAX_CHUNKS_PER_WORD = 1_000
"""Maximum chunks to read for a word, the newest: a more frequent word hardly distinguishes texts."""
MAX_LOOKED_UP_WORDS = 10
"""Maximum words to look up in all their forms, the rarest."""
MAX_CHUNKS_READ_FOR_ROLE = 300
"""Up to this many chunks of a word, their roles are read; beyond, the index is searched for users' chunks."""
COMMON_CHUNK_COUNT = 64
"""A word that this many chunks hold as typed is looked up last."""


@dataclass(frozen=True, slots=True)
class RecallWord:
    """A word of the question, its weight, and the chunks that hold it."""

    search_word: SearchWord
    weight: float
    chunks: frozenset[int]
    is_distinguishing: bool
    """Whether the word distinguishes texts: it is neither in most of them nor part of a date."""
    user_chunks: frozenset[int] = frozenset()
    """The chunks of users' messages that hold the word, or an empty list if the caller did not ask for them."""


def look_up_words(
    tx: Tx,
    scope: IndexQuery,
    search_words: Sequence[SearchWord],
    thread_id: str | None,
    *,
    by_role: bool,
) -> list[RecallWord]:
    """Return the words with the chunks that hold them. If there are many words, only the rarest are looked up.

    `by_role`: also look up the chunks of users' messages.
    """
    chunk_count = _count_chunks(tx, thread_id)
    chosen_words = search_words
    absent_words: Sequence[SearchWord] = ()
    if len(search_words) > MAX_LOOKED_UP_WORDS:
        chosen_words, absent_words = _pick_distinguishing_words(tx, scope, search_words)
    words = []
    for search_word in chosen_words:
        index_query = replace(scope, any_of=(_encode_forms(search_word),))
        newest_chunks = tx.match_ids(index_query, MAX_CHUNKS_PER_WORD)
        matching_count = len(newest_chunks)
        if thread_id is None and matching_count == MAX_CHUNKS_PER_WORD:
            matching_count = _estimate_matching_count(newest_chunks, chunk_count)
        is_distinguishing = search_word.is_counted and is_distinctive(matching_count, chunk_count)
        of_users = _find_user_chunks(tx, index_query, newest_chunks) if by_role else ()
        words.append(
            RecallWord(
                search_word,
                search_word.weight * compute_rarity(matching_count, chunk_count),
                frozenset(newest_chunks),
                is_distinguishing,
                frozenset(of_users),
            )
        )
    words = _add_older_chunks(tx, scope, words)
    max_rarity = compute_rarity(0, chunk_count)
    return words + [
        RecallWord(
            search_word,
            search_word.weight * max_rarity,
            frozenset(),
            search_word.is_counted,
        )
        for search_word in absent_words
    ]


def _find_user_chunks(
    tx: Tx, word_query: IndexQuery, newest_chunks: Sequence[int]
) -> Sequence[int]:
    """Return the newest chunks of users' messages that hold a word."""
    if len(newest_chunks) <= MAX_CHUNKS_READ_FOR_ROLE:
        select_user_chunks = "SELECT id FROM chunk_details WHERE id IN ({}) AND role = 'user'"
        return [row[0] for row in tx.all_for_keys(select_user_chunks, newest_chunks)]
    of_users = (make_filter_term("role", "user"),)
    index_query = replace(word_query, filter_terms=(*word_query.filter_terms, of_users))
    return tx.match_ids(index_query, MAX_CHUNKS_PER_WORD)


def _estimate_matching_count(newest_chunks: Sequence[int], chunk_count: int) -> int:
    """Estimate how many chunks hold a word from the newest that do, as if it were as frequent in older chunks."""
    newest_id_span = chunk_count - min(newest_chunks) + 1
    return max(len(newest_chunks), round(len(newest_chunks) * chunk_count / newest_id_span))


def _add_older_chunks(tx: Tx, scope: IndexQuery, words: Sequence[RecallWord]) -> list[RecallWord]:
    """Add to the frequent words older chunks that also hold other words of the question.

    Such a chunk holds one of the rarer words, all frequent words, or all frequent words but one.
    """
    frequent_words = [word for word in words if len(word.chunks) == MAX_CHUNKS_PER_WORD]
    rare_terms = tuple(
        term
        for word in words
        if 0 < len(word.chunks) < MAX_CHUNKS_PER_WORD
        for term in _encode_forms(word.search_word)
    )
    more_chunks: dict[int, set[int]] = {id(word): set() for word in frequent_words}

    def require_together(required: Sequence[RecallWord], *others: tuple[str, ...]) -> None:
        index_query = replace(
            scope,
            any_of=(*(_encode_forms(word.search_word) for word in required), *others),
        )
        chunks = tx.match_ids(index_query, MAX_CHUNKS_PER_WORD)
        for word in required:
            more_chunks[id(word)].update(chunks)

    for word in frequent_words if rare_terms else ():
        require_together([word], rare_terms)
    if len(frequent_words) > 1:
        require_together(frequent_words)
        for omitted_word in frequent_words if len(frequent_words) > 2 else ():
            require_together([word for word in frequent_words if word is not omitted_word])
    return [replace(word, chunks=word.chunks | more_chunks.get(id(word), set())) for word in words]


def _encode_forms(search_word: SearchWord) -> tuple[str, ...]:
    return tuple(map(encode_term, search_word.forms))


def _pick_distinguishing_words(
    tx: Tx, scope: IndexQuery, search_words: Sequence[SearchWord]
) -> tuple[list[SearchWord], Sequence[SearchWord]]:
    """Return the words to look up in all forms, and the other words that no chunk holds as typed."""
    counted_words: list[tuple[int, SearchWord]] = []
    for search_word in search_words:
        index_query = replace(scope, any_of=((encode_term(search_word.forms[0]),),))
        counted_words.append((len(tx.match_ids(index_query, COMMON_CHUNK_COUNT)), search_word))
    rare_words = sorted(
        (pair for pair in counted_words if 0 < pair[0] < COMMON_CHUNK_COUNT),
        key=lambda pair: pair[0],
    )
    absent_words = [search_word for count, search_word in counted_words if count == 0]
    ordered_words = [
        *(search_word for _, search_word in rare_words),
        *absent_words,
        *(search_word for count, search_word in counted_words if count == COMMON_CHUNK_COUNT),
    ]
    return ordered_words[:MAX_LOOKED_UP_WORDS], absent_words[
        max(0, MAX_LOOKED_UP_WORDS - len(rare_words)) :
    ]


def _count_chunks(tx: Tx, thread_id: str | None) -> int:
    """Count the chunks of a thread; for all threads, return an estimate."""
    if thread_id is None:
        return int(tx.value("SELECT MAX(id) FROM chunks") or 0)
    sources = list_source_threads(tx, thread_id)
    return int(
        tx.value(
            "SELECT COUNT(*) FROM chunks WHERE thread IN "
            f"({SELECT_THREAD_NUMBERS.format(placeholders(sources))})",
            sources,
        )
    )
