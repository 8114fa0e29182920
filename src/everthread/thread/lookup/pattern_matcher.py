"""Search texts by a pattern of a model, within limits of time and memory."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import regex

from everthread.core.secrets.redaction import redact
from everthread.errors import InputError

MAX_PATTERN_CHARS = 1_000
"""Maximum characters of a pattern."""
PATTERN_TIMEOUT_SECONDS = 2.0
"""Maximum seconds of a pattern for all texts of a search together."""
MAX_REPEATS = 10_000
"""Maximum product of counted repetitions, which are unrolled in memory."""
_REPEAT_COUNTS_PATTERN = regex.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")


def compile_pattern(pattern: str, flags: int) -> regex.Pattern[str]:
    """Compile a pattern of a model. Raise `InputError` if it is invalid or would take too much memory."""
    repeats = (
        int(group or 0)
        for match in _REPEAT_COUNTS_PATTERN.finditer(pattern)
        for group in match.groups()
    )
    if math.prod(max(1, min(count, MAX_REPEATS + 1)) for count in repeats) > MAX_REPEATS:
        raise InputError(
            f"the pattern {pattern[:80]!r} repeats too often; use * or + instead of large numbers"
        )
    try:
        return regex.compile(pattern, flags)
    except (regex.error, RecursionError, OverflowError) as error:
        raise InputError(f"{pattern[:80]!r} is not a regular expression: {error}") from error


class PatternMatcher:
    """One pattern and the seconds it may still take."""

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern) > MAX_PATTERN_CHARS:
            raise InputError(
                f"a pattern has 1 to {MAX_PATTERN_CHARS:,} characters, not {len(pattern):,}"
            )
        self._pattern = compile_pattern(pattern, regex.MULTILINE)
        self._seconds = PATTERN_TIMEOUT_SECONDS

    def scan(self, texts: Sequence[str], snippet_chars: int) -> list[str]:
        """Return the words around the first match in each text, without secrets, or an empty list if nothing matches.

        Return fewer results than `texts` if the time runs out. Raise `InputError` if a single text takes too long.
        """
        snippets = []
        for text in texts:
            if self._seconds <= 0:
                break
            start_time = time.monotonic()
            snippets.append(self._show_match(text, snippet_chars))
            self._seconds -= time.monotonic() - start_time
        return snippets

    def _show_match(self, text: str, snippet_chars: int) -> str:
        if self._find_first(text) is None:
            return ""
        redacted_text = redact(text)
        span = self._find_first(redacted_text)
        if span is None:  # only a secret matches
            return ""
        context_chars = max(0, snippet_chars - (span[1] - span[0])) // 2
        start = max(0, span[0] - context_chars)
        end = min(len(redacted_text), start + snippet_chars)
        return f"{'…' if start else ''}{redacted_text[start:end]}{'…' if end < len(redacted_text) else ''}"

    def _find_first(self, text: str) -> tuple[int, int] | None:
        try:
            match = self._pattern.search(text, timeout=self._seconds, concurrent=True)
        except TimeoutError as error:
            raise InputError(
                f"the pattern takes too long on a text of {len(text):,} characters; make it simpler (no repetition "
                "inside a repetition), or search for words"
            ) from error
        return None if match is None else match.span()
