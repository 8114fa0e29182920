"""The price of a summary: of one call to a model, and the interfaces of summarisers that quote prices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol, runtime_checkable

from everthread.compaction.summarizers.summarizer import SummaryRequest
from everthread.core.costs.compaction_economics import Rates
from everthread.core.costs.prices import prices_for

PromptRate = Literal["input", "read", "write"]
"""The rate that applies to a prompt: uncached, read from the cache, or written to it."""


@dataclass(frozen=True, slots=True)
class CallPrice:
    """The price of calls to a model."""

    model: str
    ttl: str = "5m"

    def __call__(
        self, prompt_tokens: int, answer_tokens: int, *, rate: PromptRate = "input"
    ) -> float | None:
        """Return the dollars for a prompt and an answer of these tokens, or None if a price is unknown."""
        moment = datetime.now(UTC)
        rates = Rates.from_prices(
            prices_for(
                self.model,
                time=moment,
                prompt_tokens=prompt_tokens,
            ),
            ttl=self.ttl,
        )
        if rates is None:
            return None
        return prompt_tokens * float(getattr(rates, rate)) + answer_tokens * rates.output


@runtime_checkable
class PricedSummarizer(Protocol):
    """A summariser that can quote the price of a summary."""

    def quote_price(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for a prompt of `tokens` and a summary of `budget` tokens, or None if unknown."""
        ...


@runtime_checkable
class PricedRoute(PricedSummarizer, Protocol):
    """A summariser that can also quote the price of one request."""

    def quote_request_price(self, request: SummaryRequest) -> float | None:
        """Return the dollars for this request, or None if unknown."""
        ...
