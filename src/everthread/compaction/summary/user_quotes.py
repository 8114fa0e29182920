"""Shorten texts by whole sentences, and quote the user word for word in a section that no model touches.

Every user message outside head and tail is an entry, in order, under its number in the thread. If not all fit, each
gets its share of the room. The section can be read back exactly: a line of the user that looks like a marker of the
section gets a backslash in front.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

CountTokens = Callable[[str], int]
GAP = "[…]"
"""Marks a place with omitted text."""

_SENTENCE_END = re.compile(
    r"[.!?…。！？](?:(?<=[.!?…])(?<![\s(*_]\d.)(?<![\s(*_]\d\d.)[.!?…]{0,2}[\"'”’)\]]{0,3}(?=\s)"
    r"|(?<=[。！？])[。！？]{0,2}[」』”’）]{0,3})"
)
"""It begins with a small set of characters that a scan can skip to; a number before the sign is checked last."""
_WORD = re.compile(r"\w+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FENCE = re.compile(r"^\s{0,3}(?:```|~~~)")
_MIN_SENTENCE_CHARS = 24
"""A shorter sentence, in characters, is joined with the next one on its line."""
_MIN_END_CHARS = 10
"""A shorter sentence, in characters, at the end of its line is not shown without the one before it."""
_MAX_PARTIAL_WORD_CHARS = 24
"""A longer partial word at the end of a cut text stays: writing without spaces, a path."""
_MIN_PASTED_LINES = 4
"""This many lines of one shape in a row are a pasted block, not prose."""


class Sentence(NamedTuple):
    """A piece of a text: its span, and whether it is minor (a question, or pasted)."""

    start: int
    end: int
    is_minor: bool


@lru_cache(maxsize=512)
def split_sentences(text: str) -> Sequence[Sentence]:
    """Split the text, in order, at line ends, after punctuation that ends a sentence, and at marked gaps."""
    pasted_flags = _find_pasted_lines(text)
    sentences: list[Sentence] = []
    position = 0
    for number, line in enumerate(text.split("\n")):
        for part in line.split(GAP):
            start = position
            end = position + len(part)
            position = end + len(GAP)
            if not part.strip():
                continue
            cuts = (
                [end]
                if pasted_flags[number]
                else [
                    *(start + match.end() for match in _SENTENCE_END.finditer(part)),
                    end,
                ]
            )
            for cut_end in cuts:
                sentence_text = text[start:cut_end].strip()
                if not sentence_text:
                    continue
                is_minor = pasted_flags[number] or sentence_text.endswith(("?", "？"))
                if (
                    sentences
                    and sentences[-1].end >= start
                    and sentences[-1].end - sentences[-1].start < _MIN_SENTENCE_CHARS
                ):
                    sentences[-1] = Sentence(sentences[-1].start, cut_end, is_minor)
                else:
                    sentences.append(Sentence(start, cut_end, is_minor))
                start = cut_end
        position += 1 - len(GAP)
    return sentences


def _find_pasted_lines(text: str) -> list[bool]:
    """Return which lines were pasted: inside a fence, or several in a row with more signs than words."""
    lines = text.split("\n")
    flags = [False] * len(lines)
    if len(lines) < _MIN_PASTED_LINES and "```" not in text and "~~~" not in text:
        return flags
    is_fenced = False
    technical_run = 0
    for number, line in enumerate(lines):
        if _FENCE.match(line):
            is_fenced = not is_fenced
            flags[number] = True
            continue
        flags[number] = is_fenced
        technical_run = (
            technical_run + 1
            if len(lines) >= _MIN_PASTED_LINES and _is_technical(line)
            else 0
        )
        if technical_run == _MIN_PASTED_LINES:
            flags[number - technical_run + 1 : number] = [True] * (technical_run - 1)
        flags[number] = flags[number] or technical_run >= _MIN_PASTED_LINES
    return flags


def _is_technical(line: str) -> bool:
    """Return whether a line is code, a log or a table: indented, or with few letters and spaces."""
    body = line[:300].strip()
    if not body:
        return False
    return line[:1] in (" ", "\t") or sum(map(str.isalpha, body)) + body.count(
        " "
    ) < 0.75 * len(body)


@lru_cache(maxsize=4_096)
def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a text, without case; writing without spaces as pairs of characters."""
    spaced_words: list[str] = _WORD.findall(text.casefold())
    if text.isascii() or _CJK.search(text) is None:
        return tuple(spaced_words)
    words: list[str] = []
    for word in spaced_words:
        if _CJK.search(word):
            words += (word[index : index + 2] for index in range(max(len(word) - 1, 1)))
        else:
            words.append(word)
    return tuple(words)


class WordRarity:
    """The weight of words among some texts: a word that few of them hold weighs most."""

    def __init__(self, texts: Iterable[str]) -> None:
        words = [set(split_words(text)) for text in texts]
        self._text_count = len(words)
        self._texts_with_word = Counter(chain.from_iterable(words))
        self._weights: dict[str, float] = {}

    def score(self, text: str) -> float:
        """Return the weight of a sentence, by its words; figures weigh more than words."""
        return self.score_words(dict.fromkeys(split_words(text)))

    def score_words(self, words: Iterable[str]) -> float:
        """Return the weight of these words, each of them once."""
        total = 0.0
        weights = self._weights
        for word in words:
            total += weights.get(word) or self._weigh(word)
        return total

    def _weigh(self, word: str) -> float:
        rarity = (
            math.log((self._text_count + 1) / (self._texts_with_word[word] or 1)) + 0.1
        )
        self._weights[word] = rarity + (1.5 if word[0].isdigit() else 0.0)
        return self._weights[word]


def shorten_to_sentences(
    text: str, room: int, count: CountTokens, rarity: WordRarity
) -> str:
    """Shorten the text to `room` tokens: its first sentence, then the most informative for their length, in order."""
    if count(text) <= room:
        return text
    sentences = split_sentences(text)
    sizes = [count(text[sentence.start : sentence.end]) + 3 for sentence in sentences]
    if not sentences or sizes[0] > room:
        return clip_tokens(
            text[sentences[0].start : sentences[0].end] if sentences else text,
            room,
            count,
        )

    def score_per_size(number: int) -> float:
        sentence = sentences[number]
        score = rarity.score(text[sentence.start : sentence.end]) / math.pow(
            sizes[number] + 4, 0.7
        )
        return score * (0.25 if sentence.is_minor else 1.0)

    chosen_numbers = {0}
    remaining = room - sizes[0]
    for number in sorted(
        range(1, len(sentences)), key=lambda number: (-score_per_size(number), -number)
    ):
        if sizes[number] <= remaining:
            chosen_numbers.add(number)
            remaining -= sizes[number]
    return join_sentences(text, sentences, sorted(chosen_numbers))


def join_sentences(
    text: str, sentences: Sequence[Sentence], chosen_numbers: list[int]
) -> str:
    """Join the chosen pieces with the original text between neighbours, and mark the gaps."""
    parts = (
        [f"{GAP} "] if chosen_numbers[0] or GAP in text[: sentences[0].start] else []
    )
    parts.append(
        text[
            sentences[chosen_numbers[0]].start : sentences[chosen_numbers[0]].end
        ].strip()
    )
    for previous_number, number in pairwise(chosen_numbers):
        sentence_text = text[sentences[number].start : sentences[number].end]
        between = text[sentences[previous_number].end : sentences[number].start]
        if number > previous_number + 1 or GAP in between:
            parts[-1] = parts[-1].rstrip()
            if not between.endswith("\n"):
                sentence_text = sentence_text.lstrip()
            between = f"\n{GAP}\n" if "\n" in between else f" {GAP} "
        parts += (between, sentence_text)
    is_cut = chosen_numbers[-1] < len(sentences) - 1 or GAP in text[sentences[-1].end :]
    return "".join(parts).rstrip() + (f" {GAP}" if is_cut else "")


def _cut_at_word(text: str, length: int) -> str:
    """Return the beginning of a text, at most `length` characters, without a partial word at its end."""
    beginning = text[:length].rstrip()
    if length >= len(text) or text[length].isspace() or length != len(beginning):
        return beginning
    words = beginning.rsplit(None, 1)[0].rstrip()
    return (
        words
        if len(beginning) - len(words) <= _MAX_PARTIAL_WORD_CHARS
        and 2 * len(words) > length
        else beginning
    )


def clip_tokens(text: str, room: int, count: CountTokens) -> str:
    """Return the beginning of a text within `room` tokens, and the mark for the rest."""
    if count(text) <= room:
        return text
    if room <= 2:
        return GAP
    length = min(len(text), room * 8)
    while length > 0:
        beginning = f"{_cut_at_word(text, length)} {GAP}"
        excess = count(beginning) - room
        if excess <= 0:
            return beginning
        length = min(length - max(excess, 1), length * room // (room + excess))
    return GAP


def keep_newest_lines(lines: Sequence[str], room: int, count: CountTokens) -> list[str]:
    """Return the last of these lines that fit into `room` tokens."""
    start = len(lines)
    while start and room >= (size := count(lines[start - 1]) + 2):
        room -= size
        start -= 1
    return list(lines[start:])


# Quotes of the user


REPEATED_NOTE = "(A number without a line was said again later, word for word.)"
NOT_SHOWN = "numbers without a line are not shown"
NO_WORDS_NOTE = "an image or a file without words"
SHORTENED_MARK = ", shortened"
_ENTRY_START = re.compile(
    r"\[(\d{1,9})(?:–(\d{1,9}))?(?:(, shortened)\] |\] |: ([^\]\n]{1,80})\]$)"
)
_HEADING = re.compile(r"#{1,6}[ \t]")
_SUMMARY_MARKER = re.compile(r"\[(?:END OF )?EVERTHREAD SUMMARY")
_NUMBER_TOKENS = 6
"""Approximate tokens of an entry's number and a mark."""
_SHORT_MESSAGE_TOKENS = 30
"""A message of at most this many tokens is short; if not all fit, the beginning of a longer one gets as many."""
_SHORT_SENTENCE_TOKENS = 12
"""Shorter sentences are scored as if they had this many tokens, since fewer tokens make them no better."""
_BEST_SENTENCE_WEIGHT = 1.5
"""Weight of a message's best sentence, so that every message is shown before one is shown in full."""


@dataclass(frozen=True)
class UserQuote:
    """One message of the user. `note` replaces the text if it is empty or not shown."""

    number: int
    text: str = ""
    note: str = ""
    is_shortened: bool = False
    """Whether the text is only a part of the message."""
    range_end: int = 0
    """The last number of a range that is not shown; 0 for a single message."""

    @property
    def last_number(self) -> int:
        return self.range_end or self.number

    @cached_property
    def line(self) -> str:
        """The text of the entry in the section."""
        span = (
            f"{self.number}–{self.range_end}"
            if self.range_end > self.number
            else str(self.number)
        )
        if self.note:
            return f"[{span}: {self.note}]"
        first_line, *other_lines = self.text.split("\n")
        first_line = f"\\{first_line}" if _looks_like_marker(first_line) else first_line
        escaped_lines = [
            f"\\{line}" if _looks_like_section_line(line) else line
            for line in other_lines
        ]
        return "\n".join(
            [
                f"[{span}{SHORTENED_MARK if self.is_shortened else ''}] {first_line}",
                *escaped_lines,
            ]
        )


def make_user_quote(number: int, text: str) -> UserQuote:
    """Return a user's message as an entry."""
    return UserQuote(number, text) if text else UserQuote(number, note=NO_WORDS_NOTE)


def render_quotes(entries: Sequence[UserQuote], room: int, count: CountTokens) -> str:
    """Render the section within `room` tokens; if nothing fits, one line that says so."""
    visible_entries = sorted(
        (entry for entry in entries if entry.note != NOT_SHOWN),
        key=lambda entry: entry.number,
    )
    if not visible_entries:
        return _make_range_quote(entries, NOT_SHOWN).line if entries else ""
    distinct_entries = _drop_repeats(visible_entries)
    was_cut = len(visible_entries) < len(entries)
    text = _join_quotes(distinct_entries)
    if count(text) <= room and not was_cut:
        return text
    best_text = _make_range_quote(entries).line
    remaining = room
    sentence_offers = _SentenceOffers(distinct_entries, count)
    for _ in range(5):
        selection = sentence_offers.select_quotes(remaining)
        quotes = [message for message in selection if message.note != NOT_SHOWN]
        if was_cut or len(quotes) < len(selection):
            selection = [_make_range_quote(entries, NOT_SHOWN), *quotes]
        text = _join_quotes(selection)
        spare_tokens = room - count(text)
        if spare_tokens >= 0:
            best_text = text
        if 0 <= spare_tokens <= room // 50:
            break
        remaining += spare_tokens
    return best_text


def _join_quotes(entries: Sequence[UserQuote]) -> str:
    """Return the lines of the entries, and a note about missing numbers."""
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
    """Parse the entries of a section that `render_quotes` wrote. Drop text before the first entry."""
    entries: list[UserQuote] = []
    lines: list[str] = []

    def finish_entry() -> None:
        if entries and not entries[-1].note:
            entries[-1] = replace(entries[-1], text="\n".join(lines).rstrip("\n"))

    for line in text.split("\n"):
        entry_start = _ENTRY_START.match(line)
        if entry_start is None:
            lines.append(
                line[1:]
                if line.startswith("\\") and _looks_like_section_line(line)
                else line
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
        lines = (
            []
            if note
            else [
                first_line[1:]
                if first_line.startswith("\\") and _looks_like_marker(first_line)
                else first_line
            ]
        )
    finish_entry()
    return entries


def count_quote_tokens(entry: UserQuote, count: CountTokens) -> int:
    """Return the tokens of an entry, including its number."""
    return count(entry.line) + 1


def _looks_like_section_line(line: str) -> bool:
    """Return whether a line, without backslashes, could pass for an entry's first line, a heading or a marker."""
    text = line.lstrip("\\")
    return bool(_ENTRY_START.match(text) or _HEADING.match(text)) or _looks_like_marker(
        text
    )


def _looks_like_marker(line: str) -> bool:
    """Return whether a line, without backslashes, could pass for the first or last one of a summary."""
    return _SUMMARY_MARKER.match(line.lstrip("\\")) is not None


def _drop_repeats(entries: list[UserQuote]) -> list[UserQuote]:
    """Drop the entries that a later one repeats word for word.

    Keep shortened ones: the rest of their text is unknown.
    """
    latest_numbers = {
        entry.text: entry.number for entry in entries if not entry.is_shortened
    }
    return [
        entry
        for entry in entries
        if entry.is_shortened
        or not entry.text
        or latest_numbers[entry.text] == entry.number
    ]


class _SentenceOffers:
    """Every sentence with its tokens and its score for its length. One that a later message repeats is not offered."""

    def __init__(self, entries: list[UserQuote], count: CountTokens) -> None:
        self.entries = entries
        self.count = count
        rarity = WordRarity(entry.text for entry in entries)
        sentences = [split_sentences(entry.text) for entry in entries]
        latest = {
            self._sentence_key(index, sentence): index
            for index, message_sentences in enumerate(sentences)
            for sentence in message_sentences
        }
        self.sentences: list[list[Sentence]] = []
        self.unrepeated_numbers: list[list[int]] = []
        for index, message_sentences in enumerate(sentences):
            pieces: list[Sentence] = []
            fresh_numbers: set[int] = set()
            for sentence in message_sentences:
                if (
                    pieces
                    and pieces[-1].end == sentence.start
                    and sentence.end - sentence.start < _MIN_END_CHARS
                ):
                    pieces[-1] = pieces[-1]._replace(end=sentence.end)
                else:
                    pieces.append(sentence)
                if latest[self._sentence_key(index, sentence)] == index:
                    fresh_numbers.add(len(pieces) - 1)
            self.sentences.append(pieces)
            self.unrepeated_numbers.append(sorted(fresh_numbers))
        self.sentence_tokens: list[list[int]] = []
        self.ranked_sentences: list[tuple[int, int]] = []
        """Pairs of message and sentence, the highest score first; a message's best sentence comes before its others."""
        worths: list[tuple[float, int, int]] = []
        for index, pieces in enumerate(self.sentences):
            texts = [self.sentence_text(index, number) for number in range(len(pieces))]
            self.sentence_tokens.append([count(text) + 2 for text in texts])
            scores = [
                rarity.score(text)
                / math.pow(max(tokens, _SHORT_SENTENCE_TOKENS) + 4, 0.7)
                * (0.25 if piece.is_minor else 1.0)
                for text, tokens, piece in zip(
                    texts, self.sentence_tokens[index], pieces, strict=True
                )
            ]
            best_score = max(scores, default=0.0)
            worths += (
                (
                    scores[position]
                    * (
                        _BEST_SENTENCE_WEIGHT if scores[position] == best_score else 1.0
                    ),
                    index,
                    position,
                )
                for position in self.unrepeated_numbers[index]
            )
        self.ranked_sentences = [
            (index, position)
            for _, index, position in sorted(
                worths, key=lambda worth: (-worth[0], -worth[1], worth[2])
            )
        ]

    def sentence_text(self, index: int, number: int) -> str:
        sentence = self.sentences[index][number]
        return self.entries[index].text[sentence.start : sentence.end].strip()

    def _sentence_key(self, index: int, sentence: Sentence) -> str:
        """Return the key that equal sentences share: their text."""
        return self.entries[index].text[sentence.start : sentence.end].strip()

    def select_quotes(self, room: int) -> list[UserQuote]:
        """Keep short messages whole and the first sentence of longer ones; fill the room with the best sentences.

        If not even that fits, keep the most informative messages, the newest of equal ones, and add one line that says
        that numbers without a line are not shown.
        """
        selection = _QuoteSelection(self, room)
        if not selection.take_openings():
            selection = _QuoteSelection(self, room - 3 * _NUMBER_TOKENS)
        selection.take_best_sentences()
        quotes = selection.list_quotes()
        return (
            quotes
            if len(quotes) == len(self.entries)
            else [_make_range_quote(self.entries, NOT_SHOWN), *quotes]
        )


class _QuoteSelection:
    """The room, filled sentence by sentence."""

    def __init__(self, offers: _SentenceOffers, room: int) -> None:
        self._offers = offers
        self._room = room
        self._chosen_numbers: dict[int, set[int]] = {}
        self._clipped_openings: dict[int, int] = {}

    def take_openings(self) -> bool:
        """Take every short message, of others the first sentence or its beginning; whether all fit."""
        offers = self._offers
        for index, fresh_numbers in enumerate(offers.unrepeated_numbers):
            is_short_message = (
                sum(offers.sentence_tokens[index][number] for number in fresh_numbers)
                <= _SHORT_MESSAGE_TOKENS
            )
            if (
                fresh_numbers or not offers.sentences[index]
            ) and not self._take_sentences(
                index, fresh_numbers if is_short_message else ()
            ):
                return False
        return True

    def take_best_sentences(self) -> None:
        for index, number in self._offers.ranked_sentences:
            if (
                number not in self._chosen_numbers.get(index, ())
                and self._offers.sentence_tokens[index][number] <= self._room
            ):
                self._take_sentences(index, (number,))

    def _take_sentences(self, index: int, numbers: Iterable[int]) -> bool:
        """Take these sentences, with the first of a message also its first sentence or its beginning, if all fit."""
        chosen_numbers = self._chosen_numbers.get(index, set())
        tokens = self._offers.sentence_tokens[index]
        cost = 0
        new_numbers = {*numbers} - chosen_numbers
        clipped_numbers = []
        if index not in self._chosen_numbers:
            opening_numbers = [
                number
                for number in self._offers.unrepeated_numbers[index][:1]
                if number not in new_numbers
            ]
            clipped_numbers = [
                number
                for number in opening_numbers
                if tokens[number] > _SHORT_MESSAGE_TOKENS
            ]
            new_numbers.update(opening_numbers if not clipped_numbers else ())
            cost = _NUMBER_TOKENS + _SHORT_MESSAGE_TOKENS * len(clipped_numbers)
        cost += sum(tokens[number] for number in new_numbers)
        if cost > self._room:
            return False
        self._room -= cost
        self._chosen_numbers[index] = chosen_numbers | new_numbers
        self._clipped_openings.update((index, number) for number in clipped_numbers)
        return True

    def list_quotes(self) -> list[UserQuote]:
        entries = (
            self._make_quote(index, entry)
            for index, entry in enumerate(self._offers.entries)
        )
        return [entry for entry in entries if entry is not None]

    def _make_quote(self, index: int, entry: UserQuote) -> UserQuote | None:
        sentences = self._offers.sentences[index]
        numbers = sorted(self._chosen_numbers.get(index, ()))
        if not sentences:
            return entry if index in self._chosen_numbers else None
        if len(numbers) == len(sentences):
            return entry
        opening = ""
        clipped_number = self._clipped_openings.get(index)
        if clipped_number is not None and clipped_number not in numbers:
            opening = clip_tokens(
                self._offers.sentence_text(index, clipped_number),
                _SHORT_MESSAGE_TOKENS - 4,
                self._offers.count,
            )
        quote = join_sentences(entry.text, sentences, numbers) if numbers else ""
        text = " ".join(
            filter(None, (opening, quote.removeprefix(f"{GAP} ") if opening else quote))
        )
        return UserQuote(entry.number, text, is_shortened=True) if text else None


def _make_range_quote(
    entries: Sequence[UserQuote], note: str = "not shown"
) -> UserQuote:
    return UserQuote(
        min(entry.number for entry in entries),
        note=note,
        range_end=max(entry.last_number for entry in entries),
    )
