"""The search index as both databases see it: which pieces of text it holds, and how a query asks for them.

A piece is its redacted terms (`core.search.terms`); whose it is, who said it and with which tool are names beside them.
In a query words, "phrases" and prefix* are syntax and nothing else, so every text is a query. It is asked in up to
three ways, the strictest first: identifiers as whole words; everything as typed, also inside something longer; and
every word anywhere in the text. What stands in quotes stays as typed throughout.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from everthread.core.messages import calls_of, results_of, text_of
from everthread.core.redaction import redact
from everthread.core.search.terms import encode_term, identifier_terms, phrase_terms, query_terms, terms

PIECE_CHARS = 8_000
LEAST_CHARS = 250
OVERLAP = 200
"""Neighbouring pieces share so many characters, so that a phrase at the seam is found."""
MOST_TERMS = 16_383
MOST_REPEATS = 255
"""So many terms in a text, and repetitions of one, PostgreSQL tells apart. Keeping to that, both find the same."""


@dataclass(frozen=True, slots=True)
class TextCut:
    """A piece of a text."""

    start: int
    text: str
    terms: list[str]


@dataclass(frozen=True, slots=True)
class IndexPiece:
    """A piece as the index takes it."""

    id: int
    terms: Sequence[str]
    names: Sequence[str]


def searchable_text(message: Mapping[str, Any]) -> str:
    """Everything a message says and does: words, calls with their arguments, results."""
    said = [text_of(message)] if message.get("role") != "tool" else []
    called = [f"{call.name} {call.arguments}" for call in calls_of(message)]
    return "\n".join(text for text in (*said, *called, *(result.text for result in results_of(message))) if text)


def redact_and_cut(text: str) -> tuple[list[TextCut], bool]:
    """The pieces of a text, secrets gone before anything else; and whether there were any."""
    clean = redact(text)
    return [cut for cut in cut_text(clean) if cut.terms], clean is not text


def cut_text(text: str) -> Iterator[TextCut]:
    """The text in pieces, smaller ones where terms are too many to be told apart."""
    start, size = 0, PIECE_CHARS
    while True:
        overlap = min(OVERLAP, size // 4)
        end = _find_seam(text, start + size, overlap) if start + size < len(text) else len(text)
        cut = TextCut(start, text[start:end], [encode_term(term) for term in terms(text[start:end])])
        if size > LEAST_CHARS and not _can_be_told_apart(cut.terms):
            size //= 2
            continue
        yield cut
        if end == len(text):
            return
        start = _find_seam(text, end - overlap, overlap)
        size = min(2 * size, PIECE_CHARS)


def _find_seam(text: str, at: int, reach: int) -> int:
    """Behind the last white space before this place; the place itself where there is none near."""
    space = max(text.rfind(mark, at - reach, at) for mark in " \n")
    return space + 1 if space >= 0 else at


def _can_be_told_apart(found: Sequence[str]) -> bool:
    if len(found) <= MOST_REPEATS:
        return True
    return len(found) <= MOST_TERMS and max(Counter(found).values()) <= MOST_REPEATS


def filter_name(kind: str, value: str) -> str:
    """A property as one name no tokenizer splits, folds or shortens: `role` and `user` become `role_user`."""
    if len(value) <= 64 and value.isascii() and value.isalnum() and value == value.lower():
        return f"{kind}_{value}"
    return f"{kind}__{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


LONG_TEXT = filter_name("part", "of")
"""The name of pieces whose text has others."""
MOST_WORDS = 32
"""Of a longer query the first so many words are looked for, of a longer phrase its first `MOST_RUN` terms."""
MOST_RUN = 64
_QUERY_WORD = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class QueryPhrase:
    """Terms that stand in a row, the last of them perhaps only begun."""

    terms: tuple[str, ...]
    prefix: bool = False

    @property
    def weighed(self) -> str | None:
        """The term a text is ranked by: the longest, as the rarest. A beginning stands for too many."""
        return max(self.terms[:-1] if self.prefix else self.terms, key=len, default=None)


QueryPhrases = tuple[QueryPhrase, ...]


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query, as it was read."""

    ways: tuple[QueryPhrases, ...]
    """The ways to ask it, the strictest first; none where it has no words."""
    shown: tuple[tuple[str, ...], ...]
    """What a reader looks for in a result: for every word its terms in a row."""


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """A question to an index: pieces with all the phrases, one of each list of names, within ids and a condition."""

    phrases: QueryPhrases = ()
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
class IndexMatch:
    """A piece that matches, and how strong each weighed term of the question is in it."""

    id: int
    strengths: tuple[float, ...]


def term_strength(count: int) -> float:
    """From 0 to 1 for a term that stands there so often: every further time adds less. PostgreSQL's `ts_rank`."""
    return _STRENGTHS[count]


def round_strength(value: float) -> float:
    """A strength as both databases compute it: one of them does so with six digits."""
    return round(value, 4)


_SUMS = accumulate(1 / n**2 for n in range(1, MOST_REPEATS + 1))
_STRENGTHS = [0.0, *(round_strength(total / 1.64493406685) for total in _SUMS)]


def parse_query(text: str) -> ParsedQuery:
    whole: list[QueryPhrase] = []
    typed: list[QueryPhrase] = []
    loose: list[QueryPhrase] = []
    shown: list[tuple[str, ...]] = []
    for quoted, word in _QUERY_WORD.findall(text):
        said, begun = quoted or word, word.endswith("*")
        run = phrase_terms(said)[:MOST_RUN]
        if not run or tuple(run) in shown:
            continue
        as_typed = _typed_phrases(said, run, begun=begun)
        typed += as_typed
        whole += as_typed if quoted or begun else _whole_phrases(word) or as_typed
        loose += as_typed if quoted or begun else _single_terms(query_terms(word, loose=True)[:MOST_RUN])
        shown.append(tuple(run))
        if len(shown) == MOST_WORDS:
            break
    ways = (_unique_phrases(phrases) for phrases in (whole, typed, loose))
    return ParsedQuery(tuple(dict.fromkeys(way for way in ways if way)), tuple(shown))


def _typed_phrases(said: str, run: list[str], *, begun: bool) -> list[QueryPhrase]:
    """What a text that contains this holds. Pairs of characters are rarer than characters: they are asked for too."""
    pairs = [first + second for first, second in pairwise(run)]
    known = query_terms(said)
    if pairs and all(map(_is_single, run)) and set(pairs) <= set(known):
        return [_make_phrase(pairs)]
    prefix = begun and not _is_single(run[-1])
    return [_make_phrase(run, prefix=prefix), *_single_terms(term for term in known if term in pairs)]


def _whole_phrases(word: str) -> list[QueryPhrase]:
    """The identifiers in a word, and the rest of its terms; nothing where there is no identifier."""
    identifiers = identifier_terms(word)
    covered = {term for identifier in identifiers for term in query_terms(identifier)}
    rest = [term for term in query_terms(word) if term not in covered]
    return _single_terms([*identifiers, *rest][:MOST_RUN]) if identifiers else []


@functools.lru_cache(maxsize=1024)
def _is_single(term: str) -> bool:
    """Whether this is a character of a script without spaces: every one is a term, so it is never only begun."""
    return len(term) == 1 and len(phrase_terms(term + term)) == 2


def _make_phrase(run: Iterable[str], *, prefix: bool = False) -> QueryPhrase:
    return QueryPhrase(tuple(map(encode_term, run)), prefix)


def _single_terms(found: Iterable[str]) -> list[QueryPhrase]:
    return [_make_phrase([term]) for term in found]


def _unique_phrases(phrases: Iterable[QueryPhrase]) -> QueryPhrases:
    return tuple(dict.fromkeys(phrases))
