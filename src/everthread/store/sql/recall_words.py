"""Look up the words of a question in the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everthread.core.search.query import SearchWord
from everthread.core.search.relevance import is_distinctive, rarity
from everthread.core.search.terms import encode_term, query_terms
from everthread.store.database import Tx, placeholders
from everthread.store.index_pieces import filter_name
from everthread.store.index_query import IndexQuery
from everthread.store.sql.search_scope import list_sources
from everthread.store.sql.session_rows import THREAD_NUMBERS

MAX_POSTINGS = 1_000
"""The most pieces read for a word, the newest: a word with more says little."""
MAX_WORDS = 10
"""The most words that are looked up in all their forms, the rarest ones."""
COMMON_COUNT = 64
"""A word that this many pieces hold as typed is looked up last."""


@dataclass(frozen=True, slots=True)
class RecallWord:
    """A word of the question, its weight, and the pieces that hold it."""

    search_words: SearchWord
    weight: float
    pieces: frozenset[int]
    telling: bool
    """Whether the word distinguishes texts: it is neither in most of them nor part of a date."""
    of_users: frozenset[int] = frozenset()
    """The pieces of the user's messages that hold it, where these are asked for."""


def look_up_words(
    tx: Tx,
    scope: IndexQuery,
    sought: Sequence[SearchWord],
    thread: str | None,
    *,
    by_role: bool,
) -> list[RecallWord]:
    """The words with the pieces that hold them; of many words the rarest."""
    total = _count_pieces(tx, thread)
    chosen_words, absent_words = (
        _pick_telling_words(tx, scope, sought)
        if len(sought) > MAX_WORDS
        else (sought, ())
    )
    words = []
    for item in chosen_words:
        index_query = replace(scope, any_of=(_encode_forms(item),))
        newest_pieces = tx.match_ids(index_query, MAX_POSTINGS)
        holding = len(newest_pieces)
        if thread is None and holding == MAX_POSTINGS:
            holding = _estimate_holding(newest_pieces, total)
        word_is_telling = item.is_counted and is_distinctive(holding, total)
        index_query = replace(
            index_query,
            filter_names=(*index_query.filter_names, (filter_name("role", "user"),)),
        )
        of_users = frozenset(tx.match_ids(index_query, MAX_POSTINGS) if by_role else ())
        words.append(
            RecallWord(
                item,
                item.weight * rarity(holding, total),
                frozenset(newest_pieces),
                word_is_telling,
                of_users,
            )
        )
    words = _complete_postings(tx, scope, words)
    max_rarity = rarity(0, total)
    return words + [
        RecallWord(item, item.weight * max_rarity, frozenset(), item.is_counted)
        for item in absent_words
    ]


def _estimate_holding(newest_pieces: Sequence[int], total: int) -> int:
    """Return about how many of all pieces hold a word, given the newest that do: it is as frequent in older ones."""
    span = total - min(newest_pieces) + 1
    return max(len(newest_pieces), round(len(newest_pieces) * total / span))


def _complete_postings(
    tx: Tx, scope: IndexQuery, words: Sequence[RecallWord]
) -> list[RecallWord]:
    """Add to frequent words the older pieces that hold other words of the question too.

    These are pieces with one of the rarer words, with all frequent ones, or with all of these but one.
    """
    frequent_words = [word for word in words if len(word.pieces) == MAX_POSTINGS]
    rare_terms = tuple(
        term
        for word in words
        if 0 < len(word.pieces) < MAX_POSTINGS
        for term in _encode_forms(word.search_words)
    )
    more_pieces: dict[int, set[int]] = {id(word): set() for word in frequent_words}

    def require_together(
        required: Sequence[RecallWord], *others: tuple[str, ...]
    ) -> None:
        index_query = replace(
            scope,
            any_of=(*(_encode_forms(word.search_words) for word in required), *others),
        )
        pieces = tx.match_ids(index_query, MAX_POSTINGS)
        for word in required:
            more_pieces[id(word)].update(pieces)

    for word in frequent_words if rare_terms else ():
        require_together([word], rare_terms)
    if len(frequent_words) > 1:
        require_together(frequent_words)
        for omitted_word in frequent_words if len(frequent_words) > 2 else ():
            require_together(
                [word for word in frequent_words if word is not omitted_word]
            )
    return [
        replace(word, pieces=word.pieces | more_pieces.get(id(word), set()))
        for word in words
    ]


def discount_parts(words: Sequence[RecallWord]) -> list[RecallWord]:
    """Reduce an identifier's weight by that of its parts, which occur wherever it does."""
    weights = {word.search_words.forms[0]: word.weight for word in words}
    reduced = []
    for word in words:
        name = word.search_words.forms[0]
        parts = sum(
            weights.get(part, 0.0) for part in query_terms(name) if part != name
        )
        reduced.append(
            replace(word, weight=max(word.weight - parts, word.weight / 4))
            if parts
            else word
        )
    return reduced


def _encode_forms(item: SearchWord) -> tuple[str, ...]:
    return tuple(map(encode_term, item.forms))


def _pick_telling_words(
    tx: Tx, scope: IndexQuery, search_words: Sequence[SearchWord]
) -> tuple[list[SearchWord], Sequence[SearchWord]]:
    """The words to look up, and the rest of those that no piece holds as typed."""
    counted_words: list[tuple[int, SearchWord]] = []
    for item in search_words:
        index_query = replace(scope, any_of=((encode_term(item.forms[0]),),))
        counted_words.append((len(tx.match_ids(index_query, COMMON_COUNT)), item))
    rare_words = sorted(
        (pair for pair in counted_words if 0 < pair[0] < COMMON_COUNT),
        key=lambda pair: pair[0],
    )
    absent_words = [item for count, item in counted_words if count == 0]
    ordered = [
        *(item for _, item in rare_words),
        *absent_words,
        *(item for count, item in counted_words if count == COMMON_COUNT),
    ]
    return ordered[:MAX_WORDS], absent_words[max(0, MAX_WORDS - len(rare_words)) :]


def _count_pieces(tx: Tx, thread: str | None) -> int:
    """How many pieces there are; of all threads about how many."""
    if thread is None:
        return int(tx.value("SELECT MAX(id) FROM pieces") or 0)
    sources = list_sources(tx, thread)
    return int(
        tx.value(
            "SELECT COUNT(*) FROM pieces WHERE thread IN "
            f"({THREAD_NUMBERS.format(placeholders(sources))})",
            sources,
        )
    )


def weigh_pieces(words: Sequence[RecallWord], most: int) -> dict[int, float]:
    """Return pieces with the weights of the words they hold; the best `most` pieces are among them.

    The words that count most come first. Once `most` pieces have more than all remaining words can give, no other piece
    can be among the best, and the remaining words only count for the pieces found so far.
    """
    weights: dict[int, float] = {}
    remaining = sum(word.weight for word in words)
    is_complete = False
    for word in sorted(words, key=lambda word: -word.weight):
        is_complete = is_complete or (
            len(weights) >= most
            and sum(value >= remaining for value in weights.values()) >= most
        )
        for piece in weights.keys() & word.pieces if is_complete else word.pieces:
            weights[piece] = weights.get(piece, 0.0) + word.weight
        remaining -= word.weight
    return weights
