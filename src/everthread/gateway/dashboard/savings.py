"""Compare what a thread's calls cost with what they would have cost with the whole history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

from everthread.core.costs.prices import Prices, prices_for
from everthread.store.records import CompactionRecord
from everthread.store.usage_records import UsageRecord

_MILLION = 1_000_000
LONG_PROMPT_TOKENS = 200_000
"""Tokens above which some models have other prices."""

FindPrices = Callable[[str, float, int], Prices | None]
"""Return a model's prices at a time for a prompt of this size."""


class PriceTable:
    """Prices by model and day, each looked up only once."""

    def __init__(self) -> None:
        self._prices: dict[tuple[str, date, bool], Prices | None] = {}

    def __call__(self, model: str, timestamp: float, prompt_tokens: int) -> Prices | None:
        moment = datetime.fromtimestamp(timestamp, UTC)
        key = (model, moment.date(), prompt_tokens > LONG_PROMPT_TOKENS)
        if key not in self._prices:
            self._prices[key] = prices_for(model, time=moment, prompt_tokens=prompt_tokens)
        return self._prices[key]


@dataclass(frozen=True, slots=True)
class PricedCall:
    """A call with its price and the price that it would have with the whole history and the same cache."""

    call: UsageRecord
    cost: float
    cost_without: float
    is_shorter: bool = False
    """Whether a compaction came before the call, so that the two prices can differ."""


@dataclass(frozen=True, slots=True)
class CostComparison:
    """The calls of one or more threads compared with the same calls without compaction.

    Dollars are compared for calls that have a price and fit the window with the whole history too.
    """

    rows: tuple[PricedCall, ...] = ()
    outgrown: tuple[UsageRecord, ...] = ()
    """Calls whose whole history would not have fit the window."""
    auxiliary: tuple[UsageRecord, ...] = ()
    """Calls that wrote summaries, which are part of the cost."""
    saved_by: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Dollars saved per `day`, `model`, `client` and `tenant`; empty for a single thread."""

    @property
    def outgrown_count(self) -> int:
        return len(self.outgrown)

    @property
    def compared_count(self) -> int:
        return len(self.rows)

    @property
    def cost(self) -> float:
        summaries = sum(float(call.cost or 0) for call in self.auxiliary)
        return summaries + sum(row.cost for row in self.rows)

    @property
    def cost_without(self) -> float:
        return sum(row.cost_without for row in self.rows)

    @property
    def saved(self) -> float | None:
        """Return the dollars saved; None if no priced call came after a compaction."""
        if not any(row.is_shorter for row in self.rows):
            return None
        return self.cost_without - self.cost


def compare_thread(
    calls: Sequence[UsageRecord],
    compactions: Sequence[CompactionRecord],
    *,
    find_prices: FindPrices,
    find_window: Callable[[str], int],
    ttl: float,
) -> CostComparison:
    """Compute the price of a thread's calls without compaction, as the replay does.

    A compaction takes effect at the first call whose prompt is smaller than the previous one. A call that read from the
    cache would also have read the whole history from the cache; otherwise the removed tokens are paid in full.
    """
    history = _WholeHistory(compactions)
    has_cache = any(call.usage.cache_read_tokens or call.usage.cache_write_tokens for call in calls)
    rows: list[PricedCall] = []
    outgrown: list[UsageRecord] = []
    previous_call: UsageRecord | None = None
    for call in (call for call in calls if call.task == "main"):
        previous_prompt_tokens = history.prompt_tokens
        is_first = history.advance(call, previous_call)
        if history.prompt_tokens > find_window(call.model):
            outgrown.append(call)
        elif call.cost is not None and not history.removed_tokens:
            rows.append(PricedCall(call, float(call.cost), float(call.cost)))
        elif call.cost is not None:
            is_warm = (
                previous_call is not None
                and previous_call.model == call.model
                and call.created - previous_call.created <= ttl
            )
            if not has_cache:
                read_tokens = 0
            elif is_first and is_warm:
                read_tokens = min(previous_prompt_tokens, history.prompt_tokens)
            else:
                cached_tokens = call.usage.cache_read_tokens
                read_tokens = cached_tokens + history.removed_tokens if cached_tokens else 0
            prices = find_prices(call.model, call.created, history.prompt_tokens)
            cost_without = _price_prompt(prices, history.prompt_tokens, read_tokens, call)
            if cost_without is not None:
                rows.append(PricedCall(call, float(call.cost), cost_without, is_shorter=True))
        previous_call = call
    return CostComparison(
        rows=tuple(rows),
        outgrown=tuple(outgrown),
        auxiliary=tuple(call for call in calls if call.task != "main"),
    )


class _WholeHistory:
    """Tracks the size that each prompt would have without compaction."""

    def __init__(self, compactions: Sequence[CompactionRecord]) -> None:
        unreverted_compactions = [
            compaction for compaction in compactions if compaction.reverted_at is None
        ]
        self._later_compactions = sorted(
            unreverted_compactions, key=lambda compaction: compaction.created
        )
        self._pending_tokens = 0
        self.removed_tokens = 0
        self.prompt_tokens = 0

    def advance(self, call: UsageRecord, previous_call: UsageRecord | None) -> bool:
        """Advance to a call, and return whether it is the first one after a compaction."""
        while self._later_compactions and self._later_compactions[0].created <= call.created:
            compaction = self._later_compactions.pop(0).record
            self._pending_tokens += max(0, compaction.tokens_before - compaction.tokens_after)
        is_first = (
            bool(self._pending_tokens)
            and previous_call is not None
            and call.usage.prompt_tokens < previous_call.usage.prompt_tokens
        )
        if is_first:
            self.removed_tokens += self._pending_tokens
            self._pending_tokens = 0
        self.prompt_tokens = call.usage.prompt_tokens + self.removed_tokens
        return is_first


def _price_prompt(
    prices: Prices | None, prompt_tokens: int, read_tokens: int, call: UsageRecord
) -> float | None:
    """Return the dollars of a prompt that is partly read from the cache."""
    if prices is None or prices.input is None:
        return None
    uncached_price = prices.input
    if call.usage.cache_write_tokens and prices.cache_write_5m is not None:
        uncached_price = prices.cache_write_5m
    cached_price = prices.cache_read if prices.cache_read is not None else prices.input
    weighted_tokens = (
        (prompt_tokens - read_tokens) * uncached_price
        + read_tokens * cached_price
        + call.usage.output_tokens * (prices.output or 0)
    )
    return float(weighted_tokens) / _MILLION


def sum_savings(
    comparisons: Sequence[CostComparison],
    *,
    start_time: float,
    format_day: Callable[[float], str],
) -> CostComparison:
    """Add up the comparisons of several threads for calls since a time."""
    saved_by: dict[str, dict[str, float]] = {
        "day": {},
        "model": {},
        "client": {},
        "tenant": {},
    }
    rows: list[PricedCall] = []
    for comparison in comparisons:
        rows += (row for row in comparison.rows if row.call.created >= start_time)
    for row in rows:
        call = row.call
        keys = (format_day(call.created), call.model, call.client, call.tenant)
        for kind, key in zip(saved_by, keys, strict=True):
            saved_by[kind][key] = saved_by[kind].get(key, 0.0) + row.cost_without - row.cost
    return CostComparison(
        rows=tuple(rows),
        outgrown=_calls_since(
            start_time,
            *(thread_comparison.outgrown for thread_comparison in comparisons),
        ),
        auxiliary=_calls_since(
            start_time,
            *(thread_comparison.auxiliary for thread_comparison in comparisons),
        ),
        saved_by=saved_by,
    )


def _calls_since(start_time: float, *groups: Sequence[UsageRecord]) -> tuple[UsageRecord, ...]:
    return tuple(call for group in groups for call in group if call.created >= start_time)
