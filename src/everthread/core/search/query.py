"""Read the words and dates of a message, to search earlier messages for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everthread.core.search.dates import DAY_NAMES, DateSpan, find_dates
from everthread.core.search.terms import list_identifiers, list_phrase_terms, list_query_terms
from everthread.core.search.word_forms import choose_stop_words, list_word_forms, load_language_data

MAX_SEARCH_WORDS = 24
"""Maximum words of a question: identifiers first, then the longest words, which are rare."""
MAX_PHRASE_TERMS = 8
"""Maximum terms of a question that is also searched for as typed."""
MAX_TERMS_BEFORE_NUMBER = 3
"""How many terms before a number may belong to it ("rule number 3")."""
MAX_QUESTION_CHARS = 4_000
"""Maximum characters read of a message; if it is longer, its beginning and its end."""
IDENTIFIER_WEIGHT = 2.0
"""Weight of an identifier as typed, relative to an equally rare word."""


@dataclass(frozen=True, slots=True)
class SearchWord:
    """One word or identifier in all its possible forms."""

    forms: tuple[str, ...]
    weight: float = 1.0
    is_counted: bool = True
    """Whether a text without this word answers less of the question. The words of a date are not counted."""


@dataclass(frozen=True, slots=True)
class Question:
    search_words: tuple[SearchWord, ...]
    date_spans: tuple[DateSpan, ...] = ()
    phrases: tuple[tuple[str, ...], ...] = ()
    """Consecutive terms that a text may contain as typed, the longest first."""


def read_question(text: str, now: float, *, use_stop_words: bool = False) -> Question:
    """Read the words, dates and phrases of a question.

    `use_stop_words`: look for stop words if the question has no other words.
    """
    if len(text) > MAX_QUESTION_CHARS:
        text = f"{text[: MAX_QUESTION_CHARS // 2]}\n{text[-MAX_QUESTION_CHARS // 2 :]}"
    date_spans = find_dates(text, now)
    undated_text, date_words = _split_dates(text, date_spans)
    search_words = [
        SearchWord((name,), IDENTIFIER_WEIGHT) for name in list_identifiers(undated_text)
    ]
    content_words = list(_list_content_words(undated_text))
    if use_stop_words and not (content_words or search_words):
        content_words = [(word,) for word in list_query_terms(undated_text)]
    search_words += (
        SearchWord(variants)
        for variants in sorted(content_words, key=lambda variants: -len(variants[0]))
    )
    search_words = sorted(search_words[:MAX_SEARCH_WORDS], key=lambda item: -item.weight)
    search_words += (SearchWord((word,), is_counted=False) for word in date_words)
    return Question(tuple(search_words), tuple(date_spans), _list_phrases(undated_text))


def _list_content_words(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the words that are not fillers, each once, with all its forms."""
    words = list_query_terms(text)
    filler_words = choose_stop_words(list_phrase_terms(text))
    yielded_forms: set[str] = set()
    for word in words:
        if (
            word not in filler_words
            and word not in yielded_forms
            and (len(word) > 1 or not word.isascii())
        ):
            yield list_word_forms(word)
            yielded_forms.update(list_word_forms(word))


def _list_phrases(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the whole question if it is short, and each number or letter with the words before it ("rule 3").

    Words between a number and its noun may be left out: "rule number 3" and "rule no. 3" also ask for "rule 3".
    """
    phrase = list_phrase_terms(text)
    filler_words = choose_stop_words(phrase)
    phrases = [tuple(phrase)] if 1 < len(phrase) <= MAX_PHRASE_TERMS else []
    for index, term in enumerate(phrase):
        if not _is_number(term) or term in filler_words:
            continue
        nearby = range(index - 1, max(index - 1 - MAX_TERMS_BEFORE_NUMBER, -1), -1)
        positions = [position for position in nearby if phrase[position] not in filler_words]
        if positions[:2] == [index - 1, index - 2]:
            phrases.append(tuple(phrase[index - 2 : index + 1]))
        phrases += ((phrase[position], term) for position in positions)
    return tuple(sorted(dict.fromkeys(phrases), key=len, reverse=True))


def _is_number(term: str) -> bool:
    """Return whether a term counts or names one of several: a number, or a letter as in "plan B"."""
    return term.isdigit() or (len(term) == 1 and term.isascii())


def _split_dates(text: str, date_spans: Sequence[DateSpan]) -> tuple[str, list[str]]:
    """Return the text without its dates, and the words of the dates."""
    undated_text = text if len(text.casefold()) == len(text) else text.casefold()
    dates_text = " ".join(undated_text[slice(*span.position)] for span in date_spans)
    for start, end in sorted((span.position for span in date_spans), reverse=True):
        undated_text = f"{undated_text[:start]} {undated_text[end:]}"
    date_names = DAY_NAMES.union(load_language_data()["months"])
    return undated_text, [
        word for word in list_query_terms(dates_text) if word.isdigit() or word in date_names
    ]
