"""Parse a search text into questions to the index.

Words, "phrases" and prefix* are the whole syntax, so every text is a query. It is asked in up to three ways, the
strictest first: identifiers as whole words; everything as typed, also inside something longer; and every word anywhere
in the text. Quoted text is matched as typed in all three.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

from everthread.core.search.terms import (
    encode_term,
    identifier_terms,
    phrase_terms,
    query_terms,
)
from everthread.store.index_pieces import MAX_REPEATS

MAX_WORDS = 32
"""The most words of a query that are searched for. Of a phrase, the first `MAX_RUN` terms are."""
MAX_RUN = 64
_QUERY_WORD = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class QueryPhrase:
    """Consecutive terms, the last of which may be a prefix."""

    terms: tuple[str, ...]
    prefix: bool = False

    @property
    def weighed(self) -> str | None:
        """The term that ranks a text: the longest, which is likely the rarest. A prefix matches too many terms."""
        return max(
            self.terms[:-1] if self.prefix else self.terms, key=len, default=None
        )


QueryPhrases = tuple[QueryPhrase, ...]


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query."""

    ways: tuple[QueryPhrases, ...]
    """The ways to run the query, the strictest first; empty if it has no words."""
    shown: tuple[tuple[str, ...], ...]
    """The terms to show in a result: for each word, its consecutive terms."""


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """A question to an index: pieces with all the phrases, one of each list of names, within ids and a condition.

    An empty list of names restricts nothing.
    """

    phrases: QueryPhrases = ()
    names: tuple[tuple[str, ...], ...] = ()
    first: int = 0
    before: int = 2**62
    where: str = ""
    """A condition on `pieces p`; empty for no condition."""
    values: tuple[Any, ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    """Lists of terms: of each a piece must have one."""

    @property
    def weighed(self) -> list[str]:
        """The terms a piece is ranked by."""
        return list(
            dict.fromkeys(
                phrase.weighed for phrase in self.phrases if phrase.weighed is not None
            )
        )


class IndexMatch(NamedTuple):
    """A piece that matches, and how strong each weighed term of the question is in it."""

    id: int
    strengths: tuple[float, ...]


def round_strength(value: float) -> float:
    """A strength as both databases compute it: one of them does so with six digits."""
    return round(value, 4)


_SUMS = accumulate(1 / n**2 for n in range(1, MAX_REPEATS + 1))
TERM_STRENGTHS = [0.0, *(round_strength(total / 1.64493406685) for total in _SUMS)]
"""The strength of a term, 0 to 1, by its count: each repetition adds less. Same as PostgreSQL's `ts_rank`."""


def parse_query(text: str) -> ParsedQuery:
    """Parse a query into its phrases, for each way to run it."""
    exact_phrases: list[QueryPhrase] = []
    typed_phrases: list[QueryPhrase] = []
    loose_phrases: list[QueryPhrase] = []
    runs: list[tuple[str, ...]] = []
    for quotation, word in _QUERY_WORD.findall(text):
        is_prefix = word.endswith("*")
        run = phrase_terms(quotation or word)[:MAX_RUN]
        if not run or tuple(run) in runs:
            continue
        as_typed = _typed_phrases(quotation or word, run, is_prefix=is_prefix)
        typed_phrases += as_typed
        if quotation or is_prefix:
            exact_phrases += as_typed
            loose_phrases += as_typed
        else:
            exact_phrases += _whole_phrases(word) or as_typed
            loose_terms = query_terms(word, loose=True)[:MAX_RUN]
            loose_phrases += _single_terms(loose_terms)
        runs.append(tuple(run))
        if len(runs) == MAX_WORDS:
            break
    # Texts that hold all words in a row, as typed, come first.
    in_a_row = (
        [make_phrase(chain(*runs))]
        if len(runs) > 1 and not {'"', "*"} & set(text)
        else []
    )
    ways = (
        tuple(dict.fromkeys(phrases))
        for phrases in (in_a_row, exact_phrases, typed_phrases, loose_phrases)
    )
    return ParsedQuery(
        tuple(dict.fromkeys(way for way in ways if way)),
        tuple(runs),
    )


def _typed_phrases(text: str, run: list[str], *, is_prefix: bool) -> list[QueryPhrase]:
    """The phrases of a text that contains this. Pairs of characters are rarer than characters, so they are added."""
    pairs = [first + second for first, second in pairwise(run)]
    words = query_terms(text)
    if pairs and all(map(_is_single, run)) and set(pairs) <= set(words):
        return [make_phrase(pairs)]
    return [
        make_phrase(run, prefix=is_prefix and not _is_single(run[-1])),
        *_single_terms(term for term in words if term in pairs),
    ]


def _whole_phrases(word: str) -> list[QueryPhrase]:
    """Return the identifiers in a word and the rest of its terms; an empty list if it has no identifier."""
    identifiers = identifier_terms(word)
    parts = {term for identifier in identifiers for term in query_terms(identifier)}
    other_terms = [term for term in query_terms(word) if term not in parts]
    return _single_terms([*identifiers, *other_terms][:MAX_RUN]) if identifiers else []


@functools.lru_cache(maxsize=1024)
def _is_single(term: str) -> bool:
    """Whether this is a character of a script without spaces: every one is a term, so it is never only begun."""
    return len(term) == 1 and len(phrase_terms(term + term)) == 2


def make_phrase(run: Iterable[str], *, prefix: bool = False) -> QueryPhrase:
    """Return a phrase of terms that must be consecutive."""
    return QueryPhrase(tuple(map(encode_term, run)), prefix)


def _single_terms(words: Iterable[str]) -> list[QueryPhrase]:
    return [make_phrase([term]) for term in words]
