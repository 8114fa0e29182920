"""Patterns for paths: `*` and `?` within one component, `**` over any number of them, `[...]` for one character."""

from __future__ import annotations

import functools
import re
import warnings


@functools.lru_cache(1_024)
def path_glob(pattern: str) -> re.Pattern[str]:
    """What matches a whole path, its components joined by `/`. Never raises: what is no pattern is taken literally."""
    parts: list[str] = []
    place = 0
    while place < len(pattern):
        found, place = _piece(pattern, place)
        parts.append(found)
    return re.compile("".join(parts), re.DOTALL)


def _piece(pattern: str, place: int) -> tuple[str, int]:
    """The expression for what stands at a place, and where the next begins."""
    begins = place == 0 or pattern[place - 1] == "/"
    if begins and pattern.startswith("**/", place):
        return r"(?:[^/]+/)*", place + 3
    if begins and pattern[place:] == "**":
        return r".+", place + 2
    char = pattern[place]
    if char == "*":
        while pattern.startswith("*", place + 1):
            place += 1
        return r"[^/]*", place + 1
    if char == "?":
        return r"[^/]", place + 1
    if char == "[":
        return _one_of(pattern, place)
    if char == "\\" and place + 1 < len(pattern):
        return re.escape(pattern[place + 1]), place + 2
    return re.escape(char), place + 1


def _one_of(pattern: str, place: int) -> tuple[str, int]:
    end = pattern.find("]", place + 2 + pattern.startswith(("!", "^"), place + 1))
    if end < 0:
        return r"\[", place + 1
    inside = pattern[place + 1 : end]
    negated = inside[:1] in ("!", "^")
    ranges = "".join(f"\\{char}" if char in "\\[]^&~|" else char for char in inside[negated:])
    expression = f"(?!/)[{'^' if negated else ''}{ranges}]"
    try:
        with warnings.catch_warnings(action="error"):
            re.compile(expression)
    except (re.error, FutureWarning):
        return r"\[", place + 1
    return expression, end + 1
