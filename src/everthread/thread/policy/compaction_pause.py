"""Pause automatic compaction after two in a row that hardly helped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MAX_EFFECTIVE_SHARE = 0.90
"""A compaction is effective if the next reported prompt has at most this share of the one before."""
MAX_INEFFECTIVE_COMPACTIONS = 2
"""Ineffective compactions in a row that begin a pause."""
COMPACTION_PAUSE_SECONDS = 300.0
PAUSE_GROWTH_FACTOR = 1.10
"""A pause ends when the prompt has grown by this factor."""


@dataclass(slots=True)
class CompactionPause:
    """Prevent thrashing: two compactions in a row that hardly help pause the next ones.

    Wall-clock times, so that another process can resume.
    """

    ineffective_count: int = 0
    """Number of ineffective compactions in a row."""
    paused_at: float | None = None
    """Time when the pause began, or None if there is no pause."""
    paused_tokens: int = 0
    """Size of the prompt when the pause began."""
    unjudged_tokens_before: int = 0
    """Size of the prompt before a compaction that was not judged yet."""

    def begin_if_ineffective(self, prompt_tokens: int, now: float) -> bool:
        """Judge the last compaction by the first prompt after it, as the provider counted it.

        Return whether a pause begins.
        """
        tokens_before = self.unjudged_tokens_before
        self.unjudged_tokens_before = 0
        if not tokens_before:
            return False
        if prompt_tokens <= MAX_EFFECTIVE_SHARE * tokens_before:
            self.ineffective_count = 0
        else:
            self.ineffective_count += 1
        if self.ineffective_count < MAX_INEFFECTIVE_COMPACTIONS:
            return False
        self.paused_at = now
        self.paused_tokens = prompt_tokens
        return True

    def is_active(self, tokens: int, now: float) -> bool:
        """Return whether compactions pause for a prompt of this size."""
        if self.paused_at is None:
            return False
        if (
            tokens < PAUSE_GROWTH_FACTOR * self.paused_tokens
            and 0 <= now - self.paused_at < COMPACTION_PAUSE_SECONDS
        ):
            return True
        self.ineffective_count = 0
        self.paused_at = None
        self.paused_tokens = 0
        return False

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def load(cls, state: Any) -> CompactionPause:
        """Restore the result of `dump`; ignore values of any other shape."""
        values = state if isinstance(state, Mapping) else {}
        numbers = {
            name: values[name]
            for name in cls.__slots__
            if isinstance(values.get(name), int | float)
        }
        paused_at = numbers.pop("paused_at", None)
        counts = {name: int(value) for name, value in numbers.items()}
        return cls(**counts, paused_at=None if paused_at is None else float(paused_at))
