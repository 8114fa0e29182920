"""How a query is read: words, "phrases", prefix*. Nothing else is syntax, so every text is a query.

It is asked in up to three ways, the strictest first: identifiers as whole words; everything as typed, also inside
something longer; and every word anywhere in the text. What stands in quotes stays as typed throughout.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from everthread.core.terms import encode_term, identifier_terms, phrase_terms, query_terms
from everthread.store.indexing import MOST_REPEATS

MOST_WORDS = 32
"""Of a longer query the first so many words are looked for, of a longer phrase its first `MOST_RUN` terms."""
MOST_RUN = 64

_WORD = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class Phrase:
    """Terms that stand in a row, the last of them perhaps only begun."""

    terms: tuple[str, ...]
    prefix: bool = False

    @property
    def weighed(self) -> str | None:
        """The term a text is ranked by: the longest, as the rarest. A beginning stands for too many."""
        return max(self.terms[:-1] if self.prefix else self.terms, key=len, default=None)


Phrases = tuple[Phrase, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A query, as it was read."""

    ways: tuple[Phrases, ...]
    """The ways to ask it, the strictest first; none where it has no words."""
    shown: tuple[tuple[str, ...], ...]
    """What a reader looks for in a result: for every word its terms in a row."""


@dataclass(frozen=True, slots=True)
class Match:
    """A question to an index: pieces with all the phrases, one of each list of names, within ids and a condition."""

    phrases: Phrases = ()
    names: tuple[tuple[str, ...], ...] = ()
    first: int = 0
    before: int = 2**62
    where: str = ""
    """A condition on `pieces p`; empty where there is none."""
    values: tuple[Any, ...] = ()
    one_of: tuple[str, ...] = ()
    """Terms of which a piece must have one; empty where it need not."""

    @property
    def weighed(self) -> list[str]:
        """The terms a piece is ranked by."""
        return list(dict.fromkeys(phrase.weighed for phrase in self.phrases if phrase.weighed is not None))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A piece that matches, and how strong each weighed term of the question is in it."""

    id: int
    strengths: tuple[float, ...]


def strength(count: int) -> float:
    """From 0 to 1 for a term that stands there so often: every further time adds less. PostgreSQL's `ts_rank`."""
    return _STRENGTHS[count]


def rounded(value: float) -> float:
    """A strength as both databases compute it: one of them does so with six digits."""
    return round(value, 4)


_SUMS = accumulate(1 / n**2 for n in range(1, MOST_REPEATS + 1))
_STRENGTHS = [0.0, *(rounded(total / 1.64493406685) for total in _SUMS)]


def read_query(text: str) -> Asked:
    whole: list[Phrase] = []
    typed: list[Phrase] = []
    loose: list[Phrase] = []
    shown: list[tuple[str, ...]] = []
    for quoted, word in _WORD.findall(text):
        said, begun = quoted or word, word.endswith("*")
        run = phrase_terms(said)[:MOST_RUN]
        if not run or tuple(run) in shown:
            continue
        as_typed = _as_typed(said, run, begun=begun)
        typed += as_typed
        whole += as_typed if quoted or begun else _as_whole(word) or as_typed
        loose += as_typed if quoted or begun else _terms(query_terms(word, loose=True)[:MOST_RUN])
        shown.append(tuple(run))
        if len(shown) == MOST_WORDS:
            break
    ways = (_each_once(phrases) for phrases in (whole, typed, loose))
    return Asked(tuple(dict.fromkeys(way for way in ways if way)), tuple(shown))


def _as_typed(said: str, run: list[str], *, begun: bool) -> list[Phrase]:
    """What a text that contains this holds. Pairs of characters are rarer than characters: they are asked for too."""
    pairs = [first + second for first, second in pairwise(run)]
    known = query_terms(said)
    if pairs and all(map(_is_single, run)) and set(pairs) <= set(known):
        return [_phrase(pairs)]
    prefix = begun and not _is_single(run[-1])
    return [_phrase(run, prefix=prefix), *_terms(term for term in known if term in pairs)]


def _as_whole(word: str) -> list[Phrase]:
    """The identifiers in a word, and the rest of its terms; nothing where there is no identifier."""
    identifiers = identifier_terms(word)
    covered = {term for identifier in identifiers for term in query_terms(identifier)}
    rest = [term for term in query_terms(word) if term not in covered]
    return _terms([*identifiers, *rest][:MOST_RUN]) if identifiers else []


@functools.lru_cache(maxsize=1024)
def _is_single(term: str) -> bool:
    """Whether this is a character of a script without spaces: every one is a term, so it is never only begun."""
    return len(term) == 1 and len(phrase_terms(term + term)) == 2


def _phrase(run: Iterable[str], *, prefix: bool = False) -> Phrase:
    return Phrase(tuple(map(encode_term, run)), prefix)


def _terms(found: Iterable[str]) -> list[Phrase]:
    return [_phrase([term]) for term in found]


def _each_once(phrases: Iterable[Phrase]) -> Phrases:
    return tuple(dict.fromkeys(phrases))
