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
    """State learnt from the calls of one thread and stored with it, so that any process can continue.

    Only its methods, and those of its parts, change it.
    """

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

    def observe(self, usage: CanonicalUsage, now: float, *, ttl: float) -> bool:
        """Record an answered call. If its prompt is smaller than the last one, assume that it was compacted.

        Return whether a pause begins, because the last compactions hardly helped.
        """
        if usage.prompt_tokens < self.call_pattern.prompt:
            self.call_pattern = self.call_pattern.after_compaction()
        self.call_pattern = self.call_pattern.add_call(usage, now, ttl=ttl)
        self.cache_change = ""
        return bool(usage.prompt_tokens) and self.pause.begin_if_ineffective(
            usage.prompt_tokens, now
        )

    def note_cache_change(self, reason: str) -> None:
        """Note why the next request does not match the provider's cache."""
        self.cache_change = reason

    def note_model_change(self, model: str) -> None:
        """Forget the sizes that another model reported, and note that the new one has nothing cached."""
        self.note_cache_change(f"the model is {model} now")
        self.pause.unjudged_tokens_before = 0
        self.calibration.reset()

    def start_waiting(self) -> bool:
        """Note that a due compaction is postponed. Return whether that is to be reported now."""
        is_new = not self.is_wait_reported
        self.is_wait_reported = True
        return is_new

    def stop_waiting(self) -> None:
        """Note that a due compaction is made, so that the next postponed one is reported again."""
        self.is_wait_reported = False

    def record_compaction(self, tokens_before: int, *, is_automatic: bool) -> None:
        """Record a committed compaction of a prompt of this size. Only an automatic one is judged by its effect."""
        self.pause.unjudged_tokens_before = tokens_before if is_automatic else 0
        self.call_pattern = self.call_pattern.after_compaction()

    def record_compacted_size(self, tokens: int) -> None:
        """Record the size of the prompt after a compaction."""
        self.tokens_after_compaction = tokens

    def forget_compaction(self) -> None:
        """Forget the last compaction, because none applies to the prompt."""
        self.tokens_after_compaction = 0

    def record_failure(self, tokens: int) -> None:
        """Record a compaction that did not shrink a prompt of this size; the next one waits until it has grown."""
        self.retry_above_tokens = round(tokens * RETRY_GROWTH_FACTOR)

    def forget_failure(self, previous_limit: int = 0) -> None:
        """Allow compactions again at the size that a failure set, or at `previous_limit` if that is smaller."""
        self.retry_above_tokens = min(self.retry_above_tokens, previous_limit)

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
