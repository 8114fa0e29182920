"""The pieces of text that the search index holds: redacted terms, with tenant, thread, role and tool as names."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from everthread.core.messages import calls_of, results_of, text_of
from everthread.core.search.terms import index_terms
from everthread.core.secrets.redaction import redact

PIECE_CHARS = 1_500
MIN_CHARS = 250
OVERLAP_CHARS = 200
"""Characters that neighbouring pieces share, so that a phrase at the seam is found."""
MAX_TERMS = 16_383
MAX_REPEATS = 255
"""PostgreSQL's limits: terms in a text, and repetitions of a term. Both stores keep to them to find the same."""


@dataclass(frozen=True, slots=True)
class TextCut:
    """A piece of a text."""

    start: int
    text: str
    terms: str
    """Encoded, separated by spaces."""


class IndexPiece(NamedTuple):
    """A piece as the index takes it."""

    id: int
    terms: str
    """Encoded, separated by spaces."""
    names: Sequence[str]


def searchable_text(message: Mapping[str, Any]) -> str:
    """Everything a message says and does: words, calls with their arguments, results."""
    words = [text_of(message)] if message.get("role") != "tool" else []
    calls = [f"{call.name} {call.arguments}" for call in calls_of(message)]
    return "\n".join(
        text
        for text in (*words, *calls, *(result.text for result in results_of(message)))
        if text
    )


def redact_and_cut(text: str) -> tuple[list[TextCut], bool]:
    """The pieces of a text, secrets gone before anything else; and whether there were any."""
    clean = redact(text)
    return [cut for cut in cut_text(clean) if cut.terms], clean is not text


def cut_text(text: str) -> Iterator[TextCut]:
    """Yield the text in pieces; smaller pieces if there are more terms than the index can distinguish."""
    start = 0
    size = PIECE_CHARS
    while True:
        overlap = min(OVERLAP_CHARS, size // 4)
        end = (
            _find_seam(text, start + size, overlap)
            if start + size < len(text)
            else len(text)
        )
        cut = TextCut(start, text[start:end], index_terms(text[start:end]))
        if size > MIN_CHARS and not _has_few_repeats(cut.terms):
            size //= 2
            continue
        yield cut
        if end == len(text):
            return
        start = _find_seam(text, end - overlap, overlap)
        size = min(2 * size, PIECE_CHARS)


def _find_seam(text: str, position: int, reach: int) -> int:
    """Return the position after the last white space before this one; this one if there is none within `reach`."""
    space = max(text.rfind(mark, position - reach, position) for mark in " \n")
    return space + 1 if space >= 0 else position


def _has_few_repeats(terms: str) -> bool:
    if terms.count(" ") < MAX_REPEATS:
        return True
    words = terms.split()
    if len(words) - len(set(words)) < MAX_REPEATS:
        return len(words) <= MAX_TERMS
    return len(words) <= MAX_TERMS and max(Counter(words).values()) <= MAX_REPEATS


@functools.lru_cache(maxsize=1 << 12)
def filter_name(kind: str, value: str) -> str:
    """A property as one name no tokenizer splits, folds or shortens: `role` and `user` become `role_user`."""
    if (
        len(value) <= 64
        and value.isascii()
        and value.isalnum()
        and value == value.lower()
    ):
        return f"{kind}_{value}"
    return f"{kind}__{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


LONG_TEXT = filter_name("part", "of")
"""The name of pieces whose text has others."""
