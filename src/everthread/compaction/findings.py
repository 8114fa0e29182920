"""Pick the conclusions of a turn in few tokens: the most informative sentences, list items and table rows.

An answer rarely begins with its result. Its last lines, its lists and tables, and sentences with figures, hashes, paths
or names in code quotes are kept first; its opening, lines that only announce others, and questions are dropped first.
The choice depends on the shape of a line, so it works in any language.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from everthread.compaction.user_quotes import (
    GAP,
    Count,
    Rarity,
    clip_tokens,
    split_sentences,
)

BAR = " / "
"""Separates the lines of an answer that is shown on one line."""

ITEM_FACTOR = 1.3
LAST_FACTOR = 1.4
SPECIFIC_FACTOR = 1.5
LAST_LINES = 2
MAX_PIECE_CHARS = 400
"""Characters of a piece to search for figures and names."""
MIN_PIECE = 6
"""With fewer tokens, return nothing."""

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


def pick_findings(
    text: str, room: int, count: Count, rarity: Rarity, *, is_note: bool = False
) -> str:
    """Return the most informative pieces of an answer, in order, within `room` tokens.

    `is_note`: the text comes right before calls, so its end only announces them.
    """
    if count(text) <= room:
        return text
    pieces = _split(text)
    if not pieces or room < MIN_PIECE:
        return ""
    sizes = [count(piece.text) + 3 for piece in pieces]
    worths = _weigh(pieces, sizes, rarity, last_factor=1.0 if is_note else LAST_FACTOR)
    order = sorted(range(len(pieces)), key=lambda number: (-worths[number], number))
    chosen: list[int] = []
    remaining = room
    telling = sum(worth > 0 for worth in worths)
    for number in order:
        if worths[number] == 0 and len(chosen) < telling:
            break
        if sizes[number] <= remaining:
            chosen.append(number)
            remaining -= sizes[number]
    if not chosen:
        return clip_tokens(pieces[order[0]].text, room, count)
    return _join(pieces, sorted(chosen))


def best_tokens(text: str, count: Count, rarity: Rarity) -> int:
    """Return the tokens of the piece that says most."""
    pieces = _split(text)
    sizes = [count(piece.text) + 3 for piece in pieces]
    worths = _weigh(pieces, sizes, rarity)
    return max(zip(worths, sizes, strict=True), default=(0.0, 0))[1]


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


def _weigh(
    pieces: Sequence[Piece],
    sizes: Sequence[int],
    rarity: Rarity,
    *,
    last_factor: float = LAST_FACTOR,
) -> list[float]:
    """Return the worth of each piece for its size; 0 for one that only leads to others, or asks."""
    last = pieces[-1].line if pieces else 0
    worths: list[float] = []
    for number, (piece, size) in enumerate(zip(pieces, sizes, strict=True)):
        specifics = count_specifics(piece.text)
        is_opening = number == 0 and not specifics and len(pieces) > 1
        if is_opening or piece.is_question or _only_leads(piece.text, specifics):
            worths.append(0.0)
            continue
        worth = rarity.score(piece.text) / math.pow(size + 4, 0.7)
        worth *= ITEM_FACTOR if _ITEM.match(piece.text) else 1.0
        worth *= last_factor if last - piece.line < LAST_LINES else 1.0
        worth *= SPECIFIC_FACTOR if specifics else 1.0
        worths.append(worth)
    return worths


def _only_leads(text: str, specifics: int) -> bool:
    """Return whether a piece is a heading, the head of a table, or a line that announces others."""
    if text.endswith(_COLONS) or _HEADING.match(text):
        return True
    return text.startswith("|") and not specifics


def _join(pieces: Sequence[Piece], chosen: Sequence[int]) -> str:
    """Return the chosen pieces, with a mark wherever something is missing."""
    first = pieces[chosen[0]]
    parts = [f"{GAP} " if chosen[0] or first.follows_gap else "", first.text]
    for before, number in pairwise(chosen):
        piece = pieces[number]
        is_cut = number > before + 1 or piece.follows_gap
        between = BAR if piece.line != pieces[before].line else " "
        parts += (f" {GAP}{between}" if is_cut else between, piece.text)
    if chosen[-1] < len(pieces) - 1:
        parts.append(f" {GAP}")
    return "".join(parts)
