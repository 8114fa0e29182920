"""Split texts into sentences, and shorten them by whole sentences.

A sentence is worth more if it holds words that few other texts hold. A question or a pasted line is worth less.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

CountTokens = Callable[[str], int]
"""A function that returns the tokens of a text."""
GAP = "[…]"
"""Marks a place with omitted text."""

_SENTENCE_END_PATTERN = re.compile(
    r"[.!?…。！？](?:(?<=[.!?…])(?<![\s(*_]\d.)(?<![\s(*_]\d\d.)[.!?…]{0,2}[\"'”’)\]]{0,3}(?=\s)"
    r"|(?<=[。！？])[。！？]{0,2}[」』”’）]{0,3})"
)
"""The end of a sentence. The pattern begins with few characters, so that a search can skip to them."""
_WORD_PATTERN = re.compile(r"\w+")
_CJK_PATTERN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_FENCE_PATTERN = re.compile(r"^\s{0,3}(?:```|~~~)")
_MIN_SENTENCE_CHARS = 24
"""A shorter sentence, in characters, is joined with the next one on its line."""
_MAX_PARTIAL_WORD_CHARS = 24
"""A partial word at the end of a cut text stays if it is longer, because it is a path or writing without spaces."""
_MIN_PASTED_LINES = 4
"""This many lines of one shape in a row are a pasted block, not prose."""


class Sentence(NamedTuple):
    """A sentence of a text: its span, and whether it is minor (a question, or pasted)."""

    start: int
    end: int
    is_minor: bool


@lru_cache(maxsize=512)
def split_sentences(text: str) -> Sequence[Sentence]:
    """Split the text at line ends, at marked gaps, and after punctuation that ends a sentence."""
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
            if pasted_flags[number]:
                sentence_ends = [end]
            else:
                sentence_ends = [
                    *(start + match.end() for match in _SENTENCE_END_PATTERN.finditer(part)),
                    end,
                ]
            for sentence_end in sentence_ends:
                sentence_text = text[start:sentence_end].strip()
                if not sentence_text:
                    continue
                is_minor = pasted_flags[number] or sentence_text.endswith(("?", "？"))
                if (
                    sentences
                    and sentences[-1].end >= start
                    and sentences[-1].end - sentences[-1].start < _MIN_SENTENCE_CHARS
                ):
                    sentences[-1] = Sentence(sentences[-1].start, sentence_end, is_minor)
                else:
                    sentences.append(Sentence(start, sentence_end, is_minor))
                start = sentence_end
        position += 1 - len(GAP)
    return sentences


def _find_pasted_lines(text: str) -> list[bool]:
    """Return for each line whether it was pasted: it is in a code fence, or in a row of several technical lines."""
    lines = text.split("\n")
    flags = [False] * len(lines)
    if len(lines) < _MIN_PASTED_LINES and "```" not in text and "~~~" not in text:
        return flags
    is_fenced = False
    technical_run = 0
    for number, line in enumerate(lines):
        if _FENCE_PATTERN.match(line):
            is_fenced = not is_fenced
            flags[number] = True
            continue
        flags[number] = is_fenced
        technical_run = (
            technical_run + 1 if len(lines) >= _MIN_PASTED_LINES and _is_technical(line) else 0
        )
        if technical_run == _MIN_PASTED_LINES:
            flags[number - technical_run + 1 : number] = [True] * (technical_run - 1)
        flags[number] = flags[number] or technical_run >= _MIN_PASTED_LINES
    return flags


def _is_technical(line: str) -> bool:
    """Return whether a line looks like code, a log or a table: it is indented, or has few letters and spaces."""
    body = line[:300].strip()
    if not body:
        return False
    return line[:1] in (" ", "\t") or sum(map(str.isalpha, body)) + body.count(" ") < 0.75 * len(
        body
    )


@lru_cache(maxsize=4_096)
def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case. Writing without spaces is returned as pairs of characters."""
    spaced_words: list[str] = _WORD_PATTERN.findall(text.casefold())
    if text.isascii() or _CJK_PATTERN.search(text) is None:
        return tuple(spaced_words)
    words: list[str] = []
    for word in spaced_words:
        if _CJK_PATTERN.search(word):
            words += (word[index : index + 2] for index in range(max(len(word) - 1, 1)))
        else:
            words.append(word)
    return tuple(words)


class WordRarity:
    """The weights of the words of several texts: the fewer texts hold a word, the more it weighs."""

    def __init__(self, texts: Iterable[str]) -> None:
        words = [set(split_words(text)) for text in texts]
        self._text_count = len(words)
        self._texts_with_word = Counter(chain.from_iterable(words))
        self._weights: dict[str, float] = {}

    def score(self, text: str) -> float:
        """Return the weight of a sentence: the sum of its words, in which figures weigh more."""
        return self.score_words(dict.fromkeys(split_words(text)))

    def score_words(self, words: Iterable[str]) -> float:
        """Return the sum of the weights of these words."""
        total = 0.0
        weights = self._weights
        for word in words:
            total += weights.get(word) or self._weigh(word)
        return total

    def _weigh(self, word: str) -> float:
        """Compute the weight of a word, and keep it for the next time."""
        rarity = math.log((self._text_count + 1) / (self._texts_with_word[word] or 1)) + 0.1
        self._weights[word] = rarity + (1.5 if word[0].isdigit() else 0.0)
        return self._weights[word]


def join_sentences(text: str, sentences: Sequence[Sentence], chosen_numbers: list[int]) -> str:
    """Join the chosen sentences, with the original text between adjacent ones and a mark for each gap."""
    parts = [f"{GAP} "] if chosen_numbers[0] or GAP in text[: sentences[0].start] else []
    parts.append(
        text[sentences[chosen_numbers[0]].start : sentences[chosen_numbers[0]].end].strip()
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
    """Return the first `length` characters of a text, without a partial word at the end."""
    beginning = text[:length].rstrip()
    if length >= len(text) or text[length].isspace() or length != len(beginning):
        return beginning
    words = beginning.rsplit(None, 1)[0].rstrip()
    if len(beginning) - len(words) <= _MAX_PARTIAL_WORD_CHARS and 2 * len(words) > length:
        return words
    return beginning


def clip_tokens(text: str, max_tokens: int, count: CountTokens) -> str:
    """Return the beginning of a text within `max_tokens` tokens, and a mark for the omitted part."""
    if count(text) <= max_tokens:
        return text
    if max_tokens <= 2:
        return GAP
    length = min(len(text), max_tokens * 8)
    while length > 0:
        beginning = f"{_cut_at_word(text, length)} {GAP}"
        excess = count(beginning) - max_tokens
        if excess <= 0:
            return beginning
        length = min(length - max(excess, 1), length * max_tokens // (max_tokens + excess))
    return GAP


def keep_newest_lines(lines: Sequence[str], max_tokens: int, count: CountTokens) -> list[str]:
    """Return the last of these lines that fit into `max_tokens` tokens."""
    start = len(lines)
    while start and max_tokens >= (size := count(lines[start - 1]) + 2):
        max_tokens -= size
        start -= 1
    return list(lines[start:])
