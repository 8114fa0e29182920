"""Choose the part of a text that a reader is shown."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from everthread.core.secrets.redaction import redact_part

SNIPPET_LENGTH = 160
SNIPPET_BEFORE = SNIPPET_LENGTH // 4
SENTENCE_REACH = 150
"""Characters before a part that are shown with it if its sentence begins there."""
MAX_PLACES = 200
"""The most positions of a word that are compared with those of others."""
SECRET_MARGIN = 200
"""Characters around a snippet that are searched for secrets too."""
RAW_MARGIN = 2_000
"""The same for a part of an original message: a secret is recognised by the text beside it."""
_CLUSTER = re.compile(r".[\u0300-\u036f\u1160-\u11ff\u3099\u309a]*", re.DOTALL)


def make_snippet(
    text: str, words: Sequence[Sequence[str]], *, goes_before: bool = False
) -> str:
    """The part of a text with the most of the words, on one line.

    `goes_before`: the text is a piece that begins inside a longer one.
    """
    folded_text, places = _fold_text(text)
    hits = (
        (hit_position, number)
        for number, word in enumerate(words)
        for hit_position in _run_positions(folded_text, word)
    )
    position = _richest_start(hits, SNIPPET_LENGTH - SNIPPET_BEFORE, places)
    start = max(0, min(position - SNIPPET_BEFORE, len(text) - SNIPPET_LENGTH))
    end = start + SNIPPET_LENGTH
    # The index holds no secrets; redact once more, with the current rules.
    snippet = redact_part(text, start, end, margin=SECRET_MARGIN)
    return (
        ("…" if start or goes_before else "")
        + " ".join(snippet.split())
        + ("…" if end < len(text) else "")
    )


def find_richest_position(text: str, words: Sequence[Sequence[str]], reach: int) -> int:
    """Return the start of the part of `reach` characters with the most different words, each given by all its forms.

    No pattern is made for a word, so that many words cost little.
    """
    folded_text, places = _fold_text(text)
    hits = (
        (position, number)
        for number, forms in enumerate(words)
        for form in forms
        for position in _word_positions(folded_text, form)
    )
    return _richest_start(hits, reach, places)


def sentence_start(text: str, at: int) -> int:
    """Return the start of the sentence or line around a position; the position itself if that is far."""
    reach_start = max(0, at - SENTENCE_REACH)
    previous_end = max(
        text.rfind("\n", reach_start, at), text.rfind(". ", reach_start, at)
    )
    return (
        previous_end + 1
        if previous_end >= 0
        else reach_start
        if not reach_start
        else at
    )


def _richest_start(
    hits: Iterable[tuple[int, int]], reach: int, places: Sequence[int] | None
) -> int:
    """Return the start of the part with the most different words; of equals the shortest part, then the first.

    `hits`: positions and the words found there. `places`: the original position of each character.
    """
    ordered_hits = sorted(hits)
    best_start = word_count = first = 0
    best_span = reach
    counts: Counter[int] = Counter()
    for position, number in ordered_hits:
        counts[number] += 1
        while (
            position - ordered_hits[first][0] >= reach
            or counts[ordered_hits[first][1]] > 1
        ):
            counts[ordered_hits[first][1]] -= 1
            if not counts[ordered_hits[first][1]]:
                del counts[ordered_hits[first][1]]
            first += 1
        span = position - ordered_hits[first][0]
        if (len(counts), -span) > (word_count, -best_span):
            best_start = ordered_hits[first][0]
            word_count = len(counts)
            best_span = span
    return places[best_start] if places else best_start


def _word_positions(folded_text: str, word: str) -> Iterator[int]:
    """The positions of a word on its own; single characters of scripts without spaces always are."""
    position = folded_text.find(word)
    text_end = len(folded_text)
    for _ in range(MAX_PLACES):
        if position < 0:
            return
        word_end = position + len(word)
        is_joined = (position > 0 and folded_text[position - 1].isalnum()) or (
            word_end < text_end and folded_text[word_end].isalnum()
        )
        if not (is_joined and word.isascii()):
            yield position
        position = folded_text.find(word, word_end)


def _run_positions(folded_text: str, word: Sequence[str]) -> list[int]:
    """The positions of a word: on its own, else inside others, else of one of its terms."""
    run = r"[\W_]*+".join(map(re.escape, word))
    for pattern in (
        rf"(?<![^\W_]){run}(?![^\W_])",
        run,
        "|".join(map(re.escape, word)),
    ):
        matches = zip(
            re.finditer(pattern, folded_text), range(MAX_PLACES), strict=False
        )
        if positions := [match.start() for match, _ in matches]:
            return positions
    return []


def _fold_text(text: str) -> tuple[str, list[int] | None]:
    """Return the text as searched, and each character's original position; None if positions are unchanged."""
    if text.isascii():
        return text.lower(), None
    folded_text = unicodedata.normalize("NFKC", text).casefold()
    if len(folded_text) == len(text):
        return folded_text, None
    parts = [
        (match.start(), unicodedata.normalize("NFKC", match[0]).casefold())
        for match in _CLUSTER.finditer(text)
    ]
    return "".join(part for _, part in parts), [
        start for start, part in parts for _ in part
    ]
