"""Load language data: other forms of English words, stop words and names of months."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

MIN_STEM_LETTERS = 3
"""Minimum letters of a word without its ending."""
_VOWELS = frozenset("aeiouy")
_NOUN_ENDINGS = ("ations", "ation", "ions", "ion", "ments", "ment", "ness", "ful", "al")
_ENDINGS_BEFORE_ES = ("s", "x", "z", "ch", "sh", "o")
_SPELLINGS = (
    ("our", "or"),
    ("ise", "ize"),
    ("yse", "yze"),
    ("tre", "ter"),
    ("ogue", "og"),
)
"""Endings that are written in one way in Britain and in another in America."""
_INFLECTED_ENDINGS = (
    "ing",
    "ings",
    "ed",
    "ly",
    "ion",
    "ions",
    "ment",
    "ments",
    "ness",
    "ers",
)
"""Endings of words that are inflected already."""


@functools.lru_cache(maxsize=1 << 14)
def list_word_forms(word: str) -> tuple[str, ...]:
    """Return the word, followed by its inflected forms.

    A word that is very short or not only of English letters gets no regular forms, only those in the table of
    irregular words.
    """
    if len(word) < MIN_STEM_LETTERS or not (word.isascii() and word.isalpha()):
        return tuple(dict.fromkeys((word, *_load_irregular_forms().get(word, ()))))
    variants = {word: None}
    for base in _list_base_forms(word):
        variants |= dict.fromkeys(_inflect(base))
        variants |= dict.fromkeys(_load_irregular_forms().get(base, ()))
    return tuple(variants)


def choose_stop_words(words: Sequence[str]) -> frozenset[str]:
    """Return the stop words of the language to which most of these words belong; English if none is recognised."""
    words_by_language = _stop_lists()
    best_language = max(
        words_by_language,
        key=lambda language: (
            sum(word in words_by_language[language] for word in words),
            language == "en",
        ),
    )
    return words_by_language[best_language]


def _list_base_forms(word: str) -> dict[str, None]:
    """Return the base forms of the word, itself included."""
    bases = {word: None}
    bases |= dict.fromkeys(base for base in _load_irregular_forms().get(word, ())[:1])
    bases |= dict.fromkeys(base for base in _strip_endings(word) if len(base) >= MIN_STEM_LETTERS)
    return bases | dict.fromkeys(other for base in bases for other in _list_other_spellings(base))


def _list_other_spellings(base: str) -> Iterator[str]:
    for pair in _SPELLINGS:
        for ending, other_ending in (pair, pair[::-1]):
            stem = base.removesuffix(ending)
            if (
                stem != base
                and len(stem) >= MIN_STEM_LETTERS
                and not (other_ending.endswith(ending) and base.endswith(other_ending))
            ):
                yield stem + other_ending


def _strip_endings(word: str) -> Iterator[str]:
    if word.endswith("ies"):
        yield word[:-3] + "y"
    elif word.endswith("s") and not word.endswith("ss"):
        yield word[:-1]
        if word.endswith("es"):
            yield word[:-2]
    for ending in ("ings", "ing", "ed", "ers", "er"):
        if word.endswith(ending) and len(word) - len(ending) >= MIN_STEM_LETTERS:
            stem = word[: -len(ending)]
            yield from (stem, stem + "e")
            if stem[-1] == stem[-2]:
                yield stem[:-1]
            if stem.endswith("i"):
                yield stem[:-1] + "y"
            break
    if word.endswith("ly") and len(word) > 5:
        yield word[:-2]
    for ending in _NOUN_ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) > MIN_STEM_LETTERS:
            stem = word[: -len(ending)]
            yield from (
                stem,
                stem + "e",
                *((stem + "ate",) if ending.startswith("ation") else ()),
            )
            break


def _inflect(base: str) -> Iterator[str]:
    """Yield the possible forms of a word. Each form costs an index lookup, so impossible forms are left out."""
    yield base
    yield base + ("es" if base.endswith(_ENDINGS_BEFORE_ES) else "s")
    if base.endswith(_INFLECTED_ENDINGS) or (base[-1] == "s" and base[-2] != "s"):
        return
    stem = base
    if base.endswith("e"):
        stem = base[:-1]
    elif _doubles_last_consonant(base):
        stem = base + base[-1]
    yield from (stem + ending for ending in ("ing", "ed"))
    if base.endswith("er"):
        return
    yield stem + "er"
    if base.endswith("y") and base[-2] not in _VOWELS:
        yield from (base[:-1] + ending for ending in ("ies", "ied", "ier", "ily"))
    elif len(base) > MIN_STEM_LETTERS:
        yield from (base + "ly", base + "ment")
        if len(stem) <= len(base):
            yield stem + "ion"


def _doubles_last_consonant(base: str) -> bool:
    """Return whether the last consonant is written twice before an ending: plan, planned; not so cook, visit."""
    vowels = [char in _VOWELS for char in base]
    return vowels[-3:] == [False, True, False] and sum(vowels) == 1 and base[-1] not in "wx"


@functools.cache
def _load_irregular_forms() -> dict[str, tuple[str, ...]]:
    """Map every irregular form to all forms of its word, the plain one first."""
    rows = (tuple(row.split()) for row in load_language_data()["irregular"])
    return {form: row for row in rows for form in row}


@functools.cache
def _stop_lists() -> dict[str, frozenset[str]]:
    return {
        language: frozenset(words.split())
        for language, words in load_language_data()["stop"].items()
    }


@functools.cache
def load_language_data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        resources.files("everthread.core").joinpath("data/language.json").read_text("utf-8")
    )
    return data
