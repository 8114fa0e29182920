"""What a summary would cost, so that the cheapest way to one can be taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol, runtime_checkable

from everthread.compaction.summary import SummaryRequest
from everthread.core.pricing.economics import Rates
from everthread.core.pricing.prices import prices_for

Reading = Literal["input", "read", "write"]
"""How a prompt is charged: plainly, from the cache, or into it."""


@dataclass(frozen=True, slots=True)
class Price:
    """What calls to a model cost. `provider` is who serves it, where that is known."""

    model: str
    provider: str | None = None
    ttl: str = "5m"
    wall: Callable[[], float] = time.time

    def __call__(self, given: int, written: int, *, reading: Reading = "input") -> float | None:
        """Dollars for a prompt of `given` tokens and an answer of `written`; None where a price is unknown."""
        at = datetime.fromtimestamp(self.wall(), UTC)
        rates = Rates.of(prices_for(self.model, at=at, provider=self.provider, prompt_tokens=given), ttl=self.ttl)
        return None if rates is None else given * float(getattr(rates, reading)) + written * rates.output


@runtime_checkable
class Quoted(Protocol):
    """A summariser that can tell what it would cost."""

    def quote(self, tokens: int, budget: int) -> float | None:
        """Of a prompt of `tokens`, for a summary of `budget`."""
        ...

    def quote_for(self, request: SummaryRequest) -> float | None:
        """Of this very request."""
        ...
