"""When a rewrite pays: what it costs in lost cache reads, against what a smaller prompt saves in later calls.

What further calls will come is read from the pattern of the calls there were: how fast a thread grows, how often a
pause outlives the provider's cache. A thread that has lasted for so many calls is expected to last for about as many
more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal

from everthread.core.pricing.prices import Prices
from everthread.core.pricing.usage import CanonicalUsage

_FEWEST = 8
"""Further calls of a thread that has just begun."""
_MOST = 400
"""Nobody's future is known further than this."""
_FADING = 0.9
"""How much of what was seen before counts beside the newest call."""


@dataclass(frozen=True, slots=True)
class CallPattern:
    """What the calls of a thread showed. A *run* is a row of calls without a pause that outlives the cache."""

    calls: int = 0
    pauses: int = 0
    run: int = 0
    """Calls since the last such pause."""
    last: float | None = None
    """When the last call was answered, in seconds since 1970."""
    prompt: int = 0
    """Its prompt tokens."""
    growth: float = 0.0
    """Tokens that come with a call, the newest counting most."""
    read_share: float = 1.0
    """Of the tokens a warm cache could have held, how many were reported as read."""

    def after(self, usage: CanonicalUsage, at: float, *, ttl: float) -> CallPattern:
        """The pattern with one more call."""
        prompt = usage.prompt_tokens
        if not prompt:
            return self
        cold = self.is_cold(at, ttl=ttl)
        grown, share = self.growth, self.read_share
        if self.prompt and prompt > self.prompt:
            grown = _faded(self.growth, prompt - self.prompt) if self.growth else float(prompt - self.prompt)
        if not cold and prompt >= self.prompt > 0:
            share = _faded(self.read_share, min(1.0, usage.cache_read_tokens / self.prompt))
        paused = cold and self.calls > 0
        return CallPattern(
            self.calls + 1, self.pauses + paused, 1 if paused else self.run + 1, at, prompt, grown, share
        )

    def is_cold(self, at: float, *, ttl: float) -> bool:
        """Whether a cached prefix has been forgotten by then. Before the first call there is none."""
        return self.last is None or at - self.last >= ttl

    def rewritten(self) -> CallPattern:
        """After a compaction the next prompt is compared with nothing."""
        return replace(self, prompt=0)

    @property
    def further(self) -> int:
        """Calls that are still expected."""
        return min(max(self.calls, _FEWEST), _MOST)

    @property
    def until_pause(self) -> float | None:
        """Calls until the next pause that outlives the cache; None where none was ever seen."""
        if not self.pauses:
            return None
        return max(1.0, self.calls / self.pauses - self.run)

    def pauses_in(self, calls: float) -> float:
        """How many such pauses so many calls bring."""
        return calls * self.pauses / self.calls if self.calls else 0.0

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def load(cls, state: Any) -> CallPattern:
        """From what `dump` gave; what is not of that shape is as if it had never been seen."""
        known = state if isinstance(state, Mapping) else {}
        found: dict[str, Any] = {name: known[name] for name in _FIELDS if _is_figure(known.get(name))}
        return cls(**found)


_FIELDS = tuple(CallPattern.__dataclass_fields__)


def _faded(before: float, now: float) -> float:
    return _FADING * before + (1 - _FADING) * now


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


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
    rhythm: CallPattern
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
