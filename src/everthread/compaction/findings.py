"""Pick the conclusions of a turn in few tokens: the most informative sentences, list items and table rows.

An answer rarely begins with its result. Its last lines, its lists and tables, and sentences with figures, hashes, paths
or names in code quotes are kept first; its opening, lines that only announce others, and questions are dropped first.
The choice depends on the shape of a line, so it works in any language.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from everthread.compaction.user_quotes import (
    GAP,
    Count,
    Rarity,
    split_sentences,
)

BAR = " / "
"""Separates the lines of an answer that is shown on one line."""

SPECIFIC_FACTOR = 2.0
ANNOUNCING_FACTOR = 0.5
"""For the last sentence before calls, which mostly says what they are for; without a name it is worth nothing."""
MAX_PIECE_CHARS = 400
"""Characters of a piece to search for figures and names."""

_ITEM = re.compile(r"(?:[-*•+]|\d{1,3}[.)]|[①-⑳])\s|\|")
_HEADING = re.compile(r"#{1,6}\s|\*\*[^*]{1,80}\*\*:?$")
_SPECIFIC = re.compile(r"\d|`[^`]{2,}`|\w/\w|[a-z][A-Z]|\w_\w|\w\.\w")
_COLONS = (":", "：")


class Piece(NamedTuple):
    """A sentence of an answer, or a whole list item or table row."""

    line: int
    text: str
    follows_gap: bool
    """Whether something before it on its line was left out earlier."""
    is_question: bool


def weigh_text(
    text: str, count: Count, rarity: Rarity, *, is_note: bool = False
) -> tuple[list[Piece], list[float], list[int]]:
    """Return the pieces of an answer, the worth of each for its size, and the sizes.

    A piece that only leads to others, or asks, is worth 0. `is_note`: the text comes right before calls.
    """
    pieces = _split(text)
    sizes = [count(piece.text) + 3 for piece in pieces]
    worths: list[float] = []
    for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
        specifics = count_specifics(piece.text)
        is_opening = number == 0 and not specifics and len(pieces) > 1
        if is_opening or piece.is_question or _only_leads(piece.text, specifics):
            worths.append(0.0)
            continue
        worth = rarity.score(piece.text) / math.pow(size + 4, 0.7)
        worth *= SPECIFIC_FACTOR if specifics else 1.0
        worths.append(worth)
    if is_note and worths:
        worths[-1] *= ANNOUNCING_FACTOR if count_specifics(pieces[-1].text) else 0.0
    return pieces, worths, sizes


def count_specifics(text: str) -> int:
    """Return the number of figures, paths and names in a sentence, without the number of a list item."""
    mark = _ITEM.match(text)
    return len(_SPECIFIC.findall(text, mark.end() if mark else 0, MAX_PIECE_CHARS))


def _split(text: str) -> list[Piece]:
    pieces: list[Piece] = []
    was_cut = False
    for number, line in enumerate(text.split(BAR)):
        if _ITEM.match(line) and GAP not in line:
            pieces.append(
                Piece(
                    number, line.strip(), was_cut, line.rstrip().endswith(("?", "？"))
                )
            )
            was_cut = False
            continue
        position = 0
        for sentence in split_sentences(line):
            was_cut = was_cut or GAP in line[position : sentence.start]
            said = line[sentence.start : sentence.end].strip()
            pieces.append(Piece(number, said, was_cut, sentence.minor))
            was_cut = False
            position = sentence.end
        was_cut = was_cut or GAP in line[position:]
    return pieces


def _only_leads(text: str, specifics: int) -> bool:
    """Return whether a piece is a heading, the head of a table, or a line that announces others."""
    if text.endswith(_COLONS) or _HEADING.match(text):
        return True
    return text.startswith("|") and not specifics


def join_pieces(pieces: Sequence[Piece], chosen: Iterable[int]) -> str:
    """Return the chosen pieces in order, with a mark wherever something is missing."""
    numbers = sorted(chosen)
    if not numbers:
        return ""
    first = pieces[numbers[0]]
    parts = [f"{GAP} " if numbers[0] or first.follows_gap else "", first.text]
    for before, number in pairwise(numbers):
        piece = pieces[number]
        is_cut = number > before + 1 or piece.follows_gap
        between = BAR if piece.line != pieces[before].line else " "
        parts += (f" {GAP} " if is_cut else between, piece.text)
    if numbers[-1] < len(pieces) - 1:
        parts.append(f" {GAP}")
    return "".join(parts)
