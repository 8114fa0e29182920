"""The status line of a chat: model, context, cache and cost of the thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from everthread.agent.turn_events import Delegated
from everthread.cli.formats import format_cost
from everthread.cli.output import escape_controls
from everthread.core.text import count_noun
from everthread.store.records import CompactionRecord
from everthread.store.usage_records import (
    UsageRecord,
    UsageRow,
    make_usage_row,
    sum_calls,
    sum_usage,
)
from everthread.thread.events import CompactionDone, Estimated, Event, LimitLearnt, UsageRecorded


@dataclass(slots=True)
class ChatStatus:
    """The figures of a thread, updated by its events."""

    model: str = ""
    tokens: int = 0
    window: int = 0
    compaction_count: int = 0
    is_free: bool = False
    """Whether the model runs on this machine and has no price."""
    usage: UsageRow = field(default_factory=lambda: UsageRow("all"))

    def load(self, usage: Sequence[UsageRecord], compactions: Sequence[CompactionRecord]) -> None:
        """Take the figures of a stored thread."""
        self.usage = sum_calls("all", usage)
        self.compaction_count = sum(record.reverted_at is None for record in compactions)

    def update(self, event: Event) -> None:
        match event:
            case Estimated():
                self.tokens = event.tokens
                self.window = event.window
            case (UsageRecorded() as call) | Delegated(event=UsageRecorded() as call):
                self.usage = sum_usage("all", [self.usage, make_usage_row(call)])  # type: ignore[arg-type]  # the same fields
            case CompactionDone():
                self.compaction_count = event.count
                self.tokens = event.tokens_after
            case LimitLearnt():
                self.window = event.window

    def as_line(self) -> str:
        share_text = f"{self.tokens / self.window:.0%}" if self.window else "-"
        parts = [
            escape_controls(self.model),
            f"{format_thousands(self.tokens)} of {format_thousands(self.window)} ({share_text})",
        ]
        if self.usage.prompt:
            parts.append(f"cache {self.usage.cache_read / self.usage.prompt:.0%}")
        if self.usage.calls and not self.is_free:
            price = format_cost(self.usage)
            parts.append(f"cost {price}" if self.usage.unpriced_calls else price)
        if self.compaction_count:
            parts.append(count_noun(self.compaction_count, "compaction"))
        return " · ".join(parts)


def format_thousands(tokens: int) -> str:
    """Format a number of tokens: `950`, `12.3K`, `200K`, `1M`."""
    for unit, letter in ((1_000_000, "M"), (1_000, "K")):
        if tokens >= unit:
            return f"{tokens / unit:.1f}".rstrip("0").rstrip(".") + letter
    return str(tokens)
