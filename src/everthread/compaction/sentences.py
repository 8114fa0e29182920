"""Sentences of a text, and the best of them within a budget. Rarity decides, not a list of words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

Count = Callable[[str], int]
GAP = "[…]"
"""Stands where something was left out."""

_END = re.compile(
    r"[.!?…。！？](?:(?<=[.!?…])(?<![\s(*_]\d.)(?<![\s(*_]\d\d.)[.!?…]{0,2}[\"'”’)\]]{0,3}(?=\s)"
    r"|(?<=[。！？])[。！？]{0,2}[」』”’）]{0,3})"
)
"""It begins with a set of few characters, which a scan skips to; a number before the sign is looked for last."""
_WORD = re.compile(r"\w+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FENCE = re.compile(r"^\s{0,3}(?:```|~~~)")
_LEAST = 24
"""A sentence of fewer characters goes with the one behind it on its line."""
_LONGEST_PART = 24
"""A part of a word at the end of a cut text that is longer stays: writing without spaces, a path."""
_PASTED = 4
"""So many lines of one shape in a row are a pasted block, no prose."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A piece of a text: its span, and whether it is minor (a question, or pasted)."""

    start: int
    end: int
    minor: bool


@lru_cache(maxsize=512)
def split_sentences(text: str) -> Sequence[Sentence]:
    """The text in pieces, in order: at line ends and after the signs that end a sentence."""
    pasted = _pasted_lines(text)
    sentences: list[Sentence] = []
    position = 0
    for number, line in enumerate(text.split("\n")):
        start, end = position, position + len(line)
        position = end + 1
        if not line.strip():
            continue
        cuts = [end] if pasted[number] else [*(start + match.end() for match in _END.finditer(line)), end]
        for cut in cuts:
            piece = text[start:cut].strip()
            if not piece:
                continue
            minor = pasted[number] or piece.endswith(("?", "？"))
            if sentences and sentences[-1].end >= start and sentences[-1].end - sentences[-1].start < _LEAST:
                sentences[-1] = Sentence(sentences[-1].start, cut, minor)
            else:
                sentences.append(Sentence(start, cut, minor))
            start = cut
    return sentences


def _pasted_lines(text: str) -> list[bool]:
    """Which lines were pasted: inside a fence, or among several in a row that hold more signs than words."""
    lines = text.split("\n")
    flags = [False] * len(lines)
    fenced = False
    row = 0
    for number, line in enumerate(lines):
        if _FENCE.match(line):
            fenced = not fenced
            flags[number] = True
            continue
        flags[number] = fenced
        row = row + 1 if _is_technical(line) else 0
        if row == _PASTED:
            flags[number - row + 1 : number] = [True] * (row - 1)
        flags[number] = flags[number] or row >= _PASTED
    return flags


def _is_technical(line: str) -> bool:
    """Code, logs, tables: indented, or hardly any letters and spaces."""
    body = line[:300].strip()
    if not body:
        return False
    return line[:1] in (" ", "\t") or sum(map(str.isalpha, body)) + body.count(" ") < 0.75 * len(body)


@lru_cache(maxsize=4_096)
def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, without case; writing without spaces in pairs of characters."""
    spaced: list[str] = _WORD.findall(text.casefold())
    if _CJK.search(text) is None:
        return tuple(spaced)
    words: list[str] = []
    for word in spaced:
        if _CJK.search(word):
            words += (word[at : at + 2] for at in range(max(len(word) - 1, 1)))
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
        """The weight of a sentence, by its words; figures weigh more than words."""
        total = 0.0
        for word in dict.fromkeys(words_of(text)):
            total += self._weights.get(word) or self._weigh(word)
        return total

    def _weigh(self, word: str) -> float:
        rare = math.log((self._texts + 1) / (self._holding[word] or 1)) + 0.1
        self._weights[word] = rare + (1.5 if word[0].isdigit() else 0.0)
        return self._weights[word]


def shorten(text: str, room: int, count: Count, rarity: Rarity) -> str:
    """The text within so many tokens: its first sentence, then those that say most for their length, in order."""
    if count(text) <= room:
        return text
    pieces = split_sentences(text)
    sizes = [count(text[piece.start : piece.end]) + 3 for piece in pieces]
    if not pieces or sizes[0] > room:
        return clip_tokens(text[pieces[0].start : pieces[0].end] if pieces else text, room, count)

    def worth(number: int) -> float:
        piece = pieces[number]
        score = rarity.score(text[piece.start : piece.end]) / math.pow(sizes[number] + 4, 0.7)
        return score * (0.25 if piece.minor else 1.0)

    chosen, remaining = {0}, room - sizes[0]
    for number in sorted(range(1, len(pieces)), key=lambda number: (-worth(number), -number)):
        if sizes[number] <= remaining:
            chosen.add(number)
            remaining -= sizes[number]
    return join_sentences(text, pieces, sorted(chosen))


def join_sentences(text: str, pieces: Sequence[Sentence], chosen: list[int]) -> str:
    """The chosen pieces with what stood between neighbours, and a mark where something is missing."""
    parts: list[str] = []
    for position, number in enumerate(chosen):
        piece = pieces[number]
        if position:
            before = chosen[position - 1]
            between = text[pieces[before].end : piece.start]
            if number == before + 1:
                parts.append(between)
            else:
                parts.append(f"\n{GAP}\n" if "\n" in between else f" {GAP} ")
        parts.append(text[piece.start : piece.end].strip() if not parts else text[piece.start : piece.end])
    if chosen[0]:
        parts.insert(0, f"{GAP} ")
    end = "" if chosen[-1] == len(pieces) - 1 else f" {GAP}"
    return "".join(parts).rstrip() + end


def _whole_words(text: str, length: int) -> str:
    """The beginning of a text, of at most so many characters, without a part of a word at its end."""
    beginning = text[:length].rstrip()
    if length >= len(text) or text[length].isspace() or length != len(beginning):
        return beginning
    words = beginning.rsplit(None, 1)[0].rstrip()
    return words if len(beginning) - len(words) <= _LONGEST_PART and 2 * len(words) > length else beginning


def clip_tokens(text: str, room: int, count: Count) -> str:
    """The beginning of a text within so many tokens, and the mark for the rest."""
    if count(text) <= room:
        return text
    if room <= 2:
        return GAP
    length = min(len(text), room * 8)
    while length > 0:
        cut = f"{_whole_words(text, length)} {GAP}"
        over = count(cut) - room
        if over <= 0:
            return cut
        length = min(length - max(over, 1), length * room // (room + over))
    return GAP


def newest_lines(lines: Sequence[str], room: int, count: Count) -> list[str]:
    """The last of these lines, as many as fit into so many tokens."""
    start = len(lines)
    while start and room >= (size := count(lines[start - 1]) + 2):
        room -= size
        start -= 1
    return list(lines[start:])
