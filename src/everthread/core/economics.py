"""Whether a compaction pays: its cost in dollars against the savings of later calls."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from everthread.core.call_pattern import CallPattern
from everthread.core.prices import Prices

MIN_THRESHOLD_SHARE = 0.5
"""Share of the threshold below which even a cold cache does not trigger a compaction."""
TURN_DELAY = 1.25
"""A compaction that is due during a turn waits for its end, until at most this many times the threshold."""

Action = Literal["now", "later"]


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
    def of(
        cls, prices: Prices | None, *, ttl: str = "5m", marked: bool = True
    ) -> Rates | None:
        """Return the rates of a model; None if its prices are unknown.

        `marked`: cache writes have a price of their own.
        """
        if prices is None or prices.input is None or prices.output is None:
            return None
        written = prices.cache_write_1h if ttl == "1h" else prices.cache_write_5m
        writing = prices.input if written is None or not marked else written
        reading = prices.input if prices.cache_read is None else prices.cache_read
        dollars = (prices.input, prices.output, reading, writing)
        return cls(*(float(value) / 1_000_000 for value in dollars))

    @property
    def caches(self) -> bool:
        return self.read < self.input

    def miss(self, tokens: int) -> float:
        """Return the extra dollars for a prompt that is not read from the cache."""
        return tokens * (self.write - self.read) if self.caches else 0.0

    def at_read_share(self, share: float) -> Rates:
        """Return the rates if only this share of the cached tokens is read."""
        return Rates(
            self.input,
            self.output,
            share * self.read + (1 - share) * self.input,
            self.write,
        )


@dataclass(frozen=True, slots=True)
class CompactionCase:
    """The figures on which a decision before a call is based."""

    tokens: int
    """Size of the prompt."""
    after: int
    """Size of the prompt after a compaction."""
    fixed: int
    """Size of the system prompt and tools, which a compaction does not change."""
    threshold: int
    limit: int
    """A compaction cannot be delayed from this size on."""
    summary: float
    """Dollars for the summary, written by the cheapest summarizer available."""
    rates: Rates
    rhythm: CallPattern
    cold: str = ""
    """Why the cache does not hold this prompt; empty if it may."""
    is_mid_turn: bool = False
    """Whether the call hands tool results to the model, in the middle of a turn."""

    @property
    def gain(self) -> int:
        """Tokens that a compaction takes out."""
        return self.tokens - self.after

    @property
    def turn_limit(self) -> int:
        """Up to this size a compaction waits for the end of the turn."""
        return min(self.limit, int(TURN_DELAY * self.threshold))


@dataclass(frozen=True, slots=True)
class Decision:
    """Compact now or later, with its figures and a line for people."""

    action: Action
    why: str
    cost: Decimal = Decimal(0)
    saves: Decimal = Decimal(0)
    calls: int = 0
    """Number of calls over which it saves."""

    def __str__(self) -> str:
        return f"{self.action}: {self.why}"


def weigh(case: CompactionCase) -> Decision:
    """Decide whether to compact before this call.

    A cold cache lets a compaction come early, because the prompt is written anyway. A warm one lets it wait for the
    end of the turn, because nearly all pauses that outlive a cache are between turns.
    """
    if case.tokens >= case.limit:
        return Decision(
            "now",
            f"{case.tokens:,} tokens are at the limit of {case.limit:,}; nothing can wait",
        )
    if case.gain <= 0:
        return Decision("later", "a compaction would take nothing out")
    rates = case.rates.at_read_share(case.rhythm.read_share)
    is_cold = bool(case.cold) and rates.caches
    if case.tokens < case.threshold:
        if is_cold and case.tokens >= MIN_THRESHOLD_SHARE * case.threshold:
            return _weigh_early(case, rates)
        return Decision(
            "later",
            f"{case.tokens:,} tokens are below the threshold of {case.threshold:,}",
        )
    if is_cold:
        return _decide("now", case, rates, because=f"the cache is cold: {case.cold}")
    if case.is_mid_turn and rates.caches and case.tokens < case.turn_limit:
        wait = f"it waits for the end of the turn or {case.turn_limit:,} tokens"
        return _decide("later", case, rates, because=wait)
    return _decide("now", case, rates)


def _weigh_early(case: CompactionCase, rates: Rates) -> Decision:
    """Decide about a prompt below the threshold that the cache does not hold: its summary must pay."""
    decision = _decide("now", case, rates, because=f"the cache is cold: {case.cold}")
    if decision.saves > decision.cost:
        return decision
    return _decide("later", case, rates, because="not worth it yet")


def _decide(
    action: Action, case: CompactionCase, rates: Rates, *, because: str = ""
) -> Decision:
    """Return the decision with the dollars of a compaction and of the calls it makes cheaper."""
    rewritten = rates.write - rates.read if rates.caches else 0.0
    lost = 0.0 if case.cold else max(0, case.after - case.fixed) * rewritten
    unwritten = case.gain * rewritten if case.cold else 0.0
    cost = case.summary + lost
    calls = _count_cheaper_calls(case)
    saves = calls * case.gain * rates.read + unwritten
    why = (
        f"it costs ${cost:.4f} (summary ${case.summary:.4f}, cache ${lost:.4f}) and saves ${saves:.4f}"
        f" in about {calls} calls"
    )
    return Decision(
        action,
        f"{why}; {because}" if because else why,
        cost=_dollars(cost),
        saves=_dollars(saves),
        calls=calls,
    )


def _count_cheaper_calls(case: CompactionCase) -> int:
    """Return how many calls are expected until the prompt would have to be compacted anyway."""
    end = case.threshold if case.tokens < case.threshold else case.limit
    until = (end - case.tokens) / max(case.rhythm.growth, 1.0)
    return max(1, min(case.rhythm.further, int(until)))


def _dollars(amount: float) -> Decimal:
    return Decimal(f"{amount:.6f}")
