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

Count = Callable[[str], int]
GAP = "[…]"
"""Marks a place with omitted text."""

_END = re.compile(
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
_MAX_PART = 24
"""A longer partial word at the end of a cut text stays: writing without spaces, a path."""
_MIN_PASTED_LINES = 4
"""This many lines of one shape in a row are a pasted block, not prose."""


class Sentence(NamedTuple):
    """A piece of a text: its span, and whether it is minor (a question, or pasted)."""

    start: int
    end: int
    minor: bool


@lru_cache(maxsize=512)
def split_sentences(text: str) -> Sequence[Sentence]:
    """Split the text, in order, at line ends, after punctuation that ends a sentence, and at marked gaps."""
    pasted_flags = _pasted_lines(text)
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
                else [*(start + match.end() for match in _END.finditer(part)), end]
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


def _pasted_lines(text: str) -> list[bool]:
    """Return which lines were pasted: inside a fence, or several in a row with more signs than words."""
    lines = text.split("\n")
    flags = [False] * len(lines)
    if len(lines) < _MIN_PASTED_LINES and "```" not in text and "~~~" not in text:
        return flags
    fenced = False
    row = 0
    for number, line in enumerate(lines):
        if _FENCE.match(line):
            fenced = not fenced
            flags[number] = True
            continue
        flags[number] = fenced
        row = row + 1 if len(lines) >= _MIN_PASTED_LINES and _is_technical(line) else 0
        if row == _MIN_PASTED_LINES:
            flags[number - row + 1 : number] = [True] * (row - 1)
        flags[number] = flags[number] or row >= _MIN_PASTED_LINES
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
def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text, without case; writing without spaces as pairs of characters."""
    spaced: list[str] = _WORD.findall(text.casefold())
    if text.isascii() or _CJK.search(text) is None:
        return tuple(spaced)
    words: list[str] = []
    for word in spaced:
        if _CJK.search(word):
            words += (word[index : index + 2] for index in range(max(len(word) - 1, 1)))
        else:
            words.append(word)
    return tuple(words)


class Rarity:
    """The weight of words among some texts: a word that few of them hold weighs most."""

    def __init__(self, texts: Iterable[str]) -> None:
        words = [set(words_of(text)) for text in texts]
        self._texts = len(words)
        self._holding = Counter(chain.from_iterable(words))
        self._weights: dict[str, float] = {}

    def score(self, text: str) -> float:
        """Return the weight of a sentence, by its words; figures weigh more than words."""
        return self.score_words(dict.fromkeys(words_of(text)))

    def score_words(self, words: Iterable[str]) -> float:
        """Return the weight of these words, each of them once."""
        total = 0.0
        weights = self._weights
        for word in words:
            total += weights.get(word) or self._weigh(word)
        return total

    def _weigh(self, word: str) -> float:
        rarity = math.log((self._texts + 1) / (self._holding[word] or 1)) + 0.1
        self._weights[word] = rarity + (1.5 if word[0].isdigit() else 0.0)
        return self._weights[word]


def shorten(text: str, room: int, count: Count, rarity: Rarity) -> str:
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

    def worth(number: int) -> float:
        sentence = sentences[number]
        score = rarity.score(text[sentence.start : sentence.end]) / math.pow(
            sizes[number] + 4, 0.7
        )
        return score * (0.25 if sentence.minor else 1.0)

    chosen_numbers = {0}
    remaining = room - sizes[0]
    for number in sorted(
        range(1, len(sentences)), key=lambda number: (-worth(number), -number)
    ):
        if sizes[number] <= remaining:
            chosen_numbers.add(number)
            remaining -= sizes[number]
    return join_sentences(text, sentences, sorted(chosen_numbers))


def join_sentences(text: str, pieces: Sequence[Sentence], chosen: list[int]) -> str:
    """Join the chosen pieces with the original text between neighbours, and mark the gaps."""
    parts = [f"{GAP} "] if chosen[0] or GAP in text[: pieces[0].start] else []
    parts.append(text[pieces[chosen[0]].start : pieces[chosen[0]].end].strip())
    for previous_number, number in pairwise(chosen):
        sentence_text = text[pieces[number].start : pieces[number].end]
        between = text[pieces[previous_number].end : pieces[number].start]
        if number > previous_number + 1 or GAP in between:
            parts[-1] = parts[-1].rstrip()
            if not between.endswith("\n"):
                sentence_text = sentence_text.lstrip()
            between = f"\n{GAP}\n" if "\n" in between else f" {GAP} "
        parts += (between, sentence_text)
    is_cut = chosen[-1] < len(pieces) - 1 or GAP in text[pieces[-1].end :]
    return "".join(parts).rstrip() + (f" {GAP}" if is_cut else "")


def _whole_words(text: str, length: int) -> str:
    """Return the beginning of a text, at most `length` characters, without a partial word at its end."""
    beginning = text[:length].rstrip()
    if length >= len(text) or text[length].isspace() or length != len(beginning):
        return beginning
    words = beginning.rsplit(None, 1)[0].rstrip()
    return (
        words
        if len(beginning) - len(words) <= _MAX_PART and 2 * len(words) > length
        else beginning
    )


def clip_tokens(text: str, room: int, count: Count) -> str:
    """Return the beginning of a text within `room` tokens, and the mark for the rest."""
    if count(text) <= room:
        return text
    if room <= 2:
        return GAP
    length = min(len(text), room * 8)
    while length > 0:
        beginning = f"{_whole_words(text, length)} {GAP}"
        excess = count(beginning) - room
        if excess <= 0:
            return beginning
        length = min(length - max(excess, 1), length * room // (room + excess))
    return GAP


def newest_lines(lines: Sequence[str], room: int, count: Count) -> list[str]:
    """Return the last of these lines that fit into `room` tokens."""
    start = len(lines)
    while start and room >= (size := count(lines[start - 1]) + 2):
        room -= size
        start -= 1
    return list(lines[start:])


# Quotes of the user


REPEATED = "(A number without a line was said again later, word for word.)"
NOT_SHOWN = "numbers without a line are not shown"
NO_WORDS = "an image or a file without words"
SHORTENED = ", shortened"
_HEAD = re.compile(
    r"\[(\d{1,9})(?:–(\d{1,9}))?(?:(, shortened)\] |\] |: ([^\]\n]{1,80})\]$)"
)
_HEADING = re.compile(r"#{1,6}[ \t]")
_MARKER = re.compile(r"\[(?:END OF )?EVERTHREAD SUMMARY")
_NUMBER_TOKENS = 6
"""Approximate tokens of an entry's number and a mark."""
_SHORT_MESSAGE_TOKENS = 30
"""A message of at most this many tokens is short; if not all fit, the beginning of a longer one gets as many."""
_SHORT_SENTENCE_TOKENS = 12
"""Shorter sentences are scored as if they had this many tokens, since fewer tokens make them no better."""
_BEST_SENTENCE_WEIGHT = 1.5
"""Weight of a message's best sentence, so that every message is shown before one is shown in full."""


@dataclass(frozen=True)
class UserMessage:
    """One message of the user. `note` replaces the text if it is empty or not shown."""

    number: int
    text: str = ""
    note: str = ""
    is_short: bool = False
    """Whether the text is only a part of the message."""
    last: int = 0
    """The last number of a range that is not shown; 0 for a single message."""

    @property
    def end(self) -> int:
        return self.last or self.number

    @cached_property
    def line(self) -> str:
        """The text of the entry in the section."""
        span = (
            f"{self.number}–{self.last}"
            if self.last > self.number
            else str(self.number)
        )
        if self.note:
            return f"[{span}: {self.note}]"
        first_line, *other_lines = self.text.split("\n")
        first_line = f"\\{first_line}" if _is_marker(first_line) else first_line
        escaped_lines = [
            f"\\{line}" if _is_like_ours(line) else line for line in other_lines
        ]
        return "\n".join(
            [
                f"[{span}{SHORTENED if self.is_short else ''}] {first_line}",
                *escaped_lines,
            ]
        )


def user_message(number: int, text: str) -> UserMessage:
    """Return a user's message as an entry."""
    return UserMessage(number, text) if text else UserMessage(number, note=NO_WORDS)


def render_words(entries: Sequence[UserMessage], room: int, count: Count) -> str:
    """Render the section within `room` tokens; if nothing fits, one line that says so."""
    visible_entries = sorted(
        (entry for entry in entries if entry.note != NOT_SHOWN),
        key=lambda entry: entry.number,
    )
    if not visible_entries:
        return _range(entries, NOT_SHOWN).line if entries else ""
    distinct_entries = _drop_repeats(visible_entries)
    was_cut = len(visible_entries) < len(entries)
    text = _text(distinct_entries)
    if count(text) <= room and not was_cut:
        return text
    best_text = _range(entries).line
    remaining = room
    offers = _Offers(distinct_entries, count)
    for _ in range(5):
        selection = offers.share(remaining)
        quotes = [message for message in selection if message.note != NOT_SHOWN]
        if was_cut or len(quotes) < len(selection):
            selection = [_range(entries, NOT_SHOWN), *quotes]
        text = _text(selection)
        spare_tokens = room - count(text)
        if spare_tokens >= 0:
            best_text = text
        if 0 <= spare_tokens <= room // 50:
            break
        remaining += spare_tokens
    return best_text


def _text(entries: Sequence[UserMessage]) -> str:
    """Return the lines of the entries, and a note about missing numbers."""
    single_entries = [entry for entry in entries if not entry.last]
    gaps = any(
        next_entry.number > previous_entry.number + 1
        for previous_entry, next_entry in pairwise(single_entries)
    )
    notes = any(entry.note == NOT_SHOWN for entry in entries)
    return "\n".join(
        [
            *([REPEATED] if gaps and not notes else []),
            *(entry.line for entry in entries),
        ]
    )


def parse_words(text: str) -> list[UserMessage]:
    """Parse the entries of a section that `render_words` wrote. Drop text before the first entry."""
    entries: list[UserMessage] = []
    lines: list[str] = []

    def close() -> None:
        if entries and not entries[-1].note:
            entries[-1] = replace(entries[-1], text="\n".join(lines).rstrip("\n"))

    for line in text.split("\n"):
        head = _HEAD.match(line)
        if head is None:
            lines.append(
                line[1:] if line.startswith("\\") and _is_like_ours(line) else line
            )
            continue
        close()
        note = head[4] or ""
        entries.append(
            UserMessage(
                int(head[1]),
                note=note,
                is_short=head[3] is not None,
                last=int(head[2] or 0),
            )
        )
        first_line = line[head.end() :]
        lines = (
            []
            if note
            else [
                first_line[1:]
                if first_line.startswith("\\") and _is_marker(first_line)
                else first_line
            ]
        )
    close()
    return entries


def entry_tokens(entry: UserMessage, count: Count) -> int:
    """Return the tokens of an entry, including its number."""
    return count(entry.line) + 1


def _is_like_ours(line: str) -> bool:
    """Return whether a line, without backslashes, could pass for an entry's first line, a heading or a marker."""
    text = line.lstrip("\\")
    return bool(_HEAD.match(text) or _HEADING.match(text)) or _is_marker(text)


def _is_marker(line: str) -> bool:
    """Return whether a line, without backslashes, could pass for the first or last one of a summary."""
    return _MARKER.match(line.lstrip("\\")) is not None


def _drop_repeats(entries: list[UserMessage]) -> list[UserMessage]:
    """Drop the entries that a later one repeats word for word.

    Keep shortened ones: the rest of their text is unknown.
    """
    latest = {entry.text: entry.number for entry in entries if not entry.is_short}
    return [
        entry
        for entry in entries
        if entry.is_short or not entry.text or latest[entry.text] == entry.number
    ]


class _Offers:
    """Every sentence with its tokens and its score for its length. One that a later message repeats is not offered."""

    def __init__(self, entries: list[UserMessage], count: Count) -> None:
        self.entries = entries
        self.count = count
        rarity = Rarity(entry.text for entry in entries)
        sentences = [split_sentences(entry.text) for entry in entries]
        latest = {
            self._key(index, sentence): index
            for index, message_sentences in enumerate(sentences)
            for sentence in message_sentences
        }
        self.pieces: list[list[Sentence]] = []
        self.fresh: list[list[int]] = []
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
                if latest[self._key(index, sentence)] == index:
                    fresh_numbers.add(len(pieces) - 1)
            self.pieces.append(pieces)
            self.fresh.append(sorted(fresh_numbers))
        self.tokens: list[list[int]] = []
        self.best: list[tuple[int, int]] = []
        """Pairs of message and sentence, the highest score first; a message's best sentence comes before its others."""
        worths: list[tuple[float, int, int]] = []
        for index, pieces in enumerate(self.pieces):
            texts = [self.words(index, number) for number in range(len(pieces))]
            self.tokens.append([count(text) + 2 for text in texts])
            scores = [
                rarity.score(text)
                / math.pow(max(tokens, _SHORT_SENTENCE_TOKENS) + 4, 0.7)
                * (0.25 if piece.minor else 1.0)
                for text, tokens, piece in zip(
                    texts, self.tokens[index], pieces, strict=True
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
                for position in self.fresh[index]
            )
        self.best = [
            (index, position)
            for _, index, position in sorted(
                worths, key=lambda worth: (-worth[0], -worth[1], worth[2])
            )
        ]

    def words(self, index: int, number: int) -> str:
        sentence = self.pieces[index][number]
        return self.entries[index].text[sentence.start : sentence.end].strip()

    def _key(self, index: int, sentence: Sentence) -> str:
        """Return the key that equal sentences share: their text."""
        return self.entries[index].text[sentence.start : sentence.end].strip()

    def share(self, room: int) -> list[UserMessage]:
        """Keep short messages whole and the first sentence of longer ones; fill the room with the best sentences.

        If not even that fits, keep the most informative messages, the newest of equal ones, and add one line that says
        that numbers without a line are not shown.
        """
        fill = _Fill(self, room)
        if not fill.open_all():
            fill = _Fill(self, room - 3 * _NUMBER_TOKENS)
        fill.take_best()
        messages = fill.list_messages()
        return (
            messages
            if len(messages) == len(self.entries)
            else [_range(self.entries, NOT_SHOWN), *messages]
        )


class _Fill:
    """The room, filled sentence by sentence."""

    def __init__(self, offers: _Offers, room: int) -> None:
        self._offers = offers
        self._room = room
        self._chosen: dict[int, set[int]] = {}
        self._clipped: dict[int, int] = {}

    def open_all(self) -> bool:
        """Take every short message, of others the first sentence or its beginning; whether all fit."""
        offers = self._offers
        for index, fresh_numbers in enumerate(offers.fresh):
            is_short = (
                sum(offers.tokens[index][number] for number in fresh_numbers)
                <= _SHORT_MESSAGE_TOKENS
            )
            if (fresh_numbers or not offers.pieces[index]) and not self._take(
                index, fresh_numbers if is_short else ()
            ):
                return False
        return True

    def take_best(self) -> None:
        for index, number in self._offers.best:
            if (
                number not in self._chosen.get(index, ())
                and self._offers.tokens[index][number] <= self._room
            ):
                self._take(index, (number,))

    def _take(self, index: int, numbers: Iterable[int]) -> bool:
        """Take these sentences, with the first of a message also its first sentence or its beginning, if all fit."""
        chosen_numbers = self._chosen.get(index, set())
        tokens = self._offers.tokens[index]
        price = 0
        new_numbers = {*numbers} - chosen_numbers
        clipped_numbers = []
        if index not in self._chosen:
            opening_numbers = [
                number
                for number in self._offers.fresh[index][:1]
                if number not in new_numbers
            ]
            clipped_numbers = [
                number
                for number in opening_numbers
                if tokens[number] > _SHORT_MESSAGE_TOKENS
            ]
            new_numbers.update(opening_numbers if not clipped_numbers else ())
            price = _NUMBER_TOKENS + _SHORT_MESSAGE_TOKENS * len(clipped_numbers)
        price += sum(tokens[number] for number in new_numbers)
        if price > self._room:
            return False
        self._room -= price
        self._chosen[index] = chosen_numbers | new_numbers
        self._clipped.update((index, number) for number in clipped_numbers)
        return True

    def list_messages(self) -> list[UserMessage]:
        entries = (
            self._entry(index, entry)
            for index, entry in enumerate(self._offers.entries)
        )
        return [entry for entry in entries if entry is not None]

    def _entry(self, index: int, entry: UserMessage) -> UserMessage | None:
        pieces = self._offers.pieces[index]
        numbers = sorted(self._chosen.get(index, ()))
        if not pieces:
            return entry if index in self._chosen else None
        if len(numbers) == len(pieces):
            return entry
        opening = ""
        clipped_number = self._clipped.get(index)
        if clipped_number is not None and clipped_number not in numbers:
            opening = clip_tokens(
                self._offers.words(index, clipped_number),
                _SHORT_MESSAGE_TOKENS - 4,
                self._offers.count,
            )
        quote = join_sentences(entry.text, pieces, numbers) if numbers else ""
        text = " ".join(
            filter(None, (opening, quote.removeprefix(f"{GAP} ") if opening else quote))
        )
        return UserMessage(entry.number, text, is_short=True) if text else None


def _range(entries: Sequence[UserMessage], note: str = "not shown") -> UserMessage:
    return UserMessage(
        min(entry.number for entry in entries),
        note=note,
        last=max(entry.end for entry in entries),
    )
