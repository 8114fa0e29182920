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

DEFAULT_THRESHOLD = 0.50
DEFAULT_THRESHOLD_TOKENS = 200_000
DEFAULT_TARGET_RATIO = 0.20
DEFAULT_PROTECT_LAST_N = 20
DEFAULT_USER_WORDS_SHARE = 0.25
DEFAULT_RESULT_CHARS = 100_000
DEFAULT_TURN_CHARS = 200_000
DEFAULT_PREVIEW_CHARS = 1_500
DEFAULT_OUTPUT_RESERVE = 4_096
"""Tokens reserved for an answer whose cap is unknown; at most an eighth of the window."""

SETTING_RANGES: Mapping[str, tuple[float, float]] = {
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
"""The allowed range of each setting, inclusive. A setting must be a whole number if its lower bound is one."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Token limits for a window. Create one with `Budget.for_window`."""

    window: int
    threshold: int
    """Size from which a prompt is compacted; T below."""
    prompt_limit: int
    """The largest prompt that leaves room for the answer: window - max_output - 2 %."""
    tail_tokens: int
    """Tokens of the tail that are kept unchanged."""
    protect_last_n: int
    """How many messages of the end are kept if `max_compacted_tokens` allows it."""
    user_words_tokens: int
    """Tokens of replaced user messages that stay word for word."""
    result_chars: int
    """A longer tool result is stored and cited."""
    max_turn_result_chars: int
    """Maximum total of the results of one turn; beyond it the largest are stored and cited."""
    preview_chars: int
    """Characters of a stored result that are shown."""

    @classmethod
    @functools.lru_cache(maxsize=256, typed=True)
    def for_window(  # noqa: PLR0913 - one keyword per setting
        cls,
        window: int,
        *,
        threshold: float = DEFAULT_THRESHOLD,
        target_ratio: float = DEFAULT_TARGET_RATIO,
        protect_last_n: int = DEFAULT_PROTECT_LAST_N,
        threshold_tokens: int | None = DEFAULT_THRESHOLD_TOKENS,
        max_output: int | None = None,
        result_chars: int = DEFAULT_RESULT_CHARS,
        turn_chars: int = DEFAULT_TURN_CHARS,
        preview_chars: int = DEFAULT_PREVIEW_CHARS,
        user_words: float = DEFAULT_USER_WORDS_SHARE,
    ) -> Budget:
        """Return the budget of a window at these settings.

        T = min(window x threshold, threshold_tokens, window - max_output - 2 %), at least 5 % of the window. A tool
        result never exceeds 2 T characters (about half of T in tokens), those of one turn never 4 T.
        """
        _check_range("model.context_length", window)
        _check_range("compression.threshold", threshold)
        _check_range("compression.target_ratio", target_ratio)
        _check_range("compression.protect_last_n", protect_last_n)
        _check_range("compression.user_words", user_words)
        _check_range("tool_output.result_chars", result_chars)
        _check_range("tool_output.turn_chars", turn_chars)
        _check_range("tool_output.preview_chars", preview_chars)
        if threshold_tokens is not None:
            _check_range("compression.threshold_tokens", threshold_tokens)
        if max_output is not None:
            _check_range("model.max_tokens", max_output)

        max_prompt = window - (max_output or 0) - _round_up_share(window, 0.02)
        wanted_threshold = min(
            _round_down_share(window, threshold), threshold_tokens or window, max_prompt
        )
        effective_threshold = max(wanted_threshold, _round_up_share(window, 0.05))
        result_limit = min(result_chars, 2 * effective_threshold)
        return cls(
            window=window,
            threshold=effective_threshold,
            prompt_limit=max(
                max_prompt - (0 if max_output else min(DEFAULT_OUTPUT_RESERVE, window // 8)),
                effective_threshold,
            ),
            tail_tokens=_round_down_share(effective_threshold, target_ratio),
            protect_last_n=protect_last_n,
            user_words_tokens=_round_down_share(effective_threshold, user_words),
            result_chars=result_limit,
            max_turn_result_chars=min(turn_chars, 4 * effective_threshold),
            preview_chars=min(preview_chars, result_limit),
        )

    @property
    def max_compacted_tokens(self) -> int:
        """Maximum size of a compacted request: 60 % of the threshold, so that the next compaction is many turns away.

        A larger tail, or a larger share for the user's words, raises this limit by the same number of tokens.
        """
        extra_tokens = max(
            self.tail_tokens - _round_down_share(self.threshold, DEFAULT_TARGET_RATIO),
            0,
        )
        extra_tokens += max(
            self.user_words_tokens - _round_down_share(self.threshold, DEFAULT_USER_WORDS_SHARE),
            0,
        )
        return min(self.threshold * 60 // 100 + extra_tokens, self.background_start)

    @property
    def background_start(self) -> int:
        """Size from which a summary may be prepared while the conversation continues."""
        return self.threshold * 80 // 100

    @property
    def before_incoming_limit(self) -> int:
        """The gateway's fixed safety limit, 85 % of the window; below T if T is set higher."""
        return self.window * 85 // 100

    @property
    def is_small(self) -> bool:
        """Whether the threshold leaves too few tokens for empty sections and a long marker."""
        return self.threshold < 4_096

    @property
    def summary_max(self) -> int:
        """Maximum tokens of a summary: 5 % of the window up to 12,000; at least 2,000 or a quarter of the threshold."""
        return max(min(self.window * 5 // 100, 12_000), min(2_000, self.threshold // 4))

    @property
    def summary_min(self) -> int:
        """Minimum tokens for a summary, however full the prompt is."""
        return min(2_000, self.summary_max)

    def summary_size(self, middle_tokens: int) -> int:
        """Return the size of the summary for a middle of this many tokens, without the user's words.

        It is a fifth of the middle within `summary_min` and `summary_max`, and at most half of it.
        """
        middle = max(middle_tokens, 0)
        return min(
            max(self.summary_min, min(middle * 20 // 100, self.summary_max)),
            middle // 2,
        )


def _check_range(key: str, value: Any) -> None:
    minimum, maximum = SETTING_RANGES[key]
    is_integer = isinstance(minimum, int)
    is_number = isinstance(value, int if is_integer else (int, float)) and not isinstance(
        value, bool
    )
    if is_number and minimum <= value <= maximum:
        return
    kind = "a whole number" if is_integer else "a number"
    range_text = (
        f"{minimum:,} or more" if maximum == math.inf else f"from {minimum:,} to {maximum:,}"
    )
    raise ConfigError(f"{key}: {value!r} is not allowed; it must be {kind}, {range_text}.")


def _round_down_share(amount: int, share: float) -> int:
    return math.floor(round(amount * share, 6))


def _round_up_share(amount: int, share: float) -> int:
    return math.ceil(round(amount * share, 6))
