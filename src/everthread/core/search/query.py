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
    rest, of_dates = _split_dates(text, spans)
    sought = [SearchWord((name,), IDENTIFIER_WEIGHT) for name in identifier_terms(rest)]
    subjects = list(_subjects(rest))
    if common_words and not (subjects or sought):
        subjects = [(word,) for word in query_terms(rest)]
    sought += (
        SearchWord(variants)
        for variants in sorted(subjects, key=lambda variants: -len(variants[0]))
    )
    sought = sorted(sought[:MAX_SEARCH_WORDS], key=lambda item: -item.weight)
    sought += (SearchWord((word,), is_counted=False) for word in of_dates)
    return Question(tuple(sought), tuple(spans), _phrases(rest))


def _subjects(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words that say something, each once whatever its form."""
    words = query_terms(text)
    empty = stop_words(phrase_terms(text))
    shown: set[str] = set()
    for word in words:
        if (
            word not in empty
            and word not in shown
            and (len(word) > 1 or not word.isascii())
        ):
            yield forms(word)
            shown.update(forms(word))


def _phrases(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the whole question if it is short, and each number or letter with its words ("rule 3").

    Words between a number and what it counts may be left out: "rule number 3" and "rule no. 3" also ask for "rule 3".
    """
    run = phrase_terms(text)
    empty = stop_words(run)
    found = [tuple(run)] if 1 < len(run) <= MAX_PHRASE_TERMS else []
    for index, term in enumerate(run):
        if not _is_number(term) or term in empty:
            continue
        nearby = range(index - 1, max(index - 1 - NUMBER_REACH, -1), -1)
        before = [at for at in nearby if run[at] not in empty]
        if before[:2] == [index - 1, index - 2]:
            found.append(tuple(run[index - 2 : index + 1]))
        found += ((run[at], term) for at in before)
    return tuple(sorted(dict.fromkeys(found), key=len, reverse=True))


def _is_number(term: str) -> bool:
    """Return whether a term counts or names one of several: a number, or a letter as in "plan B"."""
    return term.isdigit() or (len(term) == 1 and term.isascii())


def _split_dates(text: str, spans: Sequence[DateSpan]) -> tuple[str, list[str]]:
    """Return the text without its dates, and the words of these."""
    folded = text if len(text.casefold()) == len(text) else text.casefold()
    dates = " ".join(folded[slice(*span.at)] for span in spans)
    for start, end in sorted((span.at for span in spans), reverse=True):
        folded = f"{folded[:start]} {folded[end:]}"
    names = DAY_NAMES.union(language_data()["months"])
    return folded, [
        word for word in query_terms(dates) if word.isdigit() or word in names
    ]
