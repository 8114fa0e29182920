"""The state learnt from the calls of one thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everthread.core.costs.call_pattern import CallPattern
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.tokens.calibration import Calibration
from everthread.thread.policy.compaction_pause import CompactionPause

RETRY_GROWTH_FACTOR = 1.10
"""After a compaction that could not shrink the prompt, the next automatic one waits for this growth."""


@dataclass(slots=True)
class LearntUsage:
    """State learnt from the calls of one thread and stored with it, so that any process can continue."""

    calibration: Calibration = field(default_factory=Calibration)
    call_pattern: CallPattern = field(default_factory=CallPattern)
    pause: CompactionPause = field(default_factory=CompactionPause)
    retry_above_tokens: int = 0
    """Prompt size below which no automatic compaction is made, because the last one did not help enough."""
    cache_change: str = ""
    """Why the next request does not match the cache, unless the reason is time; empty if it matches."""
    tokens_after_compaction: int = 0
    """Prompt tokens after the last compaction."""
    is_wait_reported: bool = False
    """Whether this process has reported that a due compaction is postponed. It is reported once."""

    def observe(self, usage: CanonicalUsage, now: float, *, ttl: float) -> None:
        """Record an answered call. If its prompt is smaller than the last one, assume that it was compacted."""
        if usage.prompt_tokens < self.call_pattern.prompt:
            self.call_pattern = self.call_pattern.after_compaction()
        self.call_pattern = self.call_pattern.add_call(usage, now, ttl=ttl)
        self.cache_change = ""

    def record_compaction(self, tokens_before: int, *, is_automatic: bool) -> None:
        """Record a committed compaction of a prompt of this size. Only an automatic one is judged by its effect."""
        self.pause.unjudged_tokens_before = tokens_before if is_automatic else 0
        self.call_pattern = self.call_pattern.after_compaction()

    def record_failure(self, tokens: int) -> None:
        """Record a compaction that did not shrink a prompt of this size; the next one waits until it has grown."""
        self.retry_above_tokens = round(tokens * RETRY_GROWTH_FACTOR)

    def record_success(self, tokens: int, threshold: int) -> None:
        """Record a compaction after which the prompt has this size.

        If that still reaches the threshold, the next compaction waits until the prompt has grown.
        """
        self.retry_above_tokens = round(tokens * RETRY_GROWTH_FACTOR) if tokens >= threshold else 0

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON values, so that another process can resume."""
        return {
            **self.calibration.dump(),
            "pause": self.pause.dump(),
            "call_pattern": self.call_pattern.dump(),
            "tokens_after_compaction": self.tokens_after_compaction,
            "retry_above_tokens": self.retry_above_tokens,
        }

    @classmethod
    def load(cls, state: Any) -> LearntUsage:
        fields = state if isinstance(state, Mapping) else {}
        return cls(
            calibration=Calibration.load(state),
            call_pattern=CallPattern.load(fields.get("call_pattern")),
            pause=CompactionPause.load(fields.get("pause")),
            retry_above_tokens=_read_token_count(fields.get("retry_above_tokens")),
            tokens_after_compaction=_read_token_count(fields.get("tokens_after_compaction")),
        )


def _read_token_count(value: Any) -> int:
    """Return a stored number of tokens, or 0 if the value is not one."""
    return value if isinstance(value, int) and value > 0 else 0
