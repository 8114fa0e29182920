"""Whether a compaction pays: its cost in dollars against the savings of later calls."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from everthread.core.costs.call_pattern import CallPattern
from everthread.core.costs.prices import Prices

MIN_THRESHOLD_SHARE = 0.5
"""Share of the threshold below which even a cold cache does not trigger a compaction."""
MAX_TURN_DELAY_FACTOR = 1.25
"""A compaction that is due during a turn waits for its end, until at most this many times the threshold."""


class CompactionTiming(StrEnum):
    """When to compact a prompt."""

    NOW = "now"
    LATER = "later"
    NOT_DUE = "not_due"


@dataclass(frozen=True, slots=True)
class Rates:
    """Dollars for a token."""

    input: float
    output: float
    read: float
    """Read from the cache; the same as `input` if nothing is cached."""
    write: float
    """Written to the cache; the same as `input` if writing is free."""

    @classmethod
    def from_prices(
        cls, prices: Prices | None, *, ttl: str = "5m", bills_cache_writes: bool = True
    ) -> Rates | None:
        """Return the rates of a model, or None if its prices are unknown.

        `bills_cache_writes`: whether cache writes have a price of their own.
        """
        if prices is None or prices.input is None or prices.output is None:
            return None
        write_price = prices.cache_write_1h if ttl == "1h" else prices.cache_write_5m
        if write_price is None or not bills_cache_writes:
            write_price = prices.input
        read_price = prices.input if prices.cache_read is None else prices.cache_read
        dollars = (prices.input, prices.output, read_price, write_price)
        return cls(*(float(value) / 1_000_000 for value in dollars))

    @property
    def has_cache_discount(self) -> bool:
        return self.read < self.input

    def miss_cost(self, tokens: int) -> float:
        """Return the extra dollars for a prompt that is not read from the cache."""
        return tokens * (self.write - self.read) if self.has_cache_discount else 0.0

    def at_read_share(self, share: float) -> Rates:
        """Return the rates for a cache from which only this share of the expected tokens is read."""
        return Rates(
            self.input,
            self.output,
            share * self.read + (1 - share) * self.input,
            self.write,
        )


@dataclass(frozen=True, slots=True)
class CompactionCase:
    """The figures for the decision whether to compact before a call."""

    tokens: int
    """Size of the prompt."""
    tokens_after: int
    """Size of the prompt after a compaction."""
    fixed_tokens: int
    """Size of the system prompt and tools, which a compaction does not change."""
    threshold: int
    limit: int
    """A compaction cannot be delayed from this size on."""
    summary_cost: float
    """Dollars for the summary, written by the cheapest summarizer available."""
    rates: Rates
    call_pattern: CallPattern
    cold_reason: str = ""
    """Why the cache does not hold this prompt, or an empty string if it may."""
    is_mid_turn: bool = False
    """Whether the call hands tool results to the model, in the middle of a turn."""

    @property
    def removed_tokens(self) -> int:
        """Tokens that a compaction would remove."""
        return self.tokens - self.tokens_after

    @property
    def turn_limit(self) -> int:
        """Up to this size a compaction waits for the end of the turn."""
        return min(self.limit, int(MAX_TURN_DELAY_FACTOR * self.threshold))


@dataclass(frozen=True, slots=True)
class CompactionDecision:
    """Compact now or later, with its figures and a line for people."""

    timing: CompactionTiming
    reason: str
    cost: Decimal = Decimal(0)
    savings: Decimal = Decimal(0)
    cheaper_calls: int = 0
    """Number of calls over which it saves."""

    def __str__(self) -> str:
        return f"{self.timing}: {self.reason}"


def decide_compaction(case: CompactionCase) -> CompactionDecision:
    """Decide whether to compact before this call.

    A cold cache lets a compaction come early, because the prompt is written anyway. A warm one lets it wait for the
    end of the turn, because nearly all pauses that outlive a cache are between turns.
    """
    if case.tokens >= case.limit:
        return CompactionDecision(
            CompactionTiming.NOW,
            f"{case.tokens:,} tokens are at the limit of {case.limit:,}; nothing can wait",
        )
    if case.removed_tokens <= 0:
        return CompactionDecision(CompactionTiming.LATER, "a compaction would take nothing out")
    rates = case.rates.at_read_share(case.call_pattern.read_share)
    is_cold = bool(case.cold_reason) and rates.has_cache_discount
    if case.tokens < case.threshold:
        if is_cold and case.tokens >= MIN_THRESHOLD_SHARE * case.threshold:
            return _decide_early(case, rates)
        return CompactionDecision(
            CompactionTiming.LATER,
            f"{case.tokens:,} tokens are below the threshold of {case.threshold:,}",
        )
    if is_cold:
        return _make_decision(
            CompactionTiming.NOW, case, rates, note=f"the cache is cold: {case.cold_reason}"
        )
    if case.is_mid_turn and rates.has_cache_discount and case.tokens < case.turn_limit:
        wait = f"it waits for the end of the turn or {case.turn_limit:,} tokens"
        return _make_decision(CompactionTiming.LATER, case, rates, note=wait)
    return _make_decision(CompactionTiming.NOW, case, rates)


def _decide_early(case: CompactionCase, rates: Rates) -> CompactionDecision:
    """Decide about an uncached prompt below the threshold: compact only if the summary pays."""
    decision = _make_decision(
        CompactionTiming.NOW, case, rates, note=f"the cache is cold: {case.cold_reason}"
    )
    if decision.savings > decision.cost:
        return decision
    return _make_decision(CompactionTiming.LATER, case, rates, note="not worth it yet")


def _make_decision(
    timing: CompactionTiming, case: CompactionCase, rates: Rates, *, note: str = ""
) -> CompactionDecision:
    """Return the decision with the dollars of a compaction and of the calls it makes cheaper."""
    write_surcharge = rates.write - rates.read if rates.has_cache_discount else 0.0
    cache_loss = (
        0.0 if case.cold_reason else max(0, case.tokens_after - case.fixed_tokens) * write_surcharge
    )
    saved_writes = case.removed_tokens * write_surcharge if case.cold_reason else 0.0
    cost = case.summary_cost + cache_loss
    calls = _count_cheaper_calls(case)
    savings = calls * case.removed_tokens * rates.read + saved_writes
    reason = (
        f"it costs ${cost:.4f} (summary ${case.summary_cost:.4f}, cache ${cache_loss:.4f}) and saves ${savings:.4f}"
        f" in about {calls} calls"
    )
    return CompactionDecision(
        timing,
        f"{reason}; {note}" if note else reason,
        cost=_to_dollars(cost),
        savings=_to_dollars(savings),
        cheaper_calls=calls,
    )


def _count_cheaper_calls(case: CompactionCase) -> int:
    """Return how many calls are expected until the prompt would have to be compacted anyway."""
    limit = case.threshold if case.tokens < case.threshold else case.limit
    calls_until_limit = (limit - case.tokens) / max(case.call_pattern.growth, 1.0)
    return max(1, min(case.call_pattern.expected_calls, int(calls_until_limit)))


def _to_dollars(amount: float) -> Decimal:
    return Decimal(f"{amount:.6f}")
