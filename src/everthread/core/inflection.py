"""Words as they may stand elsewhere: other forms of the same word, and which words say nothing of a subject.

An index holds words as they were written. So a word is looked for in every form it may have; a form that is no word
finds nothing and costs little. Endings are those of English, irregular forms are data (`data/language.json`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

LEAST = 3
"""Letters a word has without its ending."""
_VOWELS = frozenset("aeiouy")
_DERIVED = ("ations", "ation", "ions", "ion", "ments", "ment", "ness", "ful", "al")
_HISSING = ("s", "x", "z", "ch", "sh", "o")
_ENDED = ("ing", "ings", "ed", "ly", "ion", "ions", "ment", "ments", "ness", "ers")
"""What ends so has its ending already."""


@functools.lru_cache(maxsize=1 << 14)
def forms(word: str) -> tuple[str, ...]:
    """The word as given, then every other form it may have. What is no English word by its letters has one only."""
    if len(word) < LEAST or not (word.isascii() and word.isalpha()):
        return tuple(dict.fromkeys((word, *_irregular().get(word, ()))))
    found = {word: None}
    for base in _bases(word):
        found |= dict.fromkeys(_inflected(base))
        found |= dict.fromkeys(_irregular().get(base, ()))
    return tuple(found)


def stop_words(words: Sequence[str]) -> frozenset[str]:
    """The words that say nothing, of the language most of these are in; English where none is recognised."""
    lists = _stop_lists()
    best = max(lists, key=lambda language: (sum(word in lists[language] for word in words), language == "en"))
    return lists[best]


def _bases(word: str) -> dict[str, None]:
    """What the word may be a form of, itself included."""
    bases = {word: None}
    bases |= dict.fromkeys(base for base in _irregular().get(word, ())[:1])
    bases |= dict.fromkeys(base for base in _without_endings(word) if len(base) >= LEAST)
    return bases


def _without_endings(word: str) -> Iterator[str]:
    if word.endswith("ies"):
        yield word[:-3] + "y"
    elif word.endswith("s") and not word.endswith("ss"):
        yield word[:-1]
        if word.endswith("es"):
            yield word[:-2]
    for ending in ("ings", "ing", "ed", "ers", "er"):
        if word.endswith(ending) and len(word) - len(ending) >= LEAST:
            rest = word[: -len(ending)]
            yield from (rest, rest + "e")
            if rest[-1] == rest[-2]:
                yield rest[:-1]
            if rest.endswith("i"):
                yield rest[:-1] + "y"
            break
    if word.endswith("ly") and len(word) > 5:
        yield word[:-2]
    for ending in _DERIVED:
        if word.endswith(ending) and len(word) - len(ending) > LEAST:
            rest = word[: -len(ending)]
            yield from (rest, rest + "e", *((rest + "ate",) if ending.startswith("ation") else ()))
            break


def _inflected(base: str) -> Iterator[str]:
    """The forms a word of these letters can have: one that is no word costs a look into the index all the same."""
    yield base
    yield base + ("es" if base.endswith(_HISSING) else "s")
    if base.endswith(_ENDED) or (base[-1] == "s" and base[-2] != "s"):
        return
    stem = base[:-1] if base.endswith("e") else base + base[-1] if _doubles(base) else base
    yield from (stem + ending for ending in ("ing", "ed"))
    if base.endswith("er"):
        return
    yield stem + "er"
    if base.endswith("y") and base[-2] not in _VOWELS:
        yield from (base[:-1] + ending for ending in ("ies", "ied", "ier", "ily"))
    elif len(base) > LEAST:
        yield from (base + "ly", base + "ment")
        if len(stem) <= len(base):
            yield stem + "ion"


def _doubles(base: str) -> bool:
    """Whether the last consonant is written twice before an ending: plan, planned; not so cook, visit."""
    vowels = [char in _VOWELS for char in base]
    return vowels[-3:] == [False, True, False] and sum(vowels) == 1 and base[-1] not in "wx"


@functools.cache
def _irregular() -> dict[str, tuple[str, ...]]:
    """Every irregular form -> all forms of its word, the plain one first."""
    rows = (tuple(row.split()) for row in language_data()["irregular"])
    return {form: row for row in rows for form in row}


@functools.cache
def _stop_lists() -> dict[str, frozenset[str]]:
    return {language: frozenset(words.split()) for language, words in language_data()["stop"].items()}


@functools.cache
def language_data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        resources.files("everthread.core").joinpath("data/language.json").read_text("utf-8")
    )
    return data
