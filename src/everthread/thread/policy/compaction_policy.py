"""Decide when to compact a context, and why. Conversations and the gateway use the same policy.

The caller passes the size of the next prompt and the state learnt from the thread's calls, and carries out the
decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from everthread.core.caching.cache_lifetimes import CACHE_SECONDS, bills_cache_writes
from everthread.core.costs.compaction_economics import (
    MIN_THRESHOLD_SHARE,
    CompactionCase,
    CompactionDecision,
    CompactionTiming,
    Rates,
    decide_compaction,
)
from everthread.core.costs.prices import prices_for
from everthread.thread.policy.call_prices import PROVIDERS_WITHOUT_PRICES, CallPrices
from everthread.thread.policy.compaction_reason import CompactionReason
from everthread.thread.policy.context_options import ContextOptions
from everthread.thread.policy.learnt_usage import LearntUsage
from everthread.thread.policy.prompt_size import PromptSize

MIN_CALLS_BETWEEN_COMPACTIONS = 8
"""Minimum calls between two compactions in a small window."""
MAX_CALLS_BETWEEN_COMPACTIONS = 20
"""Minimum calls between two compactions in a large window."""
WINDOW_TOKENS_PER_CALL = 3_200
"""Between these bounds, the minimum number of calls is the window divided by this."""
MIN_MESSAGES_BEFORE_INCOMING = 4
CACHE_LIFETIME_SHARE = 0.8
"""Share of the cache's lifetime after which a summary is written, while reading the cache is still cheap."""


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """The action before a call, with its reason."""

    timing: CompactionTiming
    """`LATER` if a compaction is due but postponed."""
    reason: CompactionReason = CompactionReason.IN_LOOP
    """Why to compact, if the time is now."""
    must_wait: bool = False
    """Whether the request must wait for the compaction."""
    cost_decision: CompactionDecision | None = None
    """The decision by cost, or None if economics are off or prices are unknown."""


class CompactionPolicy:
    """Decides when to compact. The only side effect is that an expired pause is cleared."""

    def __init__(self, options: ContextOptions, wall_clock: Callable[[], float]) -> None:
        self.options = options
        self.wall_clock = wall_clock

    def decide(
        self,
        size: PromptSize,
        learnt_usage: LearntUsage,
        prices: CallPrices,
        *,
        reason: CompactionReason,
        is_summary_ready: bool = False,
    ) -> PolicyDecision:
        """Decide whether to compact before a call of this size. `is_summary_ready`: whether a summary is prepared."""
        if not self.options.enabled:
            return PolicyDecision(CompactionTiming.NOT_DUE)
        cost_decision = None
        if size.tokens >= MIN_THRESHOLD_SHARE * size.budget.threshold:
            cost_decision = self.weigh_costs(size, learnt_usage, prices)
        if size.tokens < size.budget.threshold:
            if cost_decision is None or cost_decision.timing is not CompactionTiming.NOW:
                return PolicyDecision(CompactionTiming.NOT_DUE)
            if self.options.background and not is_summary_ready and not prices.has_free_summary:
                return PolicyDecision(
                    CompactionTiming.NOT_DUE
                )  # the call would wait for a model's summary
            if self._is_too_soon(size, learnt_usage) or self.is_ineffective(
                size.grown_to_threshold, learnt_usage
            ):
                return PolicyDecision(CompactionTiming.NOT_DUE, cost_decision=cost_decision)
            return PolicyDecision(
                CompactionTiming.NOW, CompactionReason.COLD_CACHE, cost_decision=cost_decision
            )
        is_later_cheaper = (
            cost_decision is not None and cost_decision.timing is CompactionTiming.LATER
        )
        if is_later_cheaper or self._is_too_soon(size, learnt_usage):
            return PolicyDecision(CompactionTiming.LATER, cost_decision=cost_decision)
        if self.is_ineffective(size, learnt_usage):
            return PolicyDecision(CompactionTiming.NOT_DUE, cost_decision=cost_decision)
        return PolicyDecision(
            CompactionTiming.NOW, reason, must_wait=size.is_full, cost_decision=cost_decision
        )

    def _is_too_soon(self, size: PromptSize, learnt_usage: LearntUsage) -> bool:
        """Return whether a compaction would follow the last one too soon.

        Each compaction loses detail and rewrites the cache, so it should last for a number of calls.
        """
        if not self.options.economics or not learnt_usage.tokens_after_compaction:
            return False
        calls_by_window = size.budget.window // WINDOW_TOKENS_PER_CALL
        min_calls = min(
            MAX_CALLS_BETWEEN_COMPACTIONS, max(MIN_CALLS_BETWEEN_COMPACTIONS, calls_by_window)
        )
        is_recent = learnt_usage.call_pattern.since_rewrite < min_calls
        return is_recent and size.tokens < size.max_delayed_tokens

    def should_prepare(
        self, size: PromptSize, learnt_usage: LearntUsage, prices: CallPrices
    ) -> bool:
        """Return whether a model should write the next summary in the background, from 80 % of the threshold on."""
        may_prepare = self.options.enabled and self.options.background and not prices.is_journal
        if not may_prepare or size.tokens < size.budget.background_start:
            return False
        cost_decision = self.weigh_costs(size.grown_to_threshold, learnt_usage, prices)
        return (
            cost_decision is None or cost_decision.timing is CompactionTiming.NOW
        ) and not self.is_ineffective(size.grown_to_threshold, learnt_usage)

    def should_prepare_when_idle(
        self, size: PromptSize, learnt_usage: LearntUsage, prices: CallPrices
    ) -> bool:
        """Return whether to write a summary shortly before the cache expires; it must save twice its cost."""
        rates = self._compute_rates(prices, size.tokens, learnt_usage)
        may_prepare = self.options.enabled and self.options.background and not prices.is_journal
        if not may_prepare or rates is None or not rates.has_cache_discount:
            return False
        cost_decision = decide_compaction(
            replace(self._make_case(size, learnt_usage, prices, rates), cold_reason="the pause")
        )
        is_worthwhile = (
            cost_decision.timing is CompactionTiming.NOW
            and cost_decision.savings > 2 * cost_decision.cost
        )
        return is_worthwhile and not self.is_ineffective(size.grown_to_threshold, learnt_usage)

    def should_compact_when_idle(self, size: PromptSize, learnt_usage: LearntUsage) -> bool:
        """Return whether to compact shortly before the cache expires."""
        options = self.options
        is_large = size.tokens >= MIN_THRESHOLD_SHARE * size.budget.threshold
        return (
            options.enabled
            and options.compact_when_idle
            and is_large
            and not self.is_ineffective(size, learnt_usage)
        )

    def is_due_before_incoming(self, size: PromptSize, message_count: int) -> bool:
        """Return whether the gateway should compact before it takes an incoming message."""
        return (
            self.options.enabled
            and message_count >= MIN_MESSAGES_BEFORE_INCOMING
            and size.tokens >= size.budget.before_incoming_limit
        )

    def is_ineffective(self, size: PromptSize, learnt_usage: LearntUsage) -> bool:
        """Return whether the last compactions showed that another would save nothing yet."""
        if size.tokens < learnt_usage.retry_above_tokens:
            return True
        return learnt_usage.pause.is_active(size.tokens, self.wall_clock())

    def explain_cold_cache(self, learnt_usage: LearntUsage) -> str:
        """Return why the provider's cache does not hold the next prompt, or an empty string if it may hold it."""
        if learnt_usage.cache_change:
            return learnt_usage.cache_change
        now = self.wall_clock()
        last_call = learnt_usage.call_pattern.last
        ttl = self.get_cache_lifetime(learnt_usage)
        if last_call is None or not learnt_usage.call_pattern.is_cold(now, ttl=ttl):
            return ""
        return (
            f"{now - last_call:,.0f} s passed since the last call, and it is kept for {ttl:,.0f} s"
        )

    def get_cache_lifetime(self, learnt_usage: LearntUsage) -> float:
        """Return how many seconds the provider keeps the thread's prefix in its cache, as its calls showed."""
        return learnt_usage.call_pattern.lifetime or self.options.cache_seconds

    def weigh_costs(
        self, size: PromptSize, learnt_usage: LearntUsage, prices: CallPrices
    ) -> CompactionDecision | None:
        """Return the cost and the saving of a compaction, or None if economics are off or prices unknown."""
        rates = self._compute_rates(prices, size.tokens, learnt_usage)
        if rates is None:
            return None
        return decide_compaction(self._make_case(size, learnt_usage, prices, rates))

    def compute_miss_cost(
        self, size: PromptSize, learnt_usage: LearntUsage, prices: CallPrices
    ) -> float | None:
        """Return the dollars lost if the provider's cache misses the next prompt, or None if prices are unknown."""
        rates = self._compute_rates(prices, size.tokens, learnt_usage)
        if rates is None:
            return None
        return rates.at_read_share(learnt_usage.call_pattern.read_share).miss_cost(size.tokens)

    def _compute_rates(
        self, prices: CallPrices, tokens: int, learnt_usage: LearntUsage
    ) -> Rates | None:
        if not self.options.economics:
            return None
        has_no_prices = prices.provider in PROVIDERS_WITHOUT_PRICES
        list_prices = prices_for(
            prices.model,
            time=datetime.fromtimestamp(self.wall_clock(), UTC),
            provider=None if has_no_prices else prices.provider,
            prompt_tokens=tokens,
        )
        is_kept_long = self.get_cache_lifetime(learnt_usage) >= CACHE_SECONDS["1h"]
        ttl = "1h" if prices.uses_marks and is_kept_long else "5m"
        return Rates.from_prices(
            list_prices,
            ttl=ttl,
            bills_cache_writes=prices.uses_marks or bills_cache_writes(prices.model),
        )

    def _make_case(
        self, size: PromptSize, learnt_usage: LearntUsage, prices: CallPrices, rates: Rates
    ) -> CompactionCase:
        budget = size.budget
        summary_tokens = budget.summary_size(
            max(0, size.tokens - size.fixed_tokens - budget.tail_tokens)
        )
        tokens_after = max(
            size.fixed_tokens + budget.tail_tokens + summary_tokens,
            min(learnt_usage.tokens_after_compaction, budget.max_compacted_tokens),
        )
        return CompactionCase(
            tokens=size.tokens,
            tokens_after=min(size.tokens, tokens_after),
            fixed_tokens=size.fixed_tokens,
            threshold=budget.threshold,
            limit=size.max_delayed_tokens,
            summary_cost=prices.quote_summary(size.tokens, summary_tokens) or 0.0,
            rates=rates,
            call_pattern=learnt_usage.call_pattern,
            cold_reason=self.explain_cold_cache(learnt_usage),
            is_mid_turn=size.is_mid_turn,
        )
