"""Parse a search text into queries to the index.

Words, "phrases" and prefix* are the whole syntax, so every text is a query. A text becomes up to four queries, the
strictest first: all words in a row; identifiers as whole words; every word as typed, also inside a longer one; and
every word in any form. Quoted text is matched as typed in all of them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

from everthread.core.search.indexed_terms import encode_term
from everthread.core.search.terms import list_identifiers, list_phrase_terms, list_query_terms
from everthread.store.database import MAX_ID
from everthread.store.search.text_chunks import MAX_TERM_REPEATS

MAX_QUERY_WORDS = 32
"""Maximum words of a query that are searched for."""
MAX_PHRASE_TERMS = 64
"""Maximum terms of a phrase that are searched for."""
_QUERY_WORD_PATTERN = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class QueryPhrase:
    """Consecutive terms. The last one may be a prefix."""

    terms: tuple[str, ...]
    last_is_prefix: bool = False

    @property
    def whole_terms(self) -> tuple[str, ...]:
        """The terms that are not prefixes."""
        return self.terms[:-1] if self.last_is_prefix else self.terms

    @property
    def ranking_term(self) -> str | None:
        """The term that ranks a text: the longest, which is probably the rarest. A prefix matches too many terms."""
        return max(self.whole_terms, key=len, default=None)


QueryPhrases = tuple[QueryPhrase, ...]


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query."""

    variants: tuple[QueryPhrases, ...]
    """The ways to run the query, the strictest first, or an empty list if it has no words."""
    highlighted: tuple[tuple[str, ...], ...]
    """The terms to show in a result: for each word, its consecutive terms."""


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """A query to the index for chunks that have all phrases, one filter term of each list, and an id in a range.

    An empty list of filter terms restricts nothing.
    """

    phrases: QueryPhrases = ()
    filter_terms: tuple[tuple[str, ...], ...] = ()
    first_id: int = 0
    end_id: int = MAX_ID
    where: str = ""
    """A condition on the view `chunk_details chunk`, or an empty text to restrict nothing."""
    values: tuple[Any, ...] = ()
    any_of: tuple[tuple[str, ...], ...] = ()
    """Lists of terms: a chunk must have one term of each list."""

    @property
    def ranking_terms(self) -> list[str]:
        """The terms that a chunk is ranked by."""
        return list(
            dict.fromkeys(
                phrase.ranking_term for phrase in self.phrases if phrase.ranking_term is not None
            )
        )


def make_detail_condition(query: IndexQuery, id_column: str) -> str:
    """Return the query's condition on the view `chunk_details`, for the chunk whose id is in this column."""
    if not query.where:
        return ""
    return f"AND (SELECT {query.where} FROM chunk_details chunk WHERE chunk.id = {id_column})"


class IndexMatch(NamedTuple):
    """A matching chunk, and the strength of each ranking term in the chunk."""

    id: int
    strengths: tuple[float, ...]


def round_strength(value: float) -> float:
    """Round a strength, so that both databases give the same: PostgreSQL computes only six digits."""
    return round(value, 4)


_STRENGTH_SUMS = accumulate(1 / n**2 for n in range(1, MAX_TERM_REPEATS + 1))
TERM_STRENGTHS = [
    0.0,
    *(round_strength(total / 1.64493406685) for total in _STRENGTH_SUMS),
]
"""The strength of a term, 0 to 1, by its count in a chunk: each repetition adds less, as in PostgreSQL's `ts_rank`."""


def parse_query(text: str) -> ParsedQuery:
    """Parse a query into its phrases, for each way to run it."""
    exact_phrases: list[QueryPhrase] = []
    typed_phrases: list[QueryPhrase] = []
    loose_phrases: list[QueryPhrase] = []
    word_terms: list[tuple[str, ...]] = []
    for quotation, word in _QUERY_WORD_PATTERN.findall(text):
        is_prefix = word.endswith("*")
        terms = list_phrase_terms(quotation or word)[:MAX_PHRASE_TERMS]
        if not terms or tuple(terms) in word_terms:
            continue
        as_typed = _make_typed_phrases(quotation or word, terms, is_prefix=is_prefix)
        typed_phrases += as_typed
        if quotation or is_prefix:
            exact_phrases += as_typed
            loose_phrases += as_typed
        else:
            exact_phrases += _make_identifier_phrases(word) or as_typed
            loose_terms = list_query_terms(word, loose=True)[:MAX_PHRASE_TERMS]
            loose_phrases += _make_single_term_phrases(loose_terms)
        word_terms.append(tuple(terms))
        if len(word_terms) == MAX_QUERY_WORDS:
            break
    # Texts that hold all words in a row, as typed, come first.
    consecutive_words: list[QueryPhrase] = []
    if len(word_terms) > 1 and not {'"', "*"} & set(text):
        consecutive_words = [make_phrase(chain(*word_terms))]
    variants = (
        tuple(dict.fromkeys(phrases))
        for phrases in (consecutive_words, exact_phrases, typed_phrases, loose_phrases)
    )
    return ParsedQuery(
        tuple(dict.fromkeys(variant for variant in variants if variant)),
        tuple(word_terms),
    )


def _make_typed_phrases(text: str, terms: list[str], *, is_prefix: bool) -> list[QueryPhrase]:
    """Return the phrases for a word as typed. Add pairs of characters, which are rarer than single characters."""
    pairs = [first + second for first, second in pairwise(terms)]
    single_terms = list_query_terms(text)
    if (
        pairs
        and all(map(_is_spaceless_script_character, terms))
        and set(pairs) <= set(single_terms)
    ):
        return [make_phrase(pairs)]
    return [
        make_phrase(
            terms, last_is_prefix=is_prefix and not _is_spaceless_script_character(terms[-1])
        ),
        *_make_single_term_phrases(term for term in single_terms if term in pairs),
    ]


def _make_identifier_phrases(word: str) -> list[QueryPhrase]:
    """Return the identifiers in a word and the rest of its terms, or an empty list if it has no identifier."""
    identifiers = list_identifiers(word)
    if not identifiers:
        return []
    identifier_parts = {term for identifier in identifiers for term in list_query_terms(identifier)}
    other_terms = [term for term in list_query_terms(word) if term not in identifier_parts]
    return _make_single_term_phrases([*identifiers, *other_terms][:MAX_PHRASE_TERMS])


@functools.lru_cache(maxsize=1024)
def _is_spaceless_script_character(term: str) -> bool:
    """Return whether a term is one character of a script without spaces, in which every character is a term."""
    return len(term) == 1 and len(list_phrase_terms(term + term)) == 2


def make_phrase(terms: Iterable[str], *, last_is_prefix: bool = False) -> QueryPhrase:
    """Return a phrase of terms that must be consecutive."""
    return QueryPhrase(tuple(map(encode_term, terms)), last_is_prefix)


def _make_single_term_phrases(terms: Iterable[str]) -> list[QueryPhrase]:
    return [make_phrase([term]) for term in terms]
