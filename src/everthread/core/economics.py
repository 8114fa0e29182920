"""What a compaction costs and saves in dollars, and whether now is the moment for it.

It costs the summary, and the cache: what stays after the rewritten part was read at a tenth of the price and has to be
written again. It saves the reading of what was taken out, at every further call, and its writing after every pause
that outlives the cache. At such a pause the whole prompt has to be written anyway: a rewrite then costs the summary
alone. So between the threshold and 85 % of the window a compaction may wait, and when the cache is cold it may come
earlier; never later than that, and never below half the threshold, since what it takes out is worth something too.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from everthread.core.cost import Prices
from everthread.core.rhythm import Rhythm

EARLIEST = 0.5
"""Share of the threshold below which even a cold cache is no reason."""
_MILLION = 1_000_000

Action = Literal["now", "later"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Dollars for a token."""

    input: float
    output: float
    read: float
    """Read from the cache; as `input` where nothing is cached."""
    write: float
    """Written to the cache, or read by a provider that keeps it by itself."""

    @classmethod
    def of(cls, prices: Prices | None, *, ttl: str = "5m", marked: bool = True) -> Rates | None:
        """The rates of a model; None where its prices are unknown. `marked`: the cache is written where asked for,
        at a price of its own."""
        if prices is None or prices.input is None or prices.output is None:
            return None
        written = prices.cache_write_1h if ttl == "1h" else prices.cache_write_5m
        writing = prices.input if written is None or not marked else written
        reading = prices.input if prices.cache_read is None else prices.cache_read
        dollars = (prices.input, prices.output, reading, writing)
        return cls(*(float(value) / _MILLION for value in dollars))

    @property
    def caches(self) -> bool:
        return self.read < self.input

    def miss(self, tokens: int) -> float:
        """What a prompt of this size costs more than one that is read from the cache."""
        return tokens * (self.write - self.read) if self.caches else 0.0

    def seen(self, share: float) -> Rates:
        """The rates where only this share of what could be read from the cache is."""
        return Rates(self.input, self.output, share * self.read + (1 - share) * self.input, self.write)


@dataclass(frozen=True, slots=True)
class Case:
    """What is known when a call is about to be made."""

    tokens: int
    """The prompt as it is."""
    after: int
    """The prompt as a compaction would leave it."""
    kept: int
    """What of that a rewrite does not touch: the system prompt and the tools, at its beginning."""
    threshold: int
    limit: int
    """85 % of the window, or less where the answer needs the room: here nothing can wait."""
    summary: float
    """Dollars for the summary, by the cheapest way there is now."""
    rates: Rates
    rhythm: Rhythm
    cold: str = ""
    """Why the cache does not hold this prompt; empty where it may."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Compact now, or later; with the figures it was made by, and a line for a person."""

    action: Action
    why: str
    cost: Decimal = Decimal(0)
    saves: Decimal = Decimal(0)
    calls: int = 0
    """Further calls the saving is reckoned over."""

    def __str__(self) -> str:
        return f"{self.action}: {self.why}"


def weigh(case: Case) -> Decision:
    """Whether to compact before this call."""
    if case.tokens >= case.limit:
        return Decision("now", f"{case.tokens:,} tokens are at the limit of {case.limit:,}; nothing can wait")
    rates = case.rates.seen(case.rhythm.read_share)
    cold = bool(case.cold) and rates.caches
    gain = case.tokens - case.after
    early = case.tokens < case.threshold
    if gain <= 0:
        return Decision("later", "a compaction would take nothing out")
    if early and (not cold or case.tokens < EARLIEST * case.threshold):
        return Decision("later", f"{case.tokens:,} tokens are below the threshold of {case.threshold:,}")
    end = case.threshold if early else case.limit
    calls = _calls(case, end)
    each = gain * rates.read
    again = case.rhythm.pauses_in(calls) * gain * (rates.write - rates.read) if rates.caches else 0.0
    saves = calls * each + again + (gain * (rates.write - rates.read) if cold else 0.0)
    lost = 0.0 if cold or not rates.caches else max(0, case.after - case.kept) * (rates.write - rates.read)
    cost = case.summary + lost
    figures = _dollars(cost), _dollars(saves), calls
    told = f"it costs ${cost:.4f} (summary ${case.summary:.4f}, cache ${lost:.4f}) and saves ${saves:.4f}"
    told += f" in about {calls} calls"
    if saves <= cost:
        return Decision("later", f"{told}: not worth it yet", *figures)
    if cold:
        return Decision("now", f"{told}; the cache is cold: {case.cold}", *figures)
    waiting = case.rhythm.until_pause
    if waiting is not None and waiting * each < lost:
        return Decision("later", f"{told}, but a pause is expected within {waiting:.0f} calls: cheaper then", *figures)
    return Decision("now", told, *figures)


def _calls(case: Case, end: int) -> int:
    """Over how many further calls a rewrite pays: until the prompt would have to be rewritten anyway."""
    until = (end - case.tokens) / max(case.rhythm.growth, 1.0)
    return max(1, min(case.rhythm.further, int(until)))


def _dollars(amount: float) -> Decimal:
    return Decimal(f"{amount:.6f}")
