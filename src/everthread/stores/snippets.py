"""The part of a text that shows why it was found."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from everthread.core.redaction import redact_part

LENGTH = 160
BEFORE = LENGTH // 4
MOST_PLACES = 200
"""So many places of a word are looked at for one where others are near."""
CONTEXT = 200
"""Characters around a snippet that are looked through for secrets with it."""

_CLUSTER = re.compile(r".[\u0300-\u036f\u1160-\u11ff\u3099\u309a]*", re.DOTALL)


def snippet(text: str, words: Sequence[Sequence[str]], *, goes_before: bool = False) -> str:
    """The surroundings of the words found, on one line: where the most of them stand together.

    `goes_before`: the text itself begins in the middle of something.
    """
    folded, places = _folded(text)
    found = sorted((at, number) for number, word in enumerate(words) for at in _places(folded, word))
    best = max(found, key=lambda place: (_near(found, place[0]), -place[0]), default=(0, 0))[0]
    centre = places[best] if places else best
    start = max(0, min(centre - BEFORE, len(text) - LENGTH))
    end = start + LENGTH
    # What is indexed holds no secrets; this looks once more, with the rules of today.
    shown = redact_part(text, start, end, margin=CONTEXT)
    return ("…" if start or goes_before else "") + " ".join(shown.split()) + ("…" if end < len(text) else "")


def _near(found: Sequence[tuple[int, int]], at: int) -> int:
    """How many different words a snippet that begins here shows."""
    return len({number for place, number in found if at <= place < at + LENGTH - BEFORE})


def _places(folded: str, word: Sequence[str]) -> Iterator[int]:
    """Where a word stands: on its own, or else inside others."""
    run = r"[\W_]*+".join(map(re.escape, word))
    alone = _some(re.compile(rf"(?<![^\W_]){run}(?![^\W_])"), folded)
    yield from alone or _some(re.compile(run), folded) or _some(re.compile("|".join(map(re.escape, word))), folded)


def _some(pattern: re.Pattern[str], folded: str) -> list[int]:
    return [match.start() for match, _ in zip(pattern.finditer(folded), range(MOST_PLACES), strict=False)]


def _folded(text: str) -> tuple[str, list[int] | None]:
    """The text as it is searched, and where each of its characters came from; None where they stand one to one."""
    if text.isascii():
        return text.lower(), None
    folded = unicodedata.normalize("NFKC", text).casefold()
    if len(folded) == len(text):
        return folded, None
    parts = [(match.start(), unicodedata.normalize("NFKC", match[0]).casefold()) for match in _CLUSTER.finditer(text)]
    return "".join(part for _, part in parts), [start for start, part in parts for _ in part]
