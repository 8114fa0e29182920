"""Quote the user word for word in a section of the summary that no model touches.

Every user message outside head and tail is an entry, in order, under its number in the thread. If not all fit, the
most informative sentences of each are kept. The section can be read back exactly: a line of the user that looks like a
marker of the section gets a backslash in front.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from everthread.compaction.summary.sentences import (
    GAP,
    CountTokens,
    Sentence,
    WordRarity,
    clip_tokens,
    join_sentences,
    split_sentences,
)

REPEATED_NOTE = "(A number without a line was said again later, word for word.)"
NOT_SHOWN = "numbers without a line are not shown"
NO_WORDS_NOTE = "an image or a file without words"
SHORTENED_MARK = ", shortened"
_ENTRY_START_PATTERN = re.compile(
    r"\[(\d{1,9})(?:–(\d{1,9}))?(?:(, shortened)\] |\] |: ([^\]\n]{1,80})\]$)"
)
_HEADING_PATTERN = re.compile(r"#{1,6}[ \t]")
_SUMMARY_MARKER_PATTERN = re.compile(r"\[(?:END OF )?EVERTHREAD SUMMARY")
_NUMBER_TOKENS = 6
"""Approximate tokens of an entry's number and a mark."""
_MIN_END_CHARS = 10
"""A sentence at the end of a line with fewer characters is only shown together with the sentence before it."""
_SHORT_MESSAGE_TOKENS = 30
"""A message of at most this many tokens is kept in full. At least as many tokens of a longer one are kept."""
_SHORT_SENTENCE_TOKENS = 12
"""Score shorter sentences as if they had this many tokens, so that being short gives no advantage."""
_BEST_SENTENCE_WEIGHT = 1.5
"""Weight of a message's best sentence, so that every message is shown before one is shown in full."""


@dataclass(frozen=True)
class UserQuote:
    """The quote of one message of the user, or a note for a range of them."""

    number: int
    text: str = ""
    note: str = ""
    """Replaces the text if it is empty or not shown."""
    is_shortened: bool = False
    """Whether the text is only a part of the message."""
    range_end: int = 0
    """The last number of a range that is not shown, or 0 for a single message."""

    @property
    def last_number(self) -> int:
        """The number of the last message that the quote covers."""
        return self.range_end or self.number

    @cached_property
    def line(self) -> str:
        """The text of the entry in the section."""
        span = (
            f"{self.number}–{self.range_end}" if self.range_end > self.number else str(self.number)
        )
        if self.note:
            return f"[{span}: {self.note}]"
        first_line, *other_lines = self.text.split("\n")
        first_line = f"\\{first_line}" if _looks_like_marker(first_line) else first_line
        escaped_lines = [
            f"\\{line}" if _looks_like_section_line(line) else line for line in other_lines
        ]
        return "\n".join(
            [
                f"[{span}{SHORTENED_MARK if self.is_shortened else ''}] {first_line}",
                *escaped_lines,
            ]
        )


def make_user_quote(number: int, text: str) -> UserQuote:
    """Return the quote of a message of the user, or a note if the message has no text."""
    return UserQuote(number, text) if text else UserQuote(number, note=NO_WORDS_NOTE)


def render_quotes(entries: Sequence[UserQuote], max_tokens: int, count: CountTokens) -> str:
    """Render the section within `max_tokens` tokens. If no quote fits, return one line that says so."""
    visible_entries = sorted(
        (entry for entry in entries if entry.note != NOT_SHOWN),
        key=lambda entry: entry.number,
    )
    if not visible_entries:
        return _make_range_quote(entries, NOT_SHOWN).line if entries else ""
    distinct_entries = _drop_repeats(visible_entries)
    was_cut = len(visible_entries) < len(entries)
    text = _join_quotes(distinct_entries)
    if count(text) <= max_tokens and not was_cut:
        return text
    best_text = _make_range_quote(entries).line
    remaining = max_tokens
    sentence_pool = _SentencePool(distinct_entries, count)
    for _ in range(5):
        selection = sentence_pool.select_quotes(remaining)
        quotes = [message for message in selection if message.note != NOT_SHOWN]
        if was_cut or len(quotes) < len(selection):
            selection = [_make_range_quote(entries, NOT_SHOWN), *quotes]
        text = _join_quotes(selection)
        spare_tokens = max_tokens - count(text)
        if spare_tokens >= 0:
            best_text = text
        if 0 <= spare_tokens <= max_tokens // 50:
            break
        remaining += spare_tokens
    return best_text


def _join_quotes(entries: Sequence[UserQuote]) -> str:
    """Return the lines of the quotes, with a note about missing numbers."""
    single_entries = [entry for entry in entries if not entry.range_end]
    has_gaps = any(
        next_entry.number > previous_entry.number + 1
        for previous_entry, next_entry in pairwise(single_entries)
    )
    has_note = any(entry.note == NOT_SHOWN for entry in entries)
    return "\n".join(
        [
            *([REPEATED_NOTE] if has_gaps and not has_note else []),
            *(entry.line for entry in entries),
        ]
    )


def parse_quotes(text: str) -> list[UserQuote]:
    """Parse the quotes of a section that `render_quotes` wrote. Drop text before the first one."""
    entries: list[UserQuote] = []
    lines: list[str] = []

    def finish_entry() -> None:
        if entries and not entries[-1].note:
            entries[-1] = replace(entries[-1], text="\n".join(lines).rstrip("\n"))

    for line in text.split("\n"):
        entry_start = _ENTRY_START_PATTERN.match(line)
        if entry_start is None:
            lines.append(
                line[1:] if line.startswith("\\") and _looks_like_section_line(line) else line
            )
            continue
        finish_entry()
        note = entry_start[4] or ""
        entries.append(
            UserQuote(
                int(entry_start[1]),
                note=note,
                is_shortened=entry_start[3] is not None,
                range_end=int(entry_start[2] or 0),
            )
        )
        first_line = line[entry_start.end() :]
        if first_line.startswith("\\") and _looks_like_marker(first_line):
            first_line = first_line[1:]
        lines = [] if note else [first_line]
    finish_entry()
    return entries


def count_quote_tokens(entry: UserQuote, count: CountTokens) -> int:
    """Return the tokens of a quote, including its number."""
    return count(entry.line) + 1


def _looks_like_section_line(line: str) -> bool:
    """Return whether a line, without backslashes, could be read as a quote's first line, a heading or a marker."""
    text = line.lstrip("\\")
    return bool(
        _ENTRY_START_PATTERN.match(text) or _HEADING_PATTERN.match(text)
    ) or _looks_like_marker(text)


def _looks_like_marker(line: str) -> bool:
    """Return whether a line, without backslashes, could be read as the first or last one of a summary."""
    return _SUMMARY_MARKER_PATTERN.match(line.lstrip("\\")) is not None


def _drop_repeats(entries: list[UserQuote]) -> list[UserQuote]:
    """Drop the quotes that a later quote repeats word for word. Keep shortened quotes, whose full text is unknown."""
    latest_number_by_text = {
        entry.text: entry.number for entry in entries if not entry.is_shortened
    }
    return [
        entry
        for entry in entries
        if entry.is_shortened or not entry.text or latest_number_by_text[entry.text] == entry.number
    ]


class _SentencePool:
    """The sentences of all entries, ranked by their score for their length.

    A sentence that a later message repeats is not ranked.
    """

    def __init__(self, entries: list[UserQuote], count: CountTokens) -> None:
        self.entries = entries
        self.count_tokens = count
        self.sentences: list[list[Sentence]] = []
        self.unrepeated_numbers: list[list[int]] = []
        """For each entry, the numbers of the sentences that no later entry repeats."""
        self._read_sentences()
        self.sentence_tokens = [
            [count(self.get_sentence_text(index, number)) + 2 for number in range(len(sentences))]
            for index, sentences in enumerate(self.sentences)
        ]
        self.ranked_sentences = self._rank_sentences()
        """Pairs of entry and sentence, the highest score first."""

    def _read_sentences(self) -> None:
        """Split the entries into sentences, and join a very short one to the sentence before it."""
        split_entries = [split_sentences(entry.text) for entry in self.entries]
        last_entries = {
            self._sentence_key(index, sentence): index
            for index, sentences in enumerate(split_entries)
            for sentence in sentences
        }
        for index, sentences in enumerate(split_entries):
            joined_sentences: list[Sentence] = []
            unrepeated_numbers: set[int] = set()
            for sentence in sentences:
                if (
                    joined_sentences
                    and joined_sentences[-1].end == sentence.start
                    and sentence.end - sentence.start < _MIN_END_CHARS
                ):
                    joined_sentences[-1] = joined_sentences[-1]._replace(end=sentence.end)
                else:
                    joined_sentences.append(sentence)
                if last_entries[self._sentence_key(index, sentence)] == index:
                    unrepeated_numbers.add(len(joined_sentences) - 1)
            self.sentences.append(joined_sentences)
            self.unrepeated_numbers.append(sorted(unrepeated_numbers))

    def _rank_sentences(self) -> list[tuple[int, int]]:
        """Return pairs of entry and unrepeated sentence, the highest score first.

        The best sentence of an entry gets extra weight, so that it comes before most others.
        """
        rarity = WordRarity(entry.text for entry in self.entries)
        scored_sentences: list[tuple[float, int, int]] = []
        for index in range(len(self.sentences)):
            scores = self._score_sentences(index, rarity)
            best_score = max(scores, default=0.0)
            for number in self.unrepeated_numbers[index]:
                weight = _BEST_SENTENCE_WEIGHT if scores[number] == best_score else 1.0
                scored_sentences.append((scores[number] * weight, index, number))
        scored_sentences.sort(
            key=lambda scored_sentence: (
                -scored_sentence[0],
                -scored_sentence[1],
                scored_sentence[2],
            )
        )
        return [(index, number) for _, index, number in scored_sentences]

    def _score_sentences(self, index: int, rarity: WordRarity) -> list[float]:
        """Return the score of each sentence of an entry, for its length."""
        return [
            rarity.score(self.get_sentence_text(index, number))
            / math.pow(max(tokens, _SHORT_SENTENCE_TOKENS) + 4, 0.7)
            * (0.25 if self.sentences[index][number].is_minor else 1.0)
            for number, tokens in enumerate(self.sentence_tokens[index])
        ]

    def get_sentence_text(self, index: int, number: int) -> str:
        """Return the text of a sentence of an entry."""
        return self._sentence_key(index, self.sentences[index][number])

    def _sentence_key(self, index: int, sentence: Sentence) -> str:
        """Return the text of a sentence, which equal sentences share."""
        return self.entries[index].text[sentence.start : sentence.end].strip()

    def select_quotes(self, max_tokens: int) -> list[UserQuote]:
        """Return quotes within `max_tokens` tokens: short messages in full, of others the first and the best sentences.

        If not even the first sentences fit, keep the most informative messages, preferring newer ones, and add a line
        that says that other numbers are not shown.
        """
        selection = _QuoteSelection(self, max_tokens)
        if not selection.take_openings():
            selection = _QuoteSelection(self, max_tokens - 3 * _NUMBER_TOKENS)
        selection.take_best_sentences()
        quotes = selection.list_quotes()
        if len(quotes) == len(self.entries):
            return quotes
        return [_make_range_quote(self.entries, NOT_SHOWN), *quotes]


class _QuoteSelection:
    """A selection of sentences that is filled step by step until its tokens are used up."""

    def __init__(self, pool: _SentencePool, max_tokens: int) -> None:
        self._pool = pool
        self._remaining_tokens = max_tokens
        self._chosen_numbers: dict[int, set[int]] = {}
        """The numbers of the chosen sentences, by the index of the message."""
        self._clipped_openings: dict[int, int] = {}
        """The number of the first sentence, by the index of the message, if only the sentence's beginning is shown."""

    def take_openings(self) -> bool:
        """Take every short message, and the first sentence of others or its beginning; return whether all fit."""
        pool = self._pool
        for index, fresh_numbers in enumerate(pool.unrepeated_numbers):
            is_short_message = (
                sum(pool.sentence_tokens[index][number] for number in fresh_numbers)
                <= _SHORT_MESSAGE_TOKENS
            )
            if (fresh_numbers or not pool.sentences[index]) and not self._take_sentences(
                index, fresh_numbers if is_short_message else ()
            ):
                return False
        return True

    def take_best_sentences(self) -> None:
        """Take the best sentences that still fit."""
        for index, number in self._pool.ranked_sentences:
            if (
                number not in self._chosen_numbers.get(index, ())
                and self._pool.sentence_tokens[index][number] <= self._remaining_tokens
            ):
                self._take_sentences(index, (number,))

    def _take_sentences(self, index: int, numbers: Iterable[int]) -> bool:
        """Take these sentences of a message if they fit; return whether they did.

        If no sentence of the message was taken before, also take its first sentence, or the beginning of that.
        """
        chosen_numbers = self._chosen_numbers.get(index, set())
        tokens = self._pool.sentence_tokens[index]
        cost = 0
        new_numbers = {*numbers} - chosen_numbers
        clipped_numbers = []
        if index not in self._chosen_numbers:
            opening_numbers = [
                number
                for number in self._pool.unrepeated_numbers[index][:1]
                if number not in new_numbers
            ]
            clipped_numbers = [
                number for number in opening_numbers if tokens[number] > _SHORT_MESSAGE_TOKENS
            ]
            new_numbers.update(opening_numbers if not clipped_numbers else ())
            cost = _NUMBER_TOKENS + _SHORT_MESSAGE_TOKENS * len(clipped_numbers)
        cost += sum(tokens[number] for number in new_numbers)
        if cost > self._remaining_tokens:
            return False
        self._remaining_tokens -= cost
        self._chosen_numbers[index] = chosen_numbers | new_numbers
        self._clipped_openings.update((index, number) for number in clipped_numbers)
        return True

    def list_quotes(self) -> list[UserQuote]:
        """Return the quotes of all messages with chosen sentences."""
        entries = (self._make_quote(index, entry) for index, entry in enumerate(self._pool.entries))
        return [entry for entry in entries if entry is not None]

    def _make_quote(self, index: int, entry: UserQuote) -> UserQuote | None:
        """Return the quote of a message from its chosen sentences, or None if there are none."""
        sentences = self._pool.sentences[index]
        numbers = sorted(self._chosen_numbers.get(index, ()))
        if not sentences:
            return entry if index in self._chosen_numbers else None
        if len(numbers) == len(sentences):
            return entry
        opening = ""
        clipped_number = self._clipped_openings.get(index)
        if clipped_number is not None and clipped_number not in numbers:
            opening = clip_tokens(
                self._pool.get_sentence_text(index, clipped_number),
                _SHORT_MESSAGE_TOKENS - 4,
                self._pool.count_tokens,
            )
        quote = join_sentences(entry.text, sentences, numbers) if numbers else ""
        text = " ".join(
            filter(None, (opening, quote.removeprefix(f"{GAP} ") if opening else quote))
        )
        return UserQuote(entry.number, text, is_shortened=True) if text else None


def _make_range_quote(entries: Sequence[UserQuote], note: str = "not shown") -> UserQuote:
    """Return a note that covers the range of all these messages."""
    return UserQuote(
        min(entry.number for entry in entries),
        note=note,
        range_end=max(entry.last_number for entry in entries),
    )
