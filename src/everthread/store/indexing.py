"""What is indexed for search: redacted text, cut into pieces that every database's index takes whole.

A piece is its terms (see `core.terms`); whose it is, who said it and with which tool are names beside them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import calls_of, results_of, text_of
from everthread.core.redaction import redact
from everthread.core.terms import encode_term, terms

PIECE_CHARS = 8_000
LEAST_CHARS = 250
OVERLAP = 200
"""Neighbouring pieces share so many characters, so that a phrase at the seam is found."""
MOST_TERMS = 16_383
MOST_REPEATS = 255
"""So many terms in a text, and repetitions of one, PostgreSQL tells apart. Keeping to that, both find the same."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of a text."""

    start: int
    text: str
    terms: list[str]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece as the index takes it."""

    id: int
    terms: Sequence[str]
    names: Sequence[str]


def searchable_text(message: Mapping[str, Any]) -> str:
    """Everything a message says and does: words, calls with their arguments, results."""
    said = [text_of(message)] if message.get("role") != "tool" else []
    called = [f"{call.name} {call.arguments}" for call in calls_of(message)]
    return "\n".join(text for text in (*said, *called, *(result.text for result in results_of(message))) if text)


def redacted_pieces(text: str) -> tuple[list[Cut], bool]:
    """The pieces of a text, secrets gone before anything else; and whether there were any."""
    clean = redact(text)
    return [cut for cut in cuts(clean) if cut.terms], clean is not text


def cuts(text: str) -> Iterator[Cut]:
    """The text in pieces, smaller ones where terms are too many to be told apart."""
    start, size = 0, PIECE_CHARS
    while True:
        overlap = min(OVERLAP, size // 4)
        end = _seam(text, start + size, overlap) if start + size < len(text) else len(text)
        cut = Cut(start, text[start:end], [encode_term(term) for term in terms(text[start:end])])
        if size > LEAST_CHARS and not _can_be_told_apart(cut.terms):
            size //= 2
            continue
        yield cut
        if end == len(text):
            return
        start = _seam(text, end - overlap, overlap)
        size = min(2 * size, PIECE_CHARS)


def _seam(text: str, at: int, reach: int) -> int:
    """Behind the last white space before this place; the place itself where there is none near."""
    space = max(text.rfind(mark, at - reach, at) for mark in " \n")
    return space + 1 if space >= 0 else at


def _can_be_told_apart(found: Sequence[str]) -> bool:
    if len(found) <= MOST_REPEATS:
        return True
    return len(found) <= MOST_TERMS and max(Counter(found).values()) <= MOST_REPEATS


def name(kind: str, value: str) -> str:
    """A property as one name no tokenizer splits, folds or shortens: `role` and `user` become `role_user`."""
    if len(value) <= 64 and value.isascii() and value.isalnum() and value == value.lower():
        return f"{kind}_{value}"
    return f"{kind}__{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


LONG = name("part", "of")
"""The name of pieces whose text has others."""
