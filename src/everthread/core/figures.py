"""Lines of an output that stand out and tell a figure: what happened, among what always happens."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby

FEWEST = 6
"""Of fewer lines none stands out."""
READ = 40_000
ROWS = 2_000
RARE = 2
"""A line stands out when at most so many of an output look like it."""
MOST = 5
"""Where more lines than these stand out, none does: looks differ anyway, as in source code."""
SHORTEST, LONGEST = 12, 240
WORDS = 40
CODE = 5
"""Where one line in so many reads like source code, it is."""

_STATED_EXIT = re.compile(r"\W*(?:exit|command exited|process exited)\b[^\n]{0,30}\d\W*", re.IGNORECASE)
_CODE = re.compile(
    r"[;{}]$|=>|\w\(\)|^[-+]{1,3} |^(?://|/\*|\*|\}|#include|@\w|<!--|</?\w+)|^\W{0,4}[\"'][\w.-]+[\"']\s*:"
    r"|^\W{0,4}(?:import|from|def|class|return|const|let|var|function|export|if|elif|else|for|while|async|await|public|"
    r"private|func|fn|pub)\b"
)
_DIGITS = re.compile(r"\d+")


def figures(text: str) -> list[str]:
    """Lines with a figure that look like hardly any other, where most of an output's lines look alike."""
    rows = [row.strip() for row in text[:READ].split("\n")[:ROWS]]
    rows = [row for row in rows if row and not states_exit(row)]
    if len(rows) < FEWEST:
        return []
    if CODE * sum(_CODE.search(row) is not None for row in rows) > len(rows):
        return []
    looks = list(map(_look, rows))
    common = Counter(looks)
    odd = [row for row, look in zip(rows, looks, strict=True) if common[look] <= RARE]
    if len(odd) > MOST or 2 * len(odd) > len(rows):
        return []
    return [row for row in odd if SHORTEST < len(row) < LONGEST and _has_figure(row) and not _CODE.search(row)]


def states_exit(line: str) -> bool:
    """Whether a line says nothing but how a command ended."""
    return _STATED_EXIT.fullmatch(line) is not None


def shape(line: str) -> str:
    """Equal for lines that differ only in their figures."""
    return _DIGITS.sub("0", line)


def _look(row: str) -> str:
    """What kinds of words follow each other: plain ones, those with digits, settings by their name."""
    kinds = (_kind(word) for word in row.split(None, WORDS)[:WORDS])
    return " ".join(kind for kind, _ in groupby(kinds))


def _kind(word: str) -> str:
    key, equals, _ = word.partition("=")
    return key if equals else "0" if any(map(str.isdigit, word)) else "a"


def _has_figure(row: str) -> bool:
    return any(map(str.isdigit, row)) and any(map(str.isalpha, row))
