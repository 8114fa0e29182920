"""A record too large for one call, cut into chunks that fit. Nothing is left out.

What belongs together stays together where it fits into a chunk; a piece that does not is cut between its entries, an
entry that does not is cut in itself, at the ends of lines or words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from everthread.compaction.summarizers.llm_record import RecordEntry

Count = Callable[[str], int]
_LABEL = 24
"""Tokens kept free in a chunk for the label of a part of an entry."""


def size(entries: Iterable[RecordEntry], count: Count) -> int:
    """Tokens of entries as they are written, one below the other."""
    return sum(count(str(entry)) + 1 for entry in entries)


def pack(pieces: Sequence[Sequence[RecordEntry]], room: int, count: Count) -> list[list[RecordEntry]]:
    """The entries in chunks of at most `room` tokens, in order."""
    chunks: list[list[RecordEntry]] = []
    left = 0
    for piece in pieces:
        for unit, tokens in _units(piece, room, count):
            if tokens > left or not chunks:
                chunks.append([])
                left = room
            chunks[-1] += unit
            left -= tokens
    return chunks


def cut(text: str, room: int, count: Count) -> list[str]:
    """The text in parts of at most `room` tokens: together they are the text."""
    tokens = count(text)
    if tokens <= room or len(text) < 2:
        return [text]
    step = math.ceil(len(text) / max(2, math.ceil(1.05 * tokens / room)))
    return [part for coarse in _steps(text, step) for part in cut(coarse, room, count)]


def _units(piece: Sequence[RecordEntry], room: int, count: Count) -> Iterator[tuple[Sequence[RecordEntry], int]]:
    """A piece as the smallest units that have to stay together, with their sizes."""
    tokens = size(piece, count)
    if tokens <= room:
        if piece:
            yield piece, tokens
    elif len(piece) > 1:
        for entry in piece:
            yield from _units([entry], room, count)
    else:
        parts = cut(piece[0].text, max(room - _LABEL, 1), count)
        for number, part in enumerate(parts, start=1):
            entry = RecordEntry(f"{piece[0].label}, part {number} of {len(parts)}", part)
            yield [entry], size([entry], count)


def _steps(text: str, step: int) -> Iterator[str]:
    """Parts of at most `step` characters, cut after a line or a word where one ends in the second half."""
    start = 0
    while start < len(text):
        end = start + step
        if end < len(text):
            least = start + step // 2
            end = text.rfind("\n", least, end) + 1 or text.rfind(" ", least, end) + 1 or end
        yield text[start:end]
        start = end
