"""A message read as a question to what was said before: which words may stand there, when; the order of answers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from everthread.core.search.dates import DAY_NAMES, DateSpan, named_spans
from everthread.core.search.terms import forms, identifier_terms, language_data, phrase_terms, query_terms, stop_words

MOST_SOUGHT = 24
"""Of a longer message: identifiers, then the longest words, as the rarest."""
MOST_CHARS = 4_000
"""Of a longer message the beginning and the end."""
IDENTIFIER = 2.0
"""An identifier as typed counts so many times what a word as rare does."""


@dataclass(frozen=True, slots=True)
class Sought:
    """One word or identifier in all the forms it may stand in."""

    forms: tuple[str, ...]
    weight: float = 1.0
    counted: bool = True
    """Whether a text without it answers less of the question. Not so for the words of a date."""


@dataclass(frozen=True, slots=True)
class Question:
    sought: tuple[Sought, ...]
    spans: tuple[DateSpan, ...] = ()


def read_question(text: str, now: float) -> Question:
    if len(text) > MOST_CHARS:
        text = f"{text[: MOST_CHARS // 2]}\n{text[-MOST_CHARS // 2 :]}"
    spans = named_spans(text, now)
    rest, of_dates = _apart(text, spans)
    sought = [Sought((name,), IDENTIFIER) for name in identifier_terms(rest)]
    sought += (Sought(known) for known in sorted(_subjects(rest), key=lambda known: -len(known[0])))
    sought = sorted(sought[:MOST_SOUGHT], key=lambda item: -item.weight)
    sought += (Sought((word,), counted=False) for word in of_dates)
    return Question(tuple(sought), tuple(spans))


def _subjects(text: str) -> Iterator[tuple[str, ...]]:
    """The words that say something, each once whatever its form."""
    words = query_terms(text)
    empty = stop_words(phrase_terms(text))
    seen: set[str] = set()
    for word in words:
        if word not in empty and word not in seen and (len(word) > 1 or not word.isascii()):
            yield forms(word)
            seen.update(forms(word))


def _apart(text: str, spans: Sequence[DateSpan]) -> tuple[str, list[str]]:
    """The text without its dates, and the words of these."""
    folded = text if len(text.casefold()) == len(text) else text.casefold()
    dates = " ".join(folded[slice(*span.at)] for span in spans)
    for start, end in sorted((span.at for span in spans), reverse=True):
        folded = f"{folded[:start]} {folded[end:]}"
    names = DAY_NAMES.union(language_data()["months"])
    return folded, [word for word in query_terms(dates) if word.isdigit() or word in names]


# How well what was said answers a question: rare words count more, a long text is diluted, neighbours help

Item = TypeVar("Item", bound=Hashable)

TYPICAL = 150
"""Characters. A word in a longer text says less."""
NEAR: Mapping[int, float] = {-1: 0.5, 1: 0.3, -2: 0.2, 2: 0.1}
"""The share a message gets of what one so many places before (-) or behind (+) it scores: an answer follows."""
LEAST_TEXTS = 100
FEW_TEXTS = 8
OF_A_DAY = 3.0
"""What it counts to be of a day that is named: about a word that stands in every twentieth message."""
MOST_COUNTED = 6
"""A text that has the so many rarest words of a long question answers it whole."""


def rarity(held: int, total: int) -> float:
    """The weight of a word that so many of all texts hold (BM25's). Of few texts one cannot tell what is rare."""
    return math.log(1 + (max(total, held, LEAST_TEXTS) - held + 0.5) / (held + 0.5))


def is_telling(held: int, total: int) -> bool:
    """Whether a word that so many of all texts hold says what a text is about. Of a handful one cannot tell."""
    return total < FEW_TEXTS or held <= total / 4


def dilution(length: int) -> float:
    """What a text's score is divided by, for its length in characters."""
    return max(0.8, 1 + (math.log2(1 + length / TYPICAL) - 1) / 5)


def spread(scores: Sequence[float], sittings: Sequence[Hashable]) -> list[float]:
    """The scores of messages in a row, with what neighbours of the same sitting give to each."""
    found = list(scores)
    for place, sitting in enumerate(sittings):
        for step, share in NEAR.items():
            other = place + step
            if 0 <= other < len(scores) and sittings[other] == sitting:
                found[place] += share * scores[other]
    return found


def closeness(held: Sequence[float], asked: Sequence[float]) -> float:
    """From 0 to 1: how much of what was asked a text holds, by the weights of its words and of those asked for."""
    whole = sum(sorted(asked, reverse=True)[:MOST_COUNTED])
    return min(1.0, sum(held) / whole) if whole else 0.0
