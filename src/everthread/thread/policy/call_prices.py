"""The model and the summariser whose prices apply to a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from everthread.compaction.journal.journal import AUTHOR as JOURNAL
from everthread.compaction.summarizers.summarizer import Summarizer

PROVIDERS_WITHOUT_PRICES = frozenset({"auto", "custom", "local"})
"""Provider names that do not identify prices."""


@runtime_checkable
class PricedSummarizer(Protocol):
    """A summariser that can quote the price of a summary."""

    def quote_price(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for a summary of `budget` tokens of a prompt of `tokens`; None if a price is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class CallPrices:
    """The model and the summariser whose prices apply."""

    model: str
    provider: str
    uses_marks: bool
    """Whether the cache is written only at marks."""
    summarizer: Summarizer

    @property
    def is_journal(self) -> bool:
        """Whether the journal writes the summary, which takes milliseconds and is never prepared ahead."""
        return self.summarizer.name == JOURNAL

    @property
    def has_free_summary(self) -> bool:
        """Whether a summary costs nothing, because no model writes it."""
        return (
            not isinstance(self.summarizer, PricedSummarizer)
            or self.summarizer.quote_price(1_000, 100) == 0
        )
