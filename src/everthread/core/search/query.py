"""A message read as a question to what was said before: which words may stand there, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
