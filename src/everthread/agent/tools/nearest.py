"""Where a text that was not found nearly is."""

from __future__ import annotations

import difflib
from collections import Counter

from everthread.agent.workspace import quoted

COMPARED = 1_000
"""Lines compared letter by letter; more would take too long for a hint."""
SHOWN = 12


def nearest(text: str, wanted: str) -> str:
    """A sentence that shows the lines most like those wanted."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    asked = [" ".join(line.split()) for line in wanted.split("\n")]
    at = _same_lines(lines, asked)
    if at is None:
        at = _like(lines, max(asked, key=len))
    if at is None:
        return "Nothing in it is like it; read the file again."
    end = min(len(lines), at + min(len(asked), SHOWN))
    shown = "\n".join(quoted(line.removesuffix("\r"), 300, keep="\t") for line in text.split("\n")[at:end])
    same = all(asked) and asked == lines[at : at + len(asked)]
    why = "only the white space differs" if same else "the nearest"
    return f"At lines {at + 1}-{end} it has ({why}):\n{shown}"


def _same_lines(lines: list[str], asked: list[str]) -> int | None:
    """Where most of the wanted lines stand at their places, white space aside. Short lines say nothing."""
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if len(line) > 3:
            places.setdefault(line, []).append(number)
    votes = Counter(
        at - offset for offset, line in enumerate(asked) for at in places.get(line, ())[:200] if at >= offset
    )
    return min(votes, key=lambda at: (-votes[at], at)) if votes else None


def _like(lines: list[str], line: str) -> int | None:
    if len(line) < 4:
        return None
    found = difflib.get_close_matches(line[:300], [other[:300] for other in lines[:COMPARED]], n=1, cutoff=0.6)
    return next(number for number, other in enumerate(lines) if other[:300] == found[0]) if found else None
