"""Whether texts are about the same: by the terms they share, whatever the language."""

from __future__ import annotations

import functools
import re

from everthread.core.terms import query_terms
from everthread.core.wording import LATIN, candidates, wording

READ = 1_000
"""So many characters of a text tell what it is about."""


@functools.lru_cache(maxsize=4096)
def subject(text: str) -> frozenset[str]:
    """The terms that say what a text is about: no function words; plural and inflection mostly aside."""
    text = text[:READ]
    languages = candidates(text)
    if len(languages) == 1:
        return wording(languages[0]).subject(text)
    return frozenset(_stem(term) for term in query_terms(text) if not _is_filler(term))


def weight(terms: frozenset[str]) -> float:
    """How many words terms are: a pair of characters is half a word."""
    return sum(1.0 if term.isascii() else 0.5 for term in terms)


def shared(text: str, other: str) -> float:
    """How many words two texts are both about."""
    return weight(subject(text) & subject(other))


def overlap(text: str, other: str) -> float:
    """Which share of what the text is about the other one is about as well."""
    own = subject(text)
    return len(own & subject(other)) / len(own) if own else 0.0


def _is_filler(term: str) -> bool:
    return term.isascii() and ((len(term) < 3 and not term.isdigit()) or term in _fillers())


@functools.cache
def _fillers() -> frozenset[str]:
    texts = (f"{wording(code).words.source}|{wording(code).filler.source}" for code in LATIN)
    return frozenset(word.strip("\\b(?:)") for text in texts for word in text.split("|"))


def _stem(term: str) -> str:
    """The word without its ending, roughly: `locks` and `locking`, `evicts` and `eviction` are the same."""
    if not term.isalpha() or not term.isascii():
        return term
    bare = _ENDING.sub("", term)
    return bare[: max(5, len(bare) - 3)] if len(bare) > 7 else bare


_ENDING = re.compile(r"(?<=\w{4})(?:ings?|ed|ers?|es|s|en|e)$")
