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
    folded, places = _fold_text(text)
    hits = (
        (at, number)
        for number, word in enumerate(words)
        for at in _run_positions(folded, word)
    )
    position = _richest_start(hits, SNIPPET_LENGTH - SNIPPET_BEFORE, places)
    start = max(0, min(position - SNIPPET_BEFORE, len(text) - SNIPPET_LENGTH))
    end = start + SNIPPET_LENGTH
    # The index holds no secrets; redact once more, with the current rules.
    shown = redact_part(text, start, end, margin=SECRET_MARGIN)
    return (
        ("…" if start or goes_before else "")
        + " ".join(shown.split())
        + ("…" if end < len(text) else "")
    )


def find_richest_position(text: str, words: Sequence[Sequence[str]], reach: int) -> int:
    """Return the start of the part of `reach` characters with the most different words, each given by all its forms.

    No pattern is made for a word, so that many words cost little.
    """
    folded, places = _fold_text(text)
    hits = (
        (at, n)
        for n, forms in enumerate(words)
        for form in forms
        for at in _word_positions(folded, form)
    )
    return _richest_start(hits, reach, places)


def sentence_start(text: str, at: int) -> int:
    """Return the start of the sentence or line around a position; the position itself if that is far."""
    near = max(0, at - SENTENCE_REACH)
    begins = max(text.rfind("\n", near, at), text.rfind(". ", near, at))
    return begins + 1 if begins >= 0 else near if not near else at


def _richest_start(
    hits: Iterable[tuple[int, int]], reach: int, places: Sequence[int] | None
) -> int:
    """Return the start of the part with the most different words; of equals the shortest part, then the first.

    `hits`: positions and the words found there. `places`: the original position of each character.
    """
    ordered = sorted(hits)
    best = most = first = 0
    shortest = reach
    within: Counter[int] = Counter()
    for at, number in ordered:
        within[number] += 1
        while at - ordered[first][0] >= reach or within[ordered[first][1]] > 1:
            within[ordered[first][1]] -= 1
            if not within[ordered[first][1]]:
                del within[ordered[first][1]]
            first += 1
        span = at - ordered[first][0]
        if (len(within), -span) > (most, -shortest):
            best = ordered[first][0]
            most = len(within)
            shortest = span
    return places[best] if places else best


def _word_positions(folded: str, word: str) -> Iterator[int]:
    """The positions of a word on its own; single characters of scripts without spaces always are."""
    at = folded.find(word)
    end = len(folded)
    for _ in range(MAX_PLACES):
        if at < 0:
            return
        behind = at + len(word)
        joined = (at > 0 and folded[at - 1].isalnum()) or (
            behind < end and folded[behind].isalnum()
        )
        if not (joined and word.isascii()):
            yield at
        at = folded.find(word, behind)


def _run_positions(folded: str, word: Sequence[str]) -> list[int]:
    """The positions of a word: on its own, else inside others, else of one of its terms."""
    run = r"[\W_]*+".join(map(re.escape, word))
    for pattern in (
        rf"(?<![^\W_]){run}(?![^\W_])",
        run,
        "|".join(map(re.escape, word)),
    ):
        matches = zip(re.finditer(pattern, folded), range(MAX_PLACES), strict=False)
        if positions := [match.start() for match, _ in matches]:
            return positions
    return []


def _fold_text(text: str) -> tuple[str, list[int] | None]:
    """Return the text as searched, and each character's original position; None if positions are unchanged."""
    if text.isascii():
        return text.lower(), None
    folded = unicodedata.normalize("NFKC", text).casefold()
    if len(folded) == len(text):
        return folded, None
    parts = [
        (match.start(), unicodedata.normalize("NFKC", match[0]).casefold())
        for match in _CLUSTER.finditer(text)
    ]
    return "".join(part for _, part in parts), [
        start for start, part in parts for _ in part
    ]
