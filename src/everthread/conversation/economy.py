"""Whether a compaction pays now: the conversation's figures put to `core.economics`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from everthread.core.caching import CACHE_SECONDS
from everthread.core.cost import prices_for
from everthread.core.economics import Case, Decision, Rates, weigh
from everthread.core.usage import CanonicalUsage

if TYPE_CHECKING:
    from everthread.conversation.state import ConversationState

UNNAMED = frozenset({"auto", "custom", "local"})
"""Providers whose name says nothing about prices."""


@runtime_checkable
class Quoting(Protocol):
    """A summariser that knows what a summary would cost."""

    def quote(self, tokens: int, budget: int) -> float | None:
        """Dollars for a summary of `budget` tokens of a prompt of `tokens`; None where a price is unknown."""
        ...


class Economy:
    """What one conversation's calls cost, and what a compaction would change."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self.decision: Decision | None = None
        """The last one; None where prices are unknown, or nobody asked."""
        self.changed = ""
        """What made the next request another than the cache holds, besides the time."""

    @property
    def ttl(self) -> float:
        return CACHE_SECONDS[self._live.setup.options.cache_ttl]

    @property
    def cold(self) -> str:
        """Why the provider's cache does not hold the next prompt; empty where it may."""
        live = self._live
        if self.changed:
            return self.changed
        now, last = live.setup.wall(), live.rhythm.last
        if last is None or not live.rhythm.is_cold(now, ttl=self.ttl):
            return ""
        return f"{now - last:,.0f} s passed since the last call, and it is kept for {self.ttl:,.0f} s"

    def heard(self, usage: CanonicalUsage) -> None:
        """A call was answered."""
        live = self._live
        live.rhythm = live.rhythm.after(usage, live.setup.wall(), ttl=self.ttl)
        self.changed = ""

    def weigh(self, tokens: int) -> Decision | None:
        """The decision for a prompt of this size; None where economics are off or prices unknown."""
        self.decision = None
        rates = self._rates()
        if rates is not None:
            self.decision = weigh(self._case(tokens, rates))
        return self.decision

    def pays_when_cold(self, tokens: int) -> bool:
        """Whether a compaction would pay at a pause that outlives the cache, if every second one ends for good."""
        rates = self._rates()
        if rates is None or not rates.caches:
            return False
        decision = weigh(replace(self._case(tokens, rates), cold="the pause"))
        return decision.action == "now" and decision.saves > 2 * decision.cost

    def price_of_miss(self, tokens: int) -> float | None:
        """Dollars lost if the provider's cache does not hold the next prompt; None where prices are unknown."""
        rates = self._rates()
        return None if rates is None else rates.seen(self._live.rhythm.read_share).miss(tokens)

    @property
    def free_summary(self) -> bool:
        """Whether a summary costs nothing: no model has to write it."""
        summarizer = self._live.summarizer
        return not isinstance(summarizer, Quoting) or summarizer.quote(1_000, 100) == 0

    def _rates(self) -> Rates | None:
        live = self._live
        if not live.setup.options.economics:
            return None
        route = live.route
        prices = prices_for(
            route.name,
            at=datetime.fromtimestamp(live.setup.wall(), UTC),
            provider=None if route.provider in UNNAMED else route.provider,
            prompt_tokens=live.tokens,
        )
        return Rates.of(prices, ttl=live.setup.options.cache_ttl, marked=route.caches_by_marks)

    def _case(self, tokens: int, rates: Rates) -> Case:
        live, budget = self._live, self._live.budget
        size = budget.summary(max(0, tokens - live.fixed - budget.tail))
        after = min(tokens, max(live.fixed + budget.tail + size, min(live.after, budget.compacted_limit)))
        quote = live.summarizer.quote(tokens, size) if isinstance(live.summarizer, Quoting) else 0.0
        return Case(
            tokens=tokens,
            after=after,
            kept=live.fixed,
            threshold=budget.threshold,
            limit=max(budget.threshold, min(budget.hygiene, live.hard_limit)),
            summary=quote or 0.0,
            rates=rates,
            rhythm=live.rhythm,
            cold=self.cold,
        )
