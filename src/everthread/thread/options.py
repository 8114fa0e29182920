"""The settings of a thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from everthread.core.tokens.budget import Budget
from everthread.core.tool_outputs import OutputLimits
from everthread.thread.policy.context_options import ContextOptions

RecallScope = Literal["thread", "tenant"]
MAX_RECALL_TOKENS = 800
"""Tokens of about four excerpts; they are never cached, so each call with excerpts pays the full price."""
MIN_CLOSENESS = 0.5
MAX_EXCERPTS = 4
EXCERPT_CHARS = 600
TOOLS_SHARE = 0.25
"""Share of the threshold that tool schemas may take before unused ones are left out."""


@dataclass(frozen=True, slots=True)
class RecallOptions:
    """Settings of the excerpts that a call gets. The field names are the keys of `config.yaml`."""

    enabled: bool = True
    scope: RecallScope = "thread"
    max_tokens: int = MAX_RECALL_TOKENS
    closeness: float = MIN_CLOSENESS
    """Minimum share of the question's words, weighted by rarity, that a passage must contain."""


@dataclass(frozen=True, slots=True)
class SessionOptions(ContextOptions):
    """Settings of a thread, beside those of its context. The field names are the keys of `config.yaml`."""

    tools_share: float = TOOLS_SHARE
    """Share of the threshold for tools; above it, tools that the thread does not use are left out."""
    per_tool: Mapping[str, int | None] = field(default_factory=dict)
    recall: RecallOptions = field(default_factory=RecallOptions)

    def output_limits(self, budget: Budget) -> OutputLimits:
        max_chars = 2 * budget.threshold
        per_tool = {
            tool: max_chars if limit is None else limit for tool, limit in self.per_tool.items()
        }
        return OutputLimits(
            budget.result_chars,
            budget.max_turn_result_chars,
            budget.preview_chars,
            max_chars,
            per_tool,
        )
