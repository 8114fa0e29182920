"""Choose the part of a text to show for a query."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from everthread.core.secrets.redaction import redact_part

SNIPPET_CHARS = 160
CHARS_BEFORE_MATCH = SNIPPET_CHARS // 4
MAX_LOOKBACK_CHARS = 150
"""Maximum characters to show before a part so that it begins with its sentence."""
MAX_WORD_POSITIONS = 200
"""Maximum positions of a word to compare with those of other words."""
SECRET_MARGIN = 200
"""Characters around a snippet to search for secrets too."""
RAW_SECRET_MARGIN = 2_000
"""Characters around a part of an original message to search for secrets too: a secret is recognised by its context."""
_CHARACTER_CLUSTER_PATTERN = re.compile(r".[\u0300-\u036f\u1160-\u11ff\u3099\u309a]*", re.DOTALL)


def make_snippet(text: str, words: Sequence[Sequence[str]], *, is_continued: bool = False) -> str:
    """Return the part of a text with the most of the words, on one line.

    `is_continued`: the text is a chunk that begins inside a longer one.
    """
    folded_text, original_positions = _fold_text(text)
    word_positions = (
        (hit_position, number)
        for number, word in enumerate(words)
        for hit_position in _find_phrase_positions(folded_text, word)
    )
    position = _find_richest_start(
        word_positions, SNIPPET_CHARS - CHARS_BEFORE_MATCH, original_positions
    )
    start = max(0, min(position - CHARS_BEFORE_MATCH, len(text) - SNIPPET_CHARS))
    end = start + SNIPPET_CHARS
    # The index holds no secrets; redact once more, with the current rules.
    snippet = redact_part(text, start, end, margin=SECRET_MARGIN)
    start_mark = "…" if start or is_continued else ""
    end_mark = "…" if end < len(text) else ""
    return f"{start_mark}{' '.join(snippet.split())}{end_mark}"


def find_richest_position(text: str, words: Sequence[Sequence[str]], length: int) -> int:
    """Return the start of the part of `length` characters with the most different words. A word is given by its forms.

    Words are searched without patterns, so that many words cost little.
    """
    folded_text, original_positions = _fold_text(text)
    word_positions = (
        (position, number)
        for number, forms in enumerate(words)
        for form in forms
        for position in _find_word_positions(folded_text, form)
    )
    return _find_richest_start(word_positions, length, original_positions)


def find_sentence_start(text: str, position: int) -> int:
    """Return the start of the sentence or line around a position, or the position itself if the start is far away."""
    search_start = max(0, position - MAX_LOOKBACK_CHARS)
    previous_end = max(
        text.rfind("\n", search_start, position),
        text.rfind(". ", search_start, position),
    )
    if previous_end >= 0:
        return previous_end + 1
    return 0 if search_start == 0 else position


def _find_richest_start(
    word_positions: Iterable[tuple[int, int]],
    length: int,
    original_positions: Sequence[int] | None,
) -> int:
    """Return the start of the part with the most different words; among equal parts, of the shortest, then the first.

    `word_positions`: positions of words, each with the number of the word. `original_positions`: the position in the
    unfolded text of each character.
    """
    ordered_positions = sorted(word_positions)
    best_start = best_word_count = window_start = 0
    best_span = length
    counts: Counter[int] = Counter()
    for position, word_number in ordered_positions:
        counts[word_number] += 1
        while (
            position - ordered_positions[window_start][0] >= length
            or counts[ordered_positions[window_start][1]] > 1
        ):
            counts[ordered_positions[window_start][1]] -= 1
            if not counts[ordered_positions[window_start][1]]:
                del counts[ordered_positions[window_start][1]]
            window_start += 1
        span = position - ordered_positions[window_start][0]
        if (len(counts), -span) > (best_word_count, -best_span):
            best_start = ordered_positions[window_start][0]
            best_word_count = len(counts)
            best_span = span
    return original_positions[best_start] if original_positions else best_start


def _find_word_positions(folded_text: str, word: str) -> Iterator[int]:
    """Yield the positions of a word. An ASCII word matches only as a whole word."""
    position = folded_text.find(word)
    text_end = len(folded_text)
    for _ in range(MAX_WORD_POSITIONS):
        if position < 0:
            return
        word_end = position + len(word)
        is_joined = (position > 0 and folded_text[position - 1].isalnum()) or (
            word_end < text_end and folded_text[word_end].isalnum()
        )
        if not (is_joined and word.isascii()):
            yield position
        position = folded_text.find(word, word_end)


def _find_phrase_positions(folded_text: str, word: Sequence[str]) -> list[int]:
    """Return the positions of a whole word; without any, those inside longer words, then those of its terms."""
    pattern_in_row = r"[\W_]*+".join(map(re.escape, word))
    for pattern in (
        rf"(?<![^\W_]){pattern_in_row}(?![^\W_])",
        pattern_in_row,
        "|".join(map(re.escape, word)),
    ):
        matches = zip(re.finditer(pattern, folded_text), range(MAX_WORD_POSITIONS), strict=False)
        if positions := [match.start() for match, _ in matches]:
            return positions
    return []


def _fold_text(text: str) -> tuple[str, list[int] | None]:
    """Return the text folded for searching, and the original position of each character, or None if none has moved."""
    if text.isascii():
        return text.lower(), None
    folded_text = unicodedata.normalize("NFKC", text).casefold()
    if len(folded_text) == len(text):
        return folded_text, None
    parts = [
        (match.start(), unicodedata.normalize("NFKC", match[0]).casefold())
        for match in _CHARACTER_CLUSTER_PATTERN.finditer(text)
    ]
    return "".join(part for _, part in parts), [start for start, part in parts for _ in part]
