"""Whether a compaction pays: its cost in dollars against the savings of later calls."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from everthread.core.call_pattern import CallPattern
from everthread.core.prices import Prices

MIN_THRESHOLD_SHARE = 0.5
"""Share of the threshold below which even a cold cache does not trigger a compaction."""

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
    """Decide whether to compact before this call."""
    if case.tokens >= case.limit:
        return Decision(
            "now",
            f"{case.tokens:,} tokens are at the limit of {case.limit:,}; nothing can wait",
        )
    rates = case.rates.at_read_share(case.rhythm.read_share)
    cold = bool(case.cold) and rates.caches
    gain = case.tokens - case.after
    early = case.tokens < case.threshold
    if gain <= 0:
        return Decision("later", "a compaction would take nothing out")
    if early and (not cold or case.tokens < MIN_THRESHOLD_SHARE * case.threshold):
        return Decision(
            "later",
            f"{case.tokens:,} tokens are below the threshold of {case.threshold:,}",
        )
    # It pays over the further calls, until the prompt would have to be rewritten anyway.
    until = ((case.threshold if early else case.limit) - case.tokens) / max(
        case.rhythm.growth, 1.0
    )
    calls = max(1, min(case.rhythm.further, int(until)))
    each = gain * rates.read
    again = (
        case.rhythm.pauses_in(calls) * gain * (rates.write - rates.read)
        if rates.caches
        else 0.0
    )
    saves = calls * each + again + (gain * (rates.write - rates.read) if cold else 0.0)
    lost = (
        0.0
        if cold or not rates.caches
        else max(0, case.after - case.fixed) * (rates.write - rates.read)
    )
    cost = case.summary + lost
    figures = _dollars(cost), _dollars(saves), calls
    balance = f"it costs ${cost:.4f} (summary ${case.summary:.4f}, cache ${lost:.4f}) and saves ${saves:.4f}"
    balance += f" in about {calls} calls"
    if saves <= cost:
        return Decision("later", f"{balance}: not worth it yet", *figures)
    if cold:
        return Decision("now", f"{balance}; the cache is cold: {case.cold}", *figures)
    waiting = case.rhythm.until_pause
    if waiting is not None and waiting * each < lost:
        balance += f", but a pause is expected within {waiting:.0f} calls: cheaper then"
        return Decision("later", balance, *figures)
    return Decision("now", balance, *figures)


def _dollars(amount: float) -> Decimal:
    return Decimal(f"{amount:.6f}")
