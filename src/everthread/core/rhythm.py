"""The rhythm of a thread's calls: how fast it grows, how often a pause outlives the provider's cache.

What further calls will come is read from the calls there were. A thread that has lasted for so many calls is expected
to last for about as many more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from everthread.core.usage import CanonicalUsage

_FEWEST = 8
"""Further calls of a thread that has just begun."""
_MOST = 400
"""Nobody's future is known further than this."""
_FADING = 0.9
"""How much of what was seen before counts beside the newest call."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What the calls of a thread showed. A *run* is a row of calls without a pause that outlives the cache."""

    calls: int = 0
    pauses: int = 0
    run: int = 0
    """Calls since the last such pause."""
    last: float | None = None
    """When the last call was answered, in seconds since 1970."""
    prompt: int = 0
    """Its prompt tokens."""
    growth: float = 0.0
    """Tokens that come with a call, the newest counting most."""
    read_share: float = 1.0
    """Of the tokens a warm cache could have held, how many were reported as read."""

    def after(self, usage: CanonicalUsage, at: float, *, ttl: float) -> Rhythm:
        """The rhythm with one more call."""
        prompt = usage.prompt_tokens
        if not prompt:
            return self
        cold = self.is_cold(at, ttl=ttl)
        grown, share = self.growth, self.read_share
        if self.prompt and prompt > self.prompt:
            grown = _faded(self.growth, prompt - self.prompt) if self.growth else float(prompt - self.prompt)
        if not cold and prompt >= self.prompt > 0:
            share = _faded(self.read_share, min(1.0, usage.cache_read_tokens / self.prompt))
        paused = cold and self.calls > 0
        return Rhythm(self.calls + 1, self.pauses + paused, 1 if paused else self.run + 1, at, prompt, grown, share)

    def is_cold(self, at: float, *, ttl: float) -> bool:
        """Whether a cached prefix has been forgotten by then. Before the first call there is none."""
        return self.last is None or at - self.last >= ttl

    def rewritten(self) -> Rhythm:
        """After a compaction the next prompt is compared with nothing."""
        return replace(self, prompt=0)

    @property
    def further(self) -> int:
        """Calls that are still expected."""
        return min(max(self.calls, _FEWEST), _MOST)

    @property
    def until_pause(self) -> float | None:
        """Calls until the next pause that outlives the cache; None where none was ever seen."""
        if not self.pauses:
            return None
        return max(1.0, self.calls / self.pauses - self.run)

    def pauses_in(self, calls: float) -> float:
        """How many such pauses so many calls bring."""
        return calls * self.pauses / self.calls if self.calls else 0.0

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def load(cls, state: Any) -> Rhythm:
        """From what `dump` gave; what is not of that shape is as if it had never been seen."""
        known = state if isinstance(state, Mapping) else {}
        found: dict[str, Any] = {name: known[name] for name in _FIELDS if _is_figure(known.get(name))}
        return cls(**found)


_FIELDS = tuple(Rhythm.__dataclass_fields__)


def _faded(before: float, now: float) -> float:
    return _FADING * before + (1 - _FADING) * now


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
