"""The size of a thread's next prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from everthread.core.tokens import budget as defaults
from everthread.core.tokens.budget import Budget

MAX_DELAY_FACTOR = 1.7
"""A compaction soon after the last one is delayed until the prompt has at most this many times the threshold."""


@dataclass(frozen=True, slots=True)
class PromptSize:
    """The size of the next prompt, in tokens of the provider's count."""

    tokens: int
    fixed_tokens: int
    """System prompt and tools."""
    budget: Budget
    output_cap: int | None = None
    """The requested output cap."""
    is_mid_turn: bool = False
    """Whether the call hands tool results to the model, in the middle of a turn."""

    @property
    def hard_limit(self) -> int:
        """The size from which on a prompt leaves too few tokens for an answer, so that it must be compacted."""
        window = self.budget.window
        reserve = min(self.output_cap or defaults.DEFAULT_OUTPUT_RESERVE, window // 8)
        return max(self.budget.threshold, window - reserve - window // 50)

    @property
    def max_delayed_tokens(self) -> int:
        """The size up to which a compaction that is due may be delayed."""
        window = self.budget.window
        reserve = min(self.output_cap or defaults.DEFAULT_OUTPUT_RESERVE, window // 4)
        limit = min(
            int(MAX_DELAY_FACTOR * self.budget.threshold),
            self.budget.before_incoming_limit,
            window - reserve - window // 50,
        )
        return max(self.budget.threshold, limit)

    @property
    def is_full(self) -> bool:
        return self.tokens >= self.hard_limit

    @property
    def grown_to_threshold(self) -> PromptSize:
        """The size that the prompt will have when a compaction is due: at least the threshold, at the end of a turn."""
        tokens = max(self.tokens, self.budget.threshold)
        return replace(self, tokens=tokens, is_mid_turn=False)
