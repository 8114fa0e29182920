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
    exact: list[QueryPhrase] = []
    typed: list[QueryPhrase] = []
    loose: list[QueryPhrase] = []
    shown: list[tuple[str, ...]] = []
    for quoted, word in _QUERY_WORD.findall(text):
        typed_text = quoted or word
        begun = word.endswith("*")
        run = phrase_terms(typed_text)[:MAX_RUN]
        if not run or tuple(run) in shown:
            continue
        as_typed = _typed_phrases(typed_text, run, begun=begun)
        typed += as_typed
        exact += as_typed if quoted or begun else _whole_phrases(word) or as_typed
        loose += (
            as_typed
            if quoted or begun
            else _single_terms(query_terms(word, loose=True)[:MAX_RUN])
        )
        shown.append(tuple(run))
        if len(shown) == MAX_WORDS:
            break
    # Texts that hold all words in a row, as typed, come first.
    in_a_row = (
        [make_phrase(chain(*shown))]
        if len(shown) > 1 and not {'"', "*"} & set(text)
        else []
    )
    ways = (
        tuple(dict.fromkeys(phrases)) for phrases in (in_a_row, exact, typed, loose)
    )
    return ParsedQuery(tuple(dict.fromkeys(way for way in ways if way)), tuple(shown))


def _typed_phrases(typed: str, run: list[str], *, begun: bool) -> list[QueryPhrase]:
    """The phrases of a text that contains this. Pairs of characters are rarer than characters, so they are added."""
    pairs = [first + second for first, second in pairwise(run)]
    words = query_terms(typed)
    if pairs and all(map(_is_single, run)) and set(pairs) <= set(words):
        return [make_phrase(pairs)]
    prefix = begun and not _is_single(run[-1])
    return [
        make_phrase(run, prefix=prefix),
        *_single_terms(term for term in words if term in pairs),
    ]


def _whole_phrases(word: str) -> list[QueryPhrase]:
    """Return the identifiers in a word and the rest of its terms; an empty list if it has no identifier."""
    identifiers = identifier_terms(word)
    covered = {term for identifier in identifiers for term in query_terms(identifier)}
    rest = [term for term in query_terms(word) if term not in covered]
    return _single_terms([*identifiers, *rest][:MAX_RUN]) if identifiers else []


@functools.lru_cache(maxsize=1024)
def _is_single(term: str) -> bool:
    """Whether this is a character of a script without spaces: every one is a term, so it is never only begun."""
    return len(term) == 1 and len(phrase_terms(term + term)) == 2


def make_phrase(run: Iterable[str], *, prefix: bool = False) -> QueryPhrase:
    """Return a phrase of terms that must be consecutive."""
    return QueryPhrase(tuple(map(encode_term, run)), prefix)


def _single_terms(words: Iterable[str]) -> list[QueryPhrase]:
    return [make_phrase([term]) for term in words]
