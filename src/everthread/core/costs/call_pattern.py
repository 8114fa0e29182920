"""The pattern of a thread's calls, which predicts the calls to come.

It records how fast the thread grows and how long the provider's cache keeps it.
A thread that has lasted for N calls is expected to last for about N more.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage, is_nonnegative_number
from everthread.core.json_values import as_object

_MIN_FURTHER_CALLS = 8
"""Calls expected of a thread that has just begun."""
_MAX_FURTHER_CALLS = 400
_HOUR_SECONDS = 3_600.0
_MAX_LIFETIME_SECONDS = 24 * _HOUR_SECONDS
_MIN_SURVIVED_READ_SHARE = 0.5
"""Share of the last prompt: the cache survived a pause if more was read after it."""
_MAX_EXPIRED_READ_SHARE = 0.1
"""Share of the last prompt: the cache had expired if less was read after a pause."""
_OLD_AVERAGE_WEIGHT = 0.9
"""Weight of the earlier average beside the newest call."""


@dataclass(frozen=True, slots=True)
class CallPattern:
    """Statistics of a thread's calls."""

    calls: int = 0
    last: float | None = None
    """When the last call was answered, in seconds since 1970."""
    prompt: int = 0
    """Prompt tokens of the last call."""
    growth: float = 0.0
    """Tokens that a call adds, a fading average."""
    read_share: float = 1.0
    """Share of the tokens in a warm cache that were reported as read."""
    since_rewrite: int = 0
    """Calls since the last compaction."""
    lifetime: float = 0.0
    """Seconds that the provider keeps an unused prefix, learnt from calls, or 0 if unknown."""

    def add_call(self, usage: CanonicalUsage, timestamp: float, *, ttl: float) -> CallPattern:
        """Return the pattern with one more call. `ttl`: the lifetime of the cache until another is learnt."""
        prompt = usage.prompt_tokens
        if not prompt:
            return self
        lifetime = self._learn_lifetime(usage, timestamp, ttl)
        is_cold = replace(self, lifetime=lifetime).is_cold(timestamp, ttl=ttl)
        growth = self.growth
        read_share = self.read_share
        if self.prompt and prompt > self.prompt:
            growth = float(prompt - self.prompt)
            if self.growth:
                growth = _update_average(self.growth, growth)
        if not is_cold and prompt >= self.prompt > 0:
            read_share = _update_average(
                self.read_share, min(1.0, usage.cache_read_tokens / self.prompt)
            )
        return CallPattern(
            calls=self.calls + 1,
            last=timestamp,
            prompt=prompt,
            growth=growth,
            read_share=read_share,
            since_rewrite=self.since_rewrite + 1,
            lifetime=lifetime,
        )

    def _learn_lifetime(self, usage: CanonicalUsage, timestamp: float, ttl: float) -> float:
        """Return how long the cache seems to live, judged by one-hour writes or by reads after a pause."""
        if usage.cache_write_1h_tokens:
            return max(self.lifetime, _HOUR_SECONDS)
        known_lifetime = max(self.lifetime, ttl)
        if self.last is None or not 0 < self.prompt <= usage.prompt_tokens:
            return known_lifetime
        pause = timestamp - self.last
        if (
            pause >= known_lifetime
            and usage.cache_read_tokens >= _MIN_SURVIVED_READ_SHARE * self.prompt
        ):
            return min(pause + 1.0, _MAX_LIFETIME_SECONDS)
        if (
            ttl < pause < known_lifetime
            and usage.cache_read_tokens < _MAX_EXPIRED_READ_SHARE * self.prompt
        ):
            return pause
        return known_lifetime

    def is_cold(self, timestamp: float, *, ttl: float) -> bool:
        """Return whether the cached prefix has expired. Before the first call there is none, so it has."""
        return self.last is None or timestamp - self.last >= (self.lifetime or ttl)

    def after_compaction(self) -> CallPattern:
        """Return the pattern after a compaction, so that the next prompt is not compared with an earlier one."""
        return replace(self, prompt=0, since_rewrite=0)

    @property
    def expected_calls(self) -> int:
        """Number of calls still expected."""
        return min(max(self.calls, _MIN_FURTHER_CALLS), _MAX_FURTHER_CALLS)

    def dump(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def load(cls, state: Any) -> CallPattern:
        """Return the pattern that `dump` wrote; ignore fields of another shape."""
        stored = as_object(state)
        names = (item.name for item in fields(cls))
        return cls(
            **{name: stored[name] for name in names if is_nonnegative_number(stored.get(name))}
        )


def _update_average(average: float, newest: float) -> float:
    return _OLD_AVERAGE_WEIGHT * average + (1 - _OLD_AVERAGE_WEIGHT) * newest
