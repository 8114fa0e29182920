"""The sizes that follow from the window and the settings: when to compact, and how much to keep.

Tokens, except the tool-output limits, which are characters. Every figure is a whole number, rounded so that a limit
is never exceeded by rounding. An argument out of range is refused, never clamped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everthread.errors import ConfigError

THRESHOLD = 0.50
THRESHOLD_TOKENS = 200_000
TARGET_RATIO = 0.20
PROTECT_LAST_N = 20
USER_WORDS = 0.25
RESULT_CHARS = 100_000
TURN_CHARS = 200_000
PREVIEW_CHARS = 1_500
SPARE_OUTPUT = 4_096
"""Room for an answer whose cap is not known; at most an eighth of the window."""

LIMITS: Mapping[str, tuple[float, float]] = {
    "model.context_length": (1, 1_000_000_000),
    "model.max_tokens": (1, math.inf),
    "compression.threshold": (0.0, 1.0),
    "compression.target_ratio": (0.10, 0.80),
    "compression.protect_last_n": (1, math.inf),
    "compression.threshold_tokens": (1, math.inf),
    "compression.user_words": (0.0, 0.50),
    "compression.tools_share": (0.0, 1.0),
    "tool_output.result_chars": (1, math.inf),
    "tool_output.turn_chars": (1, math.inf),
    "tool_output.preview_chars": (0, math.inf),
}
"""The allowed range of each setting, inclusive; whole numbers if the lower end is one."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Token limits for a window. Create one with `Budget.for_window`."""

    window: int
    threshold: int
    """T: a prompt of this size is compacted."""
    prompt_limit: int
    """The largest prompt that leaves room for the answer: window - max_output - 2 %."""
    tail: int
    """Tokens of the tail that are kept unchanged."""
    protect_last_n: int
    """How many messages of the end are kept if `compacted_limit` allows it."""
    user_words: int
    """Tokens of replaced user messages that stay word for word."""
    result_chars: int
    """A longer tool result is stored and cited."""
    turn_chars: int
    """If the results of one turn are longer together, the largest are stored and cited."""
    preview_chars: int
    """How much of a stored result is shown."""

    @classmethod
    @functools.lru_cache(maxsize=256, typed=True)
    def for_window(  # noqa: PLR0913 - one keyword per setting
        cls,
        window: int,
        *,
        threshold: float = THRESHOLD,
        target_ratio: float = TARGET_RATIO,
        protect_last_n: int = PROTECT_LAST_N,
        threshold_tokens: int | None = THRESHOLD_TOKENS,
        max_output: int | None = None,
        result_chars: int = RESULT_CHARS,
        turn_chars: int = TURN_CHARS,
        preview_chars: int = PREVIEW_CHARS,
        user_words: float = USER_WORDS,
    ) -> Budget:
        """Return the budget of a window at these settings.

        T = min(window x threshold, threshold_tokens, window - max_output - 2 %), at least 5 % of the window. A tool
        result never exceeds 2 T characters (about half of T in tokens), those of one turn never 4 T.
        """
        _check("model.context_length", window)
        _check("compression.threshold", threshold)
        _check("compression.target_ratio", target_ratio)
        _check("compression.protect_last_n", protect_last_n)
        _check("compression.user_words", user_words)
        _check("tool_output.result_chars", result_chars)
        _check("tool_output.turn_chars", turn_chars)
        _check("tool_output.preview_chars", preview_chars)
        if threshold_tokens is not None:
            _check("compression.threshold_tokens", threshold_tokens)
        if max_output is not None:
            _check("model.max_tokens", max_output)

        fits = window - (max_output or 0) - _ceil(window, 0.02)
        wanted = min(_floor(window, threshold), threshold_tokens or window, fits)
        limit = max(wanted, _ceil(window, 0.05))
        result_limit = min(result_chars, 2 * limit)
        return cls(
            window=window,
            threshold=limit,
            prompt_limit=max(
                fits - (0 if max_output else min(SPARE_OUTPUT, window // 8)), limit
            ),
            tail=_floor(limit, target_ratio),
            protect_last_n=protect_last_n,
            user_words=_floor(limit, user_words),
            result_chars=result_limit,
            turn_chars=min(turn_chars, 4 * limit),
            preview_chars=min(preview_chars, result_limit),
        )

    @property
    def compacted_limit(self) -> int:
        """The most a compacted request should have, so that a compaction buys many turns: 60 % of T.

        A larger tail or more of the user's words, if configured, raise it by as much.
        """
        extra = max(self.tail - _floor(self.threshold, TARGET_RATIO), 0)
        extra += max(self.user_words - _floor(self.threshold, USER_WORDS), 0)
        return min(self.threshold * 60 // 100 + extra, self.background_start)

    @property
    def background_start(self) -> int:
        """From this size on, a summary may be prepared while the conversation continues."""
        return self.threshold * 80 // 100

    @property
    def hygiene(self) -> int:
        """The gateway's safety net. Fixed: below T when T is set higher than 85 % of the window."""
        return self.window * 85 // 100

    @property
    def small(self) -> bool:
        """Whether there is too little room for empty sections and a long marker."""
        return self.threshold < 4_096

    @property
    def summary_max(self) -> int:
        """The largest summary: 5 % of the window up to 12,000, and even in a small one 2,000 or a quarter of T."""
        return max(min(self.window * 5 // 100, 12_000), min(2_000, self.threshold // 4))

    @property
    def summary_min(self) -> int:
        """The smallest room for a summary, however full the prompt is."""
        return min(2_000, self.summary_max)

    def summary(self, middle_tokens: int) -> int:
        """Return the size of a summary of a middle of this size, without the user's words: a fifth, never over half."""
        middle = max(middle_tokens, 0)
        return min(
            max(self.summary_min, min(middle * 20 // 100, self.summary_max)),
            middle // 2,
        )


def _check(key: str, value: Any) -> None:
    low, high = LIMITS[key]
    is_integer = isinstance(low, int)
    number = isinstance(value, int if is_integer else (int, float)) and not isinstance(
        value, bool
    )
    if number and low <= value <= high:
        return
    kind = "a whole number" if is_integer else "a number"
    span = f"{low:,} or more" if high == math.inf else f"from {low:,} to {high:,}"
    raise ConfigError(f"{key}: {value!r} is not allowed; it must be {kind}, {span}.")


def _floor(amount: int, share: float) -> int:
    return math.floor(round(amount * share, 6))


def _ceil(amount: int, share: float) -> int:
    return math.ceil(round(amount * share, 6))
