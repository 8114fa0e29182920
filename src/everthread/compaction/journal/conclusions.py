"""Pick the conclusions of a turn in few tokens: the most informative sentences, list items and table rows.

Pieces with figures, hashes, paths or names in code quotes are kept first, and so are emphasised pieces. A first
sentence without any of these, lines that only announce others, questions and the last sentence before calls are dropped
first. The choice depends on the shape of a line, so it works in any language.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from everthread.compaction.summary.sentences import (
    GAP,
    CountTokens,
    WordRarity,
    split_sentences,
    split_words,
)

LINE_SEPARATOR = " / "
"""Separates the lines of an answer that is shown on one line."""

SIGN_FACTOR = 2.0
"""The factor of a score for each sign of a conclusion: a figure or name, emphasis, the beginning of an answer."""
MAX_SEARCHED_CHARS = 400
"""Characters of a piece to search for figures and names."""

_LIST_ITEM = re.compile(r"(?:[-*•+]|\d{1,3}[.)]|[①-⑳])\s|\|")
_HEADING = re.compile(r"#{1,6}\s|\*\*[^*]{1,80}\*\*:?$")
_SPECIFIC = re.compile(r"\d|`[^`]{2,}`|\w/\w|[a-z][A-Z]|\w_\w|\w\.\w")
_COLONS = (":", "：")
_EMPHASIS = "**"


class AnswerPiece(NamedTuple):
    """A sentence of an answer, or a whole list item or table row."""

    line: int
    text: str
    follows_gap: bool
    """Whether something before it on its line was left out by an earlier compaction."""
    is_question: bool
    is_specific: bool
    """Whether it has a figure, a path or a name."""
    has_no_content: bool
    """Whether it only announces others, asks, or opens the answer."""
    words: tuple[str, ...]
    """The words of the piece, each once."""


def score_pieces(
    text: str, count: CountTokens, rarity: WordRarity, *, is_note: bool = False
) -> tuple[Sequence[AnswerPiece], list[float], list[int]]:
    """Return the pieces of an answer, with the score of each for its size, and its size.

    A piece that only announces others, or asks, has the score 0. `is_note`: whether the text comes right before calls,
    which its last sentence only announces.
    """
    pieces = split_pieces(text)
    sizes = [count(piece.text) + 3 for piece in pieces]
    scores: list[float] = []
    for piece, size in zip(pieces, sizes, strict=True):
        if piece.has_no_content:
            scores.append(0.0)
            continue
        score = rarity.score_words(piece.words) / math.pow(size + 4, 0.7)
        sign_count = piece.is_specific + (_EMPHASIS in piece.text)
        scores.append(score * SIGN_FACTOR**sign_count)
    if scores and is_note and not text.endswith(GAP):
        scores[-1] = 0.0
    if scores and not is_note and pieces[0].is_specific:
        scores[0] *= SIGN_FACTOR
    return pieces, scores, sizes


def count_specifics(text: str) -> int:
    """Return the number of figures, paths and names in a sentence, without the number of a list item."""
    mark = _LIST_ITEM.match(text)
    return len(_SPECIFIC.findall(text, mark.end() if mark else 0, MAX_SEARCHED_CHARS))


@lru_cache(maxsize=4_096)
def split_pieces(text: str) -> Sequence[AnswerPiece]:
    """Split an answer into sentences, list items and table rows."""
    pieces: list[AnswerPiece] = []
    was_cut = False
    for number, line in enumerate(text.split(LINE_SEPARATOR)):
        if _LIST_ITEM.match(line) and GAP not in line:
            is_question = line.rstrip().endswith(("?", "？"))
            item = line.strip()
            pieces.append(
                _make_piece(number, item, follows_gap=was_cut, is_question=is_question)
            )
            was_cut = False
            continue
        position = 0
        for sentence in split_sentences(line):
            was_cut = was_cut or GAP in line[position : sentence.start]
            sentence_text = line[sentence.start : sentence.end].strip()
            pieces.append(
                _make_piece(
                    number,
                    sentence_text,
                    follows_gap=was_cut,
                    is_question=sentence.is_minor,
                )
            )
            was_cut = False
            position = sentence.end
        was_cut = was_cut or GAP in line[position:]
    if len(pieces) > 1 and not pieces[0].is_specific:
        pieces[0] = pieces[0]._replace(has_no_content=True)
    return tuple(pieces)


def _make_piece(
    line: int, text: str, *, follows_gap: bool, is_question: bool
) -> AnswerPiece:
    """Return a piece with its properties, which are read from its text."""
    specifics = count_specifics(text)
    return AnswerPiece(
        line=line,
        text=text,
        follows_gap=follows_gap,
        is_question=is_question,
        is_specific=specifics > 0,
        has_no_content=is_question or _only_announces(text, specifics),
        words=tuple(dict.fromkeys(split_words(text))),
    )


def _only_announces(text: str, specifics: int) -> bool:
    """Return whether a piece is a heading, the head of a table, or a line without a name that announces others."""
    if _HEADING.match(text):
        return True
    return not specifics and (text.endswith(_COLONS) or text.startswith("|"))


def drop_announcement(note: str) -> str:
    """Return a text that comes right before calls without its last sentence, which only announces them."""
    pieces = split_pieces(note)
    earlier_numbers = range(len(pieces) - 1)
    # The other pieces may only open the announcement: "Good point."
    if all(pieces[number].has_no_content for number in earlier_numbers):
        return ""
    return join_pieces(pieces, earlier_numbers)


def join_pieces(pieces: Sequence[AnswerPiece], chosen_numbers: Iterable[int]) -> str:
    """Join the chosen pieces in order, with a mark for each gap."""
    numbers = sorted(chosen_numbers)
    if not numbers:
        return ""
    first_piece = pieces[numbers[0]]
    parts = [
        f"{GAP} " if numbers[0] or first_piece.follows_gap else "",
        first_piece.text,
    ]
    for previous_number, number in pairwise(numbers):
        piece = pieces[number]
        is_cut = number > previous_number + 1 or piece.follows_gap
        between = LINE_SEPARATOR if piece.line != pieces[previous_number].line else " "
        parts += (f" {GAP} " if is_cut else between, piece.text)
    if numbers[-1] < len(pieces) - 1:
        parts.append(f" {GAP}")
    return "".join(parts)
