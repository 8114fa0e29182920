"""A regular expression of anybody's against texts of any length: it ends in time, and nothing waits for it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import regex

from everthread.core.redaction import redact
from everthread.errors import InputError

LONGEST = 1_000
"""Characters of a pattern."""
SECONDS = 2.0
"""For all texts of one search together."""
MOST_REPEATS = 10_000
"""Counted repetitions, multiplied: a pattern is unrolled by them before it is used, and takes room accordingly."""
_COUNTS = regex.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


class Matcher:
    """One pattern and the time it has."""

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern) > LONGEST:
            raise InputError(f"a pattern has 1 to {LONGEST:,} characters, not {len(pattern):,}")
        repeats = (int(found or 0) for match in _COUNTS.finditer(pattern) for found in match.groups())
        if math.prod(max(1, min(count, MOST_REPEATS + 1)) for count in repeats) > MOST_REPEATS:
            raise InputError(f"the pattern {pattern[:80]!r} repeats too often; use * or + instead of large numbers")
        try:
            self._pattern = regex.compile(pattern, regex.MULTILINE)
        except (regex.error, RecursionError, OverflowError) as error:
            raise InputError(f"{pattern[:80]!r} is no regular expression: {error}") from error
        self._left = SECONDS

    @property
    def spent(self) -> bool:
        """Whether its time is over."""
        return self._left <= 0

    def scan(self, texts: Sequence[str], around: int) -> list[str]:
        """For each text the words around the first match, without secrets; empty where nothing matches.

        The answer is shorter than `texts` where the time ends. `InputError` where one text alone takes too long.
        """
        shown = []
        for text in texts:
            if self.spent:
                break
            started = time.monotonic()
            shown.append(self._around(text, around))
            self._left -= time.monotonic() - started
        return shown

    def _around(self, text: str, around: int) -> str:
        if self._first(text) is None:
            return ""
        clean = redact(text)
        span = self._first(clean)
        if span is None:  # only a secret matches
            return ""
        spare = max(0, around - (span[1] - span[0])) // 2
        start = max(0, span[0] - spare)
        end = min(len(clean), start + around)
        return f"{'…' if start else ''}{clean[start:end]}{'…' if end < len(clean) else ''}"

    def _first(self, text: str) -> tuple[int, int] | None:
        try:
            found = self._pattern.search(text, timeout=self._left, concurrent=True)
        except TimeoutError as error:
            raise InputError(
                f"the pattern takes too long on a text of {len(text):,} characters; make it simpler (no repetition "
                "inside a repetition), or search for words"
            ) from error
        return None if found is None else found.span()
