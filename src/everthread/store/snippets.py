"""The part of a text that shows why it was found."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
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
    start = max(0, min(best_place(text, words, LENGTH - BEFORE) - BEFORE, len(text) - LENGTH))
    end = start + LENGTH
    # What is indexed holds no secrets; this looks once more, with the rules of today.
    shown = redact_part(text, start, end, margin=CONTEXT)
    return ("…" if start or goes_before else "") + " ".join(shown.split()) + ("…" if end < len(text) else "")


def best_place(text: str, words: Sequence[Sequence[str]], reach: int) -> int:
    """Where a part of so many characters begins that shows the most different words; the first of several."""
    folded, places = _folded(text)
    found = sorted((at, number) for number, word in enumerate(words) for at in _places(folded, word))
    best = _richest(found, reach)
    return places[best] if places else best


def richest_place(text: str, words: Sequence[Sequence[str]], reach: int) -> int:
    """The same for words that are given each in all its forms: no pattern is made, so that many cost little."""
    folded, places = _folded(text)
    found = sorted((at, number) for number, forms in enumerate(words) for form in forms for at in _alone(folded, form))
    best = _richest(found, reach)
    return places[best] if places else best


def _richest(found: Sequence[tuple[int, int]], reach: int) -> int:
    """Where a part begins that has the most different words, of places and the words that stand there, in order."""
    best = most = behind = 0
    within: Counter[int] = Counter()
    for at, number in found:
        while behind < len(found) and found[behind][0] < at + reach:
            within[found[behind][1]] += 1
            behind += 1
        if len(within) > most:
            best, most = at, len(within)
        within[number] -= 1
        if not within[number]:
            del within[number]
    return best


def _alone(folded: str, word: str) -> Iterator[int]:
    """Where a word stands on its own; single characters of scripts without spaces do so everywhere."""
    at, end = folded.find(word), len(folded)
    for _ in range(MOST_PLACES):
        if at < 0:
            return
        behind = at + len(word)
        joined = (at > 0 and folded[at - 1].isalnum()) or (behind < end and folded[behind].isalnum())
        if not (joined and word.isascii()):
            yield at
        at = folded.find(word, behind)


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
