"""Choose the steps after a refusal for size, each with its reason.

For one request, try at most three compactions, each stronger than the previous one, and three smaller output caps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from everthread.compaction.compaction_result import CompactionLevel
from everthread.core.provider_errors.classification import ErrorVerdict, classify_error

ATTEMPT_LEVELS = (
    CompactionLevel.NORMAL,
    CompactionLevel.HALF_TAIL,
    CompactionLevel.LATEST_GROUP,
)
_NOTICE_BY_LEVEL = {
    CompactionLevel.NORMAL: "compacting the history",
    CompactionLevel.HALF_TAIL: "keeping half as many recent messages",
    CompactionLevel.LATEST_GROUP: "keeping only the latest messages",
}
MAX_CAP_ATTEMPTS = 3
MIN_OUTPUT_CAP = 256
"""Minimum tokens for an answer; if fewer are left, the prompt counts as too long."""
SIZE_REFUSALS = frozenset({"prompt_too_long", "max_tokens_too_large", "payload_too_large"})
"""Kinds of refusals that a smaller request may avoid."""
NEAR_LIMIT_SHARE = 0.85
"""From this share of the window on, a refusal without a reason counts as one for size."""


@dataclass(frozen=True, slots=True)
class ProviderRefusal:
    """A provider's refusal of a request."""

    status: int | None = None
    body: Any = None
    error: Exception | None = None
    """The exception that reported it, if there was one."""

    def classify(self, *, near_limit: bool) -> ErrorVerdict:
        """Classify the refusal. Near the limit, treat a refusal without a reason as one for size."""
        if self.error is None:
            return classify_error(status=self.status, body=self.body, near_limit=near_limit)
        verdict = classify_error(self.error, near_limit=near_limit)
        if verdict.kind == "other" and near_limit and self.status is not None:
            return classify_error(status=self.status, body=self.body, near_limit=True)
        return verdict


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """The next attempt after a refused request."""

    action: Literal["lower_cap", "shrink_payload", "compact", "give_up"]
    notice: str = ""
    """The step in words, for the user."""
    attempt: int = 1
    level: CompactionLevel = CompactionLevel.NORMAL


GIVE_UP = RecoveryStep("give_up")


@dataclass(slots=True)
class RecoveryAttempts:
    """The recovery attempts for one request."""

    compaction_count: int = 0
    effective_compaction_count: int = 0
    """Compactions that made the request smaller."""
    cap_attempt_count: int = 0
    cap: int | None = None
    """The output cap for the next attempt."""
    is_payload_shrunk: bool = False

    def next_step(
        self,
        verdict: ErrorVerdict,
        *,
        output_cap: int | None,
        enabled: bool,
        thinking_budget: int | None = None,
    ) -> RecoveryStep:
        """Return the next step. If it does not help, call this again to get the following step.

        `output_cap`: the cap of the request. `thinking_budget`: the client's own budget, which the cap must exceed.
        """
        if verdict.kind not in SIZE_REFUSALS:
            return GIVE_UP
        if verdict.kind == "max_tokens_too_large":
            self.cap_attempt_count += 1
            new_cap = compute_lower_cap(verdict, self.cap or output_cap, thinking_budget)
            if new_cap is not None and self.cap_attempt_count <= MAX_CAP_ATTEMPTS:
                self.cap = new_cap
                notice = f"asking for at most {new_cap:,} tokens of output"
                return RecoveryStep("lower_cap", notice, self.cap_attempt_count)
        if not enabled:
            return GIVE_UP
        if verdict.kind == "payload_too_large" and not self.is_payload_shrunk:
            self.is_payload_shrunk = True
            return RecoveryStep("shrink_payload", "dropping old images and storing big results")
        if self.compaction_count == len(ATTEMPT_LEVELS):
            return GIVE_UP
        level = ATTEMPT_LEVELS[self.compaction_count]
        self.compaction_count += 1
        return RecoveryStep("compact", _NOTICE_BY_LEVEL[level], self.compaction_count, level=level)

    @property
    def failure_text(self) -> str:
        """The attempts so far, as a sentence for a person."""
        if not self.effective_compaction_count:
            return "and nothing in it could be made smaller"
        plural = "s" if self.effective_compaction_count > 1 else ""
        return f"even after {self.effective_compaction_count} compaction{plural}"


def compute_lower_cap(
    verdict: ErrorVerdict, output_cap: int | None, thinking_budget: int | None = None
) -> int | None:
    """Return a smaller output cap to try after a refused one; None if too few tokens are left."""
    new_cap = verdict.available_output
    if new_cap is None and verdict.context_limit and verdict.input_tokens:
        new_cap = verdict.context_limit - verdict.input_tokens
    if new_cap is None:
        new_cap = output_cap // 2 if output_cap else 0
    return new_cap if new_cap >= max(MIN_OUTPUT_CAP, (thinking_budget or 0) + 1) else None
