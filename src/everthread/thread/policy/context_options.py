"""The settings of a context, from which its budget is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Self

from everthread.core.caching.cache_lifetimes import CACHE_SECONDS
from everthread.core.tokens import budget as defaults
from everthread.core.tokens.budget import Budget


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Settings of a context. The field names are the keys of `config.yaml`, except `compact_when_idle`: `idle`."""

    enabled: bool = True
    background: bool = True
    compact_when_idle: bool = False
    """Compact shortly before the provider's cache expires."""
    threshold: float = defaults.DEFAULT_THRESHOLD
    target_ratio: float = defaults.DEFAULT_TARGET_RATIO
    protect_last_n: int = defaults.DEFAULT_PROTECT_LAST_N
    threshold_tokens: int | None = defaults.DEFAULT_THRESHOLD_TOKENS
    user_words: float = defaults.DEFAULT_USER_WORDS_SHARE
    result_chars: int = defaults.DEFAULT_RESULT_CHARS
    turn_chars: int = defaults.DEFAULT_TURN_CHARS
    preview_chars: int = defaults.DEFAULT_PREVIEW_CHARS
    cache_ttl: str = "5m"
    economics: bool = True
    """Weigh in dollars when to compact, if prices are known."""
    max_tokens: int | None = None
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`threshold`, `threshold_tokens` and `target_ratio` of single models, by name or glob."""

    def for_model(self, name: str) -> Self:
        """Return the settings for a model: those under its exact name, or else under the longest glob that matches."""
        matching_patterns = [pattern for pattern in self.models if fnmatchcase(name, pattern)]
        best_pattern = max(matching_patterns, key=len, default=None)
        if name in self.models:
            best_pattern = name
        if best_pattern is None:
            return self
        return replace(self, models={}, **self.models[best_pattern])

    def budget(self, window: int, *, fixed_tokens: int = 0) -> Budget:
        """Return the budget of a window. If system prompt and tools alone reach the threshold, raise it to 85 %."""
        max_output = None
        if self.max_tokens is not None:
            max_output = min(self.max_tokens, max(window // 4, 1))
        budget = Budget.for_window(
            window,
            threshold=self.threshold,
            target_ratio=self.target_ratio,
            protect_last_n=self.protect_last_n,
            threshold_tokens=self.threshold_tokens,
            result_chars=self.result_chars,
            turn_chars=self.turn_chars,
            preview_chars=self.preview_chars,
            user_words=self.user_words,
            max_output=max_output,
        )
        if fixed_tokens < budget.threshold or budget.threshold >= budget.before_incoming_limit:
            return budget
        share = budget.before_incoming_limit / window
        return replace(self, threshold=share, threshold_tokens=None).budget(window)

    @property
    def cache_seconds(self) -> float:
        """Seconds for which a provider keeps its cache."""
        return CACHE_SECONDS[self.cache_ttl]
