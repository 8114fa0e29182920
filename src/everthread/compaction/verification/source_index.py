"""Find words and figures of a summary in its sources.

The sources are read once, and divided in two ways. *Segments* have equal length, to find words that are near each
other. *Statements* are lines, long ones cut at the ends of sentences, to find words that are said together. For each
word of the summary, and for each figure, the index has the segments and the statements that hold it. All forms of a
word ("failed", "failing") count as one word.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from importlib import resources

from everthread.core.search.word_forms import list_word_forms

SEGMENT_CHARS = 200
MAX_NEAR_SEGMENTS = 2
"""Two words are near each other if their segments are at most this many apart."""
MAX_STATEMENT_CHARS = 240
MAX_BESIDE_TOKENS = 3
"""A figure is beside a word if they are at most this many tokens apart, in either order."""
MAX_NEGATED_TOKENS = 4
"""A negator applies to at most this many tokens of its clause."""
MAX_NEGATED_WORDS = 2
"""A negator applies to at most this many meaningful words of its clause."""

FIGURE_PATTERN = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+(?:\.\d+)*")
_CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_CONTRACTION = r"[a-z]+n['’]t\b"
_TOKEN_PATTERN = re.compile(
    rf"{_CONTRACTION}|{FIGURE_PATTERN.pattern}|[{_CJK}]+|[^\W\d_{_CJK}]+|[%‰°]|[,.;:!?()|→—\n]"
)
_CJK_RUN_PATTERN = re.compile(rf"[{_CJK}]{{3,}}")
_STATEMENT_BREAKS = frozenset(",.;:!?()|→—\n")
_NO_WORDS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Token:
    """A word or figure of a text, without case."""

    start: int
    text: str
    is_negated: bool


def read_tokens(lowered: str, stop_words: Set[str] = frozenset()) -> Iterator[Token]:
    """Yield the words and figures of a text in lower case. Writing without spaces is yielded as pairs of characters."""
    negated_tokens_left = 0
    negated_words_left = 0
    for match in _TOKEN_PATTERN.finditer(lowered):
        text = match[0]
        if text in _STATEMENT_BREAKS:
            negated_tokens_left = 0
        elif is_negator(text):
            negated_tokens_left = MAX_NEGATED_TOKENS
            negated_words_left = MAX_NEGATED_WORDS
        elif _CJK_RUN_PATTERN.fullmatch(text):
            yield from (
                Token(
                    match.start() + offset,
                    text[offset : offset + 2],
                    negated_tokens_left > 0,
                )
                for offset in range(len(text) - 1)
            )
        else:
            yield Token(match.start(), text, negated_tokens_left > 0)
            negated_words_left -= text not in stop_words
            negated_tokens_left = negated_tokens_left - 1 if negated_words_left > 0 else 0


def list_tokens(text: str) -> list[str]:
    """Return the words and figures of a text, in order, without negators."""
    return [token.text for token in read_tokens(text.casefold())]


def is_negator(word: str) -> bool:
    """Return whether a word negates the words after it."""
    return word.endswith(("n't", "n’t")) or word in _load_polarity().negators


def find_opposites(word: str) -> Set[str]:
    """Return the words with the opposite meaning, in all their forms."""
    return _load_polarity().opposites.get(word, _NO_WORDS)


@dataclass(frozen=True, slots=True)
class _Polarity:
    """The words that negate or reverse a statement."""

    negators: frozenset[str]
    opposites: dict[str, set[str]]


@functools.cache
def _load_polarity() -> _Polarity:
    """Load the negators and opposites from `data/polarity.toml`, once."""
    text = (
        resources.files("everthread.compaction").joinpath("data/polarity.toml").read_text("utf-8")
    )
    data = tomllib.loads(text)
    opposites: dict[str, set[str]] = defaultdict(set)
    for line in data["opposites"].split("\n"):
        pair = line.split()
        for word, opposite in (pair, pair[::-1]) if pair else ():
            for form in list_word_forms(word):
                opposites[form].update(list_word_forms(opposite))
    return _Polarity(frozenset(data["negators"].split()), dict(opposites))


def normalize_figure(figure: str) -> str:
    """Return the figure in a form for comparison: without separators, leading zeros or trailing zeros."""
    digits = figure.replace(",", "")
    if digits.count(".") == 1:
        digits = digits.rstrip("0").rstrip(".")
    return digits.lstrip("0") or "0"


@dataclass(slots=True)
class _Occurrences:
    """The occurrences of a word or figure."""

    segments: set[int] = field(default_factory=set)
    plain: set[int] = field(default_factory=set)
    """The statements that hold it without negation."""
    negated: set[int] = field(default_factory=set)
    """The statements that negate it."""


class SourceIndex:
    """The occurrences of the given words, and of all figures, in a text."""

    def __init__(self, text: str, words: Iterable[str], stop_words: Set[str]) -> None:
        self._text = text
        self._stop_words = stop_words
        self._lowered = text.casefold()
        self._words_by_form: dict[str, set[str]] = defaultdict(set)
        for word in words:
            for form in list_word_forms(word):
                self._words_by_form[form].add(word)
        self._statement_starts = [
            *_find_statement_starts(self._lowered),
            len(self._lowered) + 1,
        ]
        self._occurrences: dict[str, _Occurrences] = defaultdict(_Occurrences)
        self._adjacent_pairs: set[tuple[str, str]] = set()
        self._name_offsets: dict[str, list[int]] = {}
        self._segments_near_word: dict[str, Set[int]] = {}
        self._index_tokens()

    def _index_tokens(self) -> None:
        """Record in which segments and statements each token occurs, and which figures are near which words."""
        recent_tokens: deque[tuple[str, Set[str]]] = deque(maxlen=MAX_BESIDE_TOKENS)
        statement_index = 0
        for token in read_tokens(self._lowered, self._stop_words):
            while self._statement_starts[statement_index + 1] <= token.start:
                statement_index += 1
            if token.text[0].isdigit():
                value = normalize_figure(token.text)
                self._adjacent_pairs.update(
                    (value, word) for _, words in recent_tokens for word in words
                )
                recent_tokens.append((value, _NO_WORDS))
                keys: Set[str] = {value}
            else:
                keys = self._words_by_form.get(token.text, _NO_WORDS)
                self._adjacent_pairs.update(
                    (value, word) for value, _ in recent_tokens if value for word in keys
                )
                recent_tokens.append(("", keys))
            for key in keys:
                occurrences = self._occurrences[key]
                occurrences.segments.add(token.start // SEGMENT_CHARS)
                (occurrences.negated if token.is_negated else occurrences.plain).add(
                    statement_index
                )

    def is_beside(self, figure: str, word: str) -> bool:
        """Return whether the figure appears right before or after the word."""
        return (figure, word) in self._adjacent_pairs

    def find_segments(self, word: str) -> Set[int]:
        """Return every segment that holds the word or figure."""
        return self._occurrences[word].segments if word in self._occurrences else frozenset()

    def find_segments_near_word(self, word: str) -> Set[int]:
        """Return every segment near the word."""
        if word not in self._segments_near_word:
            self._segments_near_word[word] = add_neighbours(
                self.find_segments(word), MAX_NEAR_SEGMENTS
            )
        return self._segments_near_word[word]

    def find_segments_near_name(self, name: str) -> Set[int]:
        """Return every segment near the name, spelt exactly."""
        return add_neighbours(
            {start // SEGMENT_CHARS for start in self._find_name_offsets(name)},
            MAX_NEAR_SEGMENTS,
        )

    def find_statements(self, word: str, *, is_negated: bool | None = None) -> Set[int]:
        """Return the statements that hold the word or figure.

        If `is_negated` is given, return only those that negate it, or only those that do not.
        """
        if word not in self._occurrences:
            return frozenset()
        occurrences = self._occurrences[word]
        if is_negated is None:
            return occurrences.plain | occurrences.negated
        return occurrences.negated if is_negated else occurrences.plain

    def find_statements_naming(self, name: str) -> Set[int]:
        """Return the statements that hold the name, spelt exactly."""
        return {
            bisect_right(self._statement_starts, start) - 1
            for start in self._find_name_offsets(name)
        }

    def statement_text(self, number: int) -> str:
        """Return the original text of a statement."""
        return self._text[self._statement_starts[number] : self._statement_starts[number + 1]]

    def rarity(self, statements: Set[int]) -> float:
        """Return the weight of a word that these statements hold: the fewer statements, the more."""
        return math.log((len(self._statement_starts) + 1) / (len(statements) + 0.5))

    def _find_name_offsets(self, name: str) -> list[int]:
        """Return the offsets of the name in the text, searched once."""
        if name not in self._name_offsets:
            self._name_offsets[name] = [
                match.start() for match in re.finditer(re.escape(name), self._text)
            ]
        return self._name_offsets[name]


def add_neighbours(numbers: Set[int], distance: int) -> Set[int]:
    """Return the numbers, and every number within this distance of them."""
    return {number + step for number in numbers for step in range(-distance, distance + 1)}


def _find_statement_starts(text: str) -> Iterator[int]:
    """Yield the offsets at which statements begin."""
    start = 0
    for line in text.split("\n"):
        end = start + len(line)
        while start < end:
            yield start
            start = _find_statement_end(text, start, end)
        start = end + 1


def _find_statement_end(text: str, start: int, end: int) -> int:
    """Return the end of a statement: the end of its line, or in a long line the end of a sentence or word."""
    limit = start + MAX_STATEMENT_CHARS
    if limit >= end:
        return end
    sentence = text.rfind(". ", start + 1, limit)
    word = text.rfind(" ", start + MAX_STATEMENT_CHARS // 2, limit)
    cut_index = max(sentence, word)
    return cut_index + 1 if cut_index > start else limit
