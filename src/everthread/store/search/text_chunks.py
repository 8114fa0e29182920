"""Cut texts into the chunks of the search index: redacted terms, with tenant, thread, role and tool as filter terms."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from everthread.core.messages import calls_of, results_of, text_of
from everthread.core.search.indexed_terms import make_index_text
from everthread.core.secrets.redaction import redact

CHUNK_CHARS = 1_500
MIN_CHUNK_CHARS = 250
OVERLAP_CHARS = 200
"""Characters that neighbouring chunks share, so that a phrase across their border is found."""
MAX_CHUNK_TERMS = 16_383
"""PostgreSQL's limit of terms in a text, which SQLite keeps to as well, so that both find the same."""
MAX_TERM_REPEATS = 255
"""PostgreSQL's limit of repetitions of a term in a text."""


class TextChunk(NamedTuple):
    """A chunk of a text."""

    start: int
    text: str
    terms: str
    """Encoded, separated by spaces."""


class IndexChunk(NamedTuple):
    """A chunk in the form in which it is added to the index."""

    id: int
    terms: str
    """Encoded, separated by spaces."""
    filter_terms: Sequence[str]


def searchable_text(message: Mapping[str, Any]) -> str:
    """Return a message's searchable text: its words, its calls with their arguments, its results."""
    texts = [text_of(message)] if message.get("role") != "tool" else []
    texts += [f"{call.name} {call.arguments}" for call in calls_of(message)]
    texts += [result.text for result in results_of(message)]
    return "\n".join(filter(None, texts))


def redact_and_split(text: str) -> tuple[list[TextChunk], bool]:
    """Redact a text and split it into chunks; return the chunks, and whether anything was redacted."""
    redacted_text = redact(text)
    return [chunk for chunk in split_text(redacted_text) if chunk.terms], redacted_text is not text


def split_text(text: str) -> Iterator[TextChunk]:
    """Yield the text in chunks, which are smaller if a chunk would exceed the index's limits of terms."""
    start = 0
    size = CHUNK_CHARS
    while True:
        overlap = min(OVERLAP_CHARS, size // 4)
        end = len(text)
        if start + size < end:
            end = _find_split_point(text, start + size, overlap)
        chunk = TextChunk(start, text[start:end], make_index_text(text[start:end]))
        if size > MIN_CHUNK_CHARS and not _fits_index_limits(chunk.terms):
            size //= 2
            continue
        yield chunk
        if end == len(text):
            return
        start = _find_split_point(text, end - overlap, overlap)
        size = min(2 * size, CHUNK_CHARS)


def _find_split_point(text: str, position: int, max_distance: int) -> int:
    """Return the position after the last white space within `max_distance` before, or else the position itself."""
    space = max(text.rfind(separator, position - max_distance, position) for separator in " \n")
    return space + 1 if space >= 0 else position


def _fits_index_limits(terms: str) -> bool:
    if len(terms) < 2 * MAX_TERM_REPEATS or terms.count(" ") < MAX_TERM_REPEATS:
        return True
    term_list = terms.split()
    if len(term_list) - len(set(term_list)) < MAX_TERM_REPEATS:
        return len(term_list) <= MAX_CHUNK_TERMS
    return (
        len(term_list) <= MAX_CHUNK_TERMS and max(Counter(term_list).values()) <= MAX_TERM_REPEATS
    )


@functools.lru_cache(maxsize=1 << 12)
def make_filter_term(kind: str, value: str) -> str:
    """Join a property and its value to one term that no tokenizer splits or changes, such as `role_user`."""
    if len(value) <= 64 and value.isascii() and value.isalnum() and value == value.lower():
        return f"{kind}_{value}"
    return f"{kind}__{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


PART_OF_LONG_TEXT = make_filter_term("part", "of")
"""The filter term of chunks whose text has several chunks."""
