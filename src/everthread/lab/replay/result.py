"""The results of a replay, as values and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any

from everthread.lab.provider.cache import CacheUse

Cause = str
"""Why a call read less from the cache than the previous call had left there."""
FIRST_CAUSE = "first call"
EXPIRED_CAUSE = "cache expired"
COMPACTION_CAUSE = "compaction"
TOOLS_CAUSE = "tools changed"
MODEL_CAUSE = "model changed"
SYSTEM_CAUSE = "system prompt changed"
SHORT_PROMPT_CAUSE = "prompt too short to be cached"
TRUNCATION_CAUSE = "oldest messages dropped"
CHANGED_CAUSE = "prompt changed"


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """One call as the provider would have answered it."""

    sent_at: float
    """Seconds since the first call."""
    message_count: int
    use: CacheUse
    output_tokens: int
    input_cost: Decimal | None
    """Dollars for the prompt, or None if a price is unknown."""
    output_cost: Decimal | None
    miss: Cause = ""
    missed_tokens: int = 0
    """Tokens that the previous call had left in the cache and this one did not read."""

    @property
    def cost(self) -> Decimal | None:
        if self.input_cost is None or self.output_cost is None:
            return None
        return self.input_cost + self.output_cost


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the prediction without compaction agrees with the record, up to the client's first own compaction."""

    calls: int
    prompt_predicted: int
    prompt_recorded: int
    input_predicted: float | None
    """Dollars for the prompts, or None if a price is unknown."""
    input_recorded: float | None

    @property
    def prompt_error(self) -> float:
        """Return the share by which the predicted prompt tokens are too many or, if negative, too few."""
        return self.prompt_predicted / self.prompt_recorded - 1

    @property
    def input_error(self) -> float | None:
        """Return the share by which the predicted dollars of the prompts are too many or, if negative, too few."""
        if self.input_predicted is None or not self.input_recorded:
            return None
        return self.input_predicted / self.input_recorded - 1


@dataclass(frozen=True, slots=True)
class PlayedCompaction:
    """One compaction, before the call with this index."""

    call: int
    reason: str
    tokens_before: int
    tokens_after: int
    messages_before: int
    messages_after: int
    author: str
    seconds: float
    summary: str = ""


class FactLocation(IntEnum):
    """Where a fact is at the end of the conversation."""

    IN_CONTEXT = 0
    FOUND_BY_SEARCH = 1
    LOST = 2


@dataclass(frozen=True, slots=True)
class FactCounts:
    """The facts of a conversation, each with its location at the end."""

    facts: Sequence[tuple[str, str, FactLocation]] = ()
    """The kind, the words and the location of each fact."""

    @property
    def kinds(self) -> dict[str, tuple[int, int, int]]:
        """Return how many facts of each kind are retained, recoverable and lost."""
        location_counts_by_kind: dict[str, Counter[FactLocation]] = {}
        for kind, _, location in self.facts:
            location_counts_by_kind.setdefault(kind, Counter())[location] += 1
        return {
            kind: (
                counts[FactLocation.IN_CONTEXT],
                counts[FactLocation.FOUND_BY_SEARCH],
                counts[FactLocation.LOST],
            )
            for kind, counts in location_counts_by_kind.items()
        }

    @property
    def retained(self) -> int:
        return self._count(FactLocation.IN_CONTEXT)

    @property
    def recoverable(self) -> int:
        return self._count(FactLocation.FOUND_BY_SEARCH)

    @property
    def lost(self) -> int:
        return self._count(FactLocation.LOST)

    def _count(self, location: FactLocation) -> int:
        return sum(fact_location == location for _, _, fact_location in self.facts)

    @property
    def total(self) -> int:
        return len(self.facts)


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """The calls of a conversation under one strategy, which is Everthread or a baseline."""

    name: str
    label: str
    calls: Sequence[PlayedCall]
    refused_call: int | None = None
    """Index of the call that the provider refused for its size, which ended the conversation."""
    facts: FactCounts | None = None

    @property
    def peak(self) -> int:
        return max((call.use.prompt for call in self.calls), default=0)

    @property
    def mean_prompt_tokens(self) -> float:
        return sum(call.use.prompt for call in self.calls) / len(self.calls) if self.calls else 0.0

    @property
    def read(self) -> int:
        return sum(call.use.read for call in self.calls)

    @property
    def written(self) -> int:
        return sum(call.use.write for call in self.calls)

    @property
    def uncached(self) -> int:
        return sum(call.use.input for call in self.calls)

    @property
    def misses(self) -> Counter[Cause]:
        return Counter(call.miss for call in self.calls if call.miss)

    @property
    def input_cost(self) -> Decimal | None:
        return sum_costs(call.input_cost for call in self.calls)

    @property
    def cost(self) -> Decimal | None:
        return sum_costs(call.cost for call in self.calls)

    def cost_of_first(self, call_count: int) -> Decimal | None:
        """Return the dollars of the first calls, to compare with a strategy that ended earlier."""
        return sum_costs(call.cost for call in self.calls[:call_count])


@dataclass(frozen=True, slots=True)
class LogFigures:
    """The client of a recorded session, its times, and the compactions that the client made."""

    client: str
    """The program that wrote the log, in words: `Claude Code`."""
    began: float | None
    """Seconds since 1970, or None if the log has no times."""
    ended: float | None
    own_compactions: int
    """Compactions that the client made itself."""
    has_readable_summaries: bool = True
    """Whether the summary of any of them can be read."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A replayed conversation; `strategies[0]` is Everthread."""

    source: str
    model: str
    window: int
    threshold: int
    times_from: str
    """The source of the times: `given`, `log`, `usage` or `assumed`."""
    strategies: Sequence[StrategyResult]
    compactions: Sequence[PlayedCompaction]
    engine: str = "compressor"
    notes: Sequence[str] = ()
    recorded_cost: float | None = None
    """The dollars in the log, or None if it does not state those of every call."""
    seconds: float = 0.0
    log: LogFigures | None = None
    """Facts about the recorded session, or None if it was not a log of a known client."""
    agreement: Agreement | None = None
    """None if the log states no usage."""

    @property
    def everthread(self) -> StrategyResult:
        return self.strategies[0]

    def strategy(self, name: str) -> StrategyResult:
        return next(result for result in self.strategies if result.name == name)

    def has_strategy(self, name: str) -> bool:
        return any(result.name == name for result in self.strategies)

    def count_shared_calls(self, other: StrategyResult) -> int:
        """Return the number of calls that Everthread and another strategy both answered."""
        return min(len(other.calls), len(self.everthread.calls))

    def share_saved_against(self, other: StrategyResult) -> float | None:
        """Return the share of the dollars saved over the shared calls, or None if a price is unknown."""
        count = self.count_shared_calls(other)
        our_cost = self.everthread.cost_of_first(count)
        other_cost = other.cost_of_first(count)
        return None if our_cost is None or not other_cost else float(1 - our_cost / other_cost)

    def share_saved_by_caching(self) -> float | None:
        """Return the share of the input's dollars that the cache alone saves, without compaction."""
        with_cache = self.strategy("cached").input_cost
        without_cache = self.strategy("uncached").input_cost
        if with_cache is None or not without_cache:
            return None
        return float(1 - with_cache / without_cache)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "source": self.source,
            "model": self.model,
            "window": self.window,
            "threshold": self.threshold,
            "engine": self.engine,
            "recorded_cost": self.recorded_cost,
            "times": self.times_from,
            "notes": list(self.notes),
            "caching_saves_of_input": _round_share(self.share_saved_by_caching()),
            "seconds": round(self.seconds, 3),
            "log": None if self.log is None else asdict(self.log),
            "agreement": None if self.agreement is None else _agreement_as_dict(self.agreement),
            "compactions": [asdict(compaction) for compaction in self.compactions],
            "ways": [_strategy_as_dict(self, strategy) for strategy in self.strategies],
        }


def _agreement_as_dict(agreement: Agreement) -> dict[str, Any]:
    return {
        **asdict(agreement),
        "prompt_error": _round_share(agreement.prompt_error),
        "input_error": _round_share(agreement.input_error),
    }


def sum_costs(costs: Iterable[Decimal | None]) -> Decimal | None:
    """Return the sum of the costs, or None if any of them is unknown."""
    amount = Decimal(0)
    for cost in costs:
        if cost is None:
            return None
        amount += cost
    return amount


def _strategy_as_dict(replay: Replay, strategy: StrategyResult) -> dict[str, Any]:
    saved_share = None
    if strategy is not replay.everthread:
        saved_share = replay.share_saved_against(strategy)
    return {
        "name": strategy.name,
        "peak": strategy.peak,
        "read": strategy.read,
        "written": strategy.written,
        "uncached": strategy.uncached,
        "what": strategy.label,
        "answered": len(strategy.calls),
        "refused_at": strategy.refused_call,
        "mean": round(strategy.mean_prompt_tokens),
        "misses": dict(strategy.misses),
        "cost": _round_dollars(strategy.cost),
        "input_cost": _round_dollars(strategy.input_cost),
        "we_save": _round_share(saved_share),
        "facts": None if strategy.facts is None else _make_fact_figures(strategy.facts),
        "calls": [_call_as_dict(call) for call in strategy.calls],
    }


def _make_fact_figures(facts: FactCounts) -> dict[str, Any]:
    names = ("retained", "recoverable", "lost")
    kinds = {kind: dict(zip(names, counts, strict=True)) for kind, counts in facts.kinds.items()}
    return {
        "retained": facts.retained,
        "recoverable": facts.recoverable,
        "lost": facts.lost,
        "kinds": kinds,
    }


def _call_as_dict(call: PlayedCall) -> dict[str, Any]:
    return {
        "at": round(call.sent_at, 3),
        "messages": call.message_count,
        "prompt": call.use.prompt,
        "read": call.use.read,
        "written": call.use.write,
        "uncached": call.use.input,
        "output": call.output_tokens,
        "cost": _round_dollars(call.cost),
        "miss": call.miss,
        "missed": call.missed_tokens,
    }


def _round_dollars(cost: Decimal | None) -> float | None:
    return None if cost is None else round(float(cost), 8)


def _round_share(share: float | None) -> float | None:
    return None if share is None else round(share, 4)
