"""The model and the summariser whose prices apply to a call."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.compaction.summarizers.summarizer import Summarizer, may_call_model
from everthread.compaction.summarizers.summary_prices import PricedSummarizer

PROVIDERS_WITHOUT_PRICES = frozenset({"auto", "custom", "local"})
"""Provider names that do not identify prices."""


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
        return not may_call_model(self.summarizer)

    @property
    def has_free_summary(self) -> bool:
        """Whether a summary costs nothing, because no model writes it."""
        return self.quote_summary(1_000, 100) == 0

    def quote_summary(self, prompt_tokens: int, summary_tokens: int) -> float | None:
        """Return the dollars for a summary, or None if a price is unknown. It is free if the summariser quotes none."""
        if not isinstance(self.summarizer, PricedSummarizer):
            return 0.0
        return self.summarizer.quote_price(prompt_tokens, summary_tokens)
