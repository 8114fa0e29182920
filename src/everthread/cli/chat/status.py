"""The line at the foot of the terminal: model, how full the window is, cache, cost, compactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from everthread.agent.events import Delegated
from everthread.cli.output import money, visible
from everthread.conversation.events import CompactionDone, Estimated, Event, LimitLearnt, UsageRecorded
from everthread.core.messages import counted
from everthread.store.models import CompactionRecord, UsageRecord


@dataclass(slots=True)
class Status:
    """The figures of a thread, kept up to date by its events."""

    model: str = ""
    tokens: int = 0
    window: int = 0
    prompt: int = 0
    cache_read: int = 0
    cost: Decimal = Decimal(0)
    unpriced: int = 0
    calls: int = 0
    compactions: int = 0

    def restart(self, usage: Sequence[UsageRecord], compactions: Sequence[CompactionRecord]) -> None:
        """The figures of a thread as it was stored."""
        self.prompt = self.cache_read = self.unpriced = self.calls = 0
        self.cost = Decimal(0)
        for record in usage:
            self.add(record)
        self.compactions = sum(record.reverted is None for record in compactions)

    def add(self, record: UsageRecord | UsageRecorded) -> None:
        """Take a call into the account."""
        self.calls += 1
        self.prompt += record.usage.prompt_tokens
        self.cache_read += record.usage.cache_read_tokens
        if record.cost is None:
            self.unpriced += 1
        else:
            self.cost += record.cost

    def heard(self, event: Event) -> None:
        match event:
            case Estimated():
                self.tokens, self.window = event.tokens, event.window
            case UsageRecorded():
                self.add(event)
            case Delegated(event=UsageRecorded() as inner):
                self.add(inner)
            case CompactionDone():
                self.compactions, self.tokens = event.count, event.tokens_after
            case LimitLearnt():
                self.window = event.window

    @property
    def price(self) -> str:
        """What it cost. What has no price is said to be unknown, never nothing."""
        if not self.unpriced:
            return money(self.cost)
        return "unknown" if self.unpriced == self.calls else f"{money(self.cost)} + unknown"

    def line(self) -> str:
        parts = [visible(self.model), f"{thousands(self.tokens)} of {thousands(self.window)} ({self._filled()})"]
        if self.prompt:
            parts.append(f"cache {self.cache_read / self.prompt:.0%}")
        if self.calls:
            parts.append(f"cost {self.price}" if self.unpriced else self.price)
        if self.compactions:
            parts.append(counted(self.compactions, "compaction"))
        return " · ".join(parts)

    def _filled(self) -> str:
        return f"{self.tokens / self.window:.0%}" if self.window else "-"


def thousands(tokens: int) -> str:
    """`950`, `12.3K`, `200K`, `1M`."""
    for unit, letter in ((1_000_000, "M"), (1_000, "K")):
        if tokens >= unit:
            return f"{tokens / unit:.1f}".rstrip("0").rstrip(".") + letter
    return str(tokens)
