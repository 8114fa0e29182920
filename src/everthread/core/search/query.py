"""Read a message as a question to earlier messages: its words and its dates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everthread.core.search.dates import DAY_NAMES, DateSpan, named_spans
from everthread.core.search.terms import (
    forms,
    identifier_terms,
    language_data,
    phrase_terms,
    query_terms,
    stop_words,
)

MAX_SEARCH_WORDS = 24
"""Most words of a question: identifiers first, then the longest words, which are rare."""
MAX_PHRASE_TERMS = 8
"""Most terms of a question that is also searched for as typed."""
NUMBER_REACH = 3
"""Terms before a number among which are the words that it belongs to."""
MAX_CHARS = 4_000
"""Characters read of a message; of a longer one the beginning and the end."""
IDENTIFIER_WEIGHT = 2.0
"""Weight of an identifier as typed, relative to an equally rare word."""


@dataclass(frozen=True, slots=True)
class SearchWord:
    """One word or identifier in all its possible forms."""

    forms: tuple[str, ...]
    weight: float = 1.0
    is_counted: bool = True
    """Whether a text without it answers less of the question; False for the words of a date."""


@dataclass(frozen=True, slots=True)
class Question:
    sought: tuple[SearchWord, ...]
    spans: tuple[DateSpan, ...] = ()
    phrases: tuple[tuple[str, ...], ...] = ()
    """Terms in a row that a text may hold as typed, the longest first."""


def read_question(text: str, now: float, *, common_words: bool = False) -> Question:
    """Read the words, dates and phrases of a question.

    `common_words`: look for stop words if the question has no other words.
    """
    if len(text) > MAX_CHARS:
        text = f"{text[: MAX_CHARS // 2]}\n{text[-MAX_CHARS // 2 :]}"
    spans = named_spans(text, now)
    undated_text, date_words = _split_dates(text, spans)
    search_words = [
        SearchWord((name,), IDENTIFIER_WEIGHT)
        for name in identifier_terms(undated_text)
    ]
    subjects = list(_subjects(undated_text))
    if common_words and not (subjects or search_words):
        subjects = [(word,) for word in query_terms(undated_text)]
    search_words += (
        SearchWord(variants)
        for variants in sorted(subjects, key=lambda variants: -len(variants[0]))
    )
    search_words = sorted(
        search_words[:MAX_SEARCH_WORDS], key=lambda item: -item.weight
    )
    search_words += (SearchWord((word,), is_counted=False) for word in date_words)
    return Question(tuple(search_words), tuple(spans), _phrases(undated_text))


def _subjects(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words that say something, each once whatever its form."""
    words = query_terms(text)
    fillers = stop_words(phrase_terms(text))
    yielded_forms: set[str] = set()
    for word in words:
        if (
            word not in fillers
            and word not in yielded_forms
            and (len(word) > 1 or not word.isascii())
        ):
            yield forms(word)
            yielded_forms.update(forms(word))


def _phrases(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the whole question if it is short, and each number or letter with its words ("rule 3").

    Words between a number and what it counts may be left out: "rule number 3" and "rule no. 3" also ask for "rule 3".
    """
    run = phrase_terms(text)
    fillers = stop_words(run)
    phrases = [tuple(run)] if 1 < len(run) <= MAX_PHRASE_TERMS else []
    for index, term in enumerate(run):
        if not _is_number(term) or term in fillers:
            continue
        nearby = range(index - 1, max(index - 1 - NUMBER_REACH, -1), -1)
        positions = [position for position in nearby if run[position] not in fillers]
        if positions[:2] == [index - 1, index - 2]:
            phrases.append(tuple(run[index - 2 : index + 1]))
        phrases += ((run[position], term) for position in positions)
    return tuple(sorted(dict.fromkeys(phrases), key=len, reverse=True))


def _is_number(term: str) -> bool:
    """Return whether a term counts or names one of several: a number, or a letter as in "plan B"."""
    return term.isdigit() or (len(term) == 1 and term.isascii())


def _split_dates(text: str, spans: Sequence[DateSpan]) -> tuple[str, list[str]]:
    """Return the text without its dates, and the words of these."""
    undated_text = text if len(text.casefold()) == len(text) else text.casefold()
    dates = " ".join(undated_text[slice(*span.at)] for span in spans)
    for start, end in sorted((span.at for span in spans), reverse=True):
        undated_text = f"{undated_text[:start]} {undated_text[end:]}"
    names = DAY_NAMES.union(language_data()["months"])
    return undated_text, [
        word for word in query_terms(dates) if word.isdigit() or word in names
    ]
