"""Decide when to compact a context, and why. Conversations and the gateway use the same policy.

The caller passes the size of the next prompt and the state learnt from the thread's calls, and carries out the
decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from everthread.core.caching.cache_lifetimes import CACHE_SECONDS, bills_cache_writes
from everthread.core.costs.compaction_economics import (
    MIN_THRESHOLD_SHARE,
    CompactionCase,
    CompactionDecision,
    Rates,
    decide_compaction,
)
from everthread.core.costs.prices import prices_for
from everthread.thread.policy.call_prices import (
    PROVIDERS_WITHOUT_PRICES,
    CallPrices,
    PricedSummarizer,
)
from everthread.thread.policy.context_options import ContextOptions
from everthread.thread.policy.context_state import ContextState
from everthread.thread.policy.prompt_size import PromptSize

COLD_CACHE = "cold-cache"
"""The reason of an early compaction: the provider no longer caches the prompt."""
IDLE = "idle"
"""The reason of a compaction shortly before the provider's cache expires."""
AUTOMATIC_REASONS = frozenset({"in-loop", "preflight", "hygiene", COLD_CACHE, IDLE})
MIN_CALLS_BETWEEN_COMPACTIONS = 8
"""Minimum calls between two compactions in a small window."""
MAX_CALLS_BETWEEN_COMPACTIONS = 20
"""Minimum calls between two compactions in a large window."""
WINDOW_TOKENS_PER_CALL = 3_200
"""Between these bounds, the minimum number of calls is the window divided by this."""
MIN_HYGIENE_MESSAGES = 4
CACHE_LIFETIME_SHARE = 0.8
"""Share of the cache's lifetime after which a summary is written, while reading the cache is still cheap."""


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """The action before a call, with its reason."""

    action: Literal["send", "wait", "compact"]
    """`send`: no compaction is due; `wait`: one is due but postponed; `compact`: compact now."""
    explanation: str
    reason: str = ""
    """The reason of the compaction: `in-loop`, `preflight`, `cold-cache` …"""
    must_wait: bool = False
    """Whether the request must wait for the compaction."""
    cost_decision: CompactionDecision | None = None
    """The decision by cost; None if economics are off or prices are unknown."""

    @property
    def should_compact(self) -> bool:
        return self.action == "compact"


class CompactionPolicy:
    """Decide when to compact. The only side effect is that an expired pause is cleared."""

    def __init__(self, options: ContextOptions, wall_clock: Callable[[], float]) -> None:
        self._options = options
        self._wall_clock = wall_clock

    def decide(
        self,
        size: PromptSize,
        state: ContextState,
        prices: CallPrices,
        *,
        reason: str,
        is_summary_ready: bool = False,
    ) -> PolicyDecision:
        """Decide whether to compact before a call of this size. `is_summary_ready`: whether a summary is prepared."""
        tokens = size.tokens
        threshold = size.budget.threshold
        if not self._options.enabled:
            return PolicyDecision("send", "compression is disabled")
        cost_decision = (
            self.weigh_costs(size, state, prices)
            if tokens >= MIN_THRESHOLD_SHARE * threshold
            else None
        )
        if tokens < threshold:
            if cost_decision is None or cost_decision.action != "now":
                return PolicyDecision(
                    "send",
                    f"{tokens:,} tokens are below the threshold of {threshold:,}",
                )
            if self._options.background and not is_summary_ready and not prices.has_free_summary:
                return PolicyDecision(
                    "send", "it would pay now, but somebody would wait for the summary"
                )
            if explanation := self._explain_too_soon(size, state):
                return PolicyDecision("send", explanation, cost_decision=cost_decision)
            early_decision = PolicyDecision(
                "compact", cost_decision.reason, COLD_CACHE, cost_decision=cost_decision
            )
            return self._skip_if_ineffective(size.grown_to_threshold, state, early_decision)
        if cost_decision is not None and cost_decision.action == "later":
            return PolicyDecision("wait", cost_decision.reason, cost_decision=cost_decision)
        if explanation := self._explain_too_soon(size, state):
            return PolicyDecision("wait", explanation, cost_decision=cost_decision)
        explanation = (
            cost_decision.reason
            if cost_decision
            else f"{tokens:,} tokens reach the threshold of {threshold:,}"
        )
        return self._skip_if_ineffective(
            size,
            state,
            PolicyDecision("compact", explanation, reason, size.is_full, cost_decision),
        )

    def _explain_too_soon(self, size: PromptSize, state: ContextState) -> str:
        """Return the reason why a compaction would follow the last one too soon; empty if it may proceed.

        Each compaction loses detail and rewrites the cache, so it should last for a number of calls.
        """
        calls_since = state.call_pattern.since_rewrite
        min_calls = min(
            MAX_CALLS_BETWEEN_COMPACTIONS,
            max(
                MIN_CALLS_BETWEEN_COMPACTIONS,
                size.budget.window // WINDOW_TOKENS_PER_CALL,
            ),
        )
        is_too_soon = bool(state.tokens_after_compaction) and calls_since < min_calls
        if not is_too_soon or not self._options.economics or size.tokens >= size.delay_limit:
            return ""
        return (
            f"the last compaction was {calls_since} calls ago; "
            f"it waits for {min_calls} calls or {size.delay_limit:,} tokens"
        )

    def should_prepare(self, size: PromptSize, state: ContextState, prices: CallPrices) -> bool:
        """Return whether a model should write the next summary in the background, from 80 % of the threshold on."""
        may_prepare = self._options.enabled and self._options.background and not prices.is_journal
        if not may_prepare or size.tokens < size.budget.background_start:
            return False
        cost_decision = self.weigh_costs(size.grown_to_threshold, state, prices)
        return (cost_decision is None or cost_decision.action == "now") and not self.is_ineffective(
            size.grown_to_threshold, state
        )

    def should_prepare_when_idle(
        self, size: PromptSize, state: ContextState, prices: CallPrices
    ) -> bool:
        """Return whether to write a summary shortly before the cache expires; it must save twice its cost."""
        rates = self._find_rates(prices, size.tokens, state)
        may_prepare = self._options.enabled and self._options.background and not prices.is_journal
        if not may_prepare or rates is None or not rates.has_cache_discount:
            return False
        cost_decision = decide_compaction(
            replace(self._make_case(size, state, prices, rates), cold_reason="the pause")
        )
        is_worthwhile = (
            cost_decision.action == "now" and cost_decision.savings > 2 * cost_decision.cost
        )
        return is_worthwhile and not self.is_ineffective(size.grown_to_threshold, state)

    def should_compact_when_idle(self, size: PromptSize, state: ContextState) -> bool:
        """Return whether to compact shortly before the cache expires."""
        options = self._options
        is_large = size.tokens >= MIN_THRESHOLD_SHARE * size.budget.threshold
        return (
            options.enabled and options.idle and is_large and not self.is_ineffective(size, state)
        )

    def is_hygiene_due(self, size: PromptSize, message_count: int) -> bool:
        """Return whether the gateway should compact before it takes an incoming message."""
        return (
            self._options.enabled
            and message_count >= MIN_HYGIENE_MESSAGES
            and size.tokens >= size.budget.hygiene_limit
        )

    def is_ineffective(self, size: PromptSize, state: ContextState) -> bool:
        """Return whether the last compactions showed that another would save nothing yet."""
        return bool(self._find_obstacle(size, state))

    def _find_obstacle(self, size: PromptSize, state: ContextState) -> str:
        """Return the reason why a compaction would not help yet; empty if it may help."""
        if size.tokens < state.retry_above_tokens:
            return "the last compaction could not make it small enough"
        return (
            "automatic compaction is paused"
            if state.pause.is_active(size.tokens, self._wall_clock())
            else ""
        )

    def _skip_if_ineffective(
        self, size: PromptSize, state: ContextState, decision: PolicyDecision
    ) -> PolicyDecision:
        obstacle = self._find_obstacle(size, state)
        return (
            PolicyDecision("send", obstacle, cost_decision=decision.cost_decision)
            if obstacle
            else decision
        )

    # Dollars

    def find_cold_reason(self, state: ContextState) -> str:
        """Return the reason why the provider's cache does not hold the next prompt; empty if it may hold it."""
        if state.cache_change:
            return state.cache_change
        now = self._wall_clock()
        last_call = state.call_pattern.last
        ttl = self.find_cache_lifetime(state)
        if last_call is None or not state.call_pattern.is_cold(now, ttl=ttl):
            return ""
        return (
            f"{now - last_call:,.0f} s passed since the last call, and it is kept for {ttl:,.0f} s"
        )

    def find_cache_lifetime(self, state: ContextState) -> float:
        """Return how many seconds the provider keeps the thread's prefix in its cache, as its calls showed."""
        return state.call_pattern.lifetime or self._options.cache_seconds

    def weigh_costs(
        self, size: PromptSize, state: ContextState, prices: CallPrices
    ) -> CompactionDecision | None:
        """Return the cost and the saving of a compaction; None if economics are off or prices unknown."""
        rates = self._find_rates(prices, size.tokens, state)
        return (
            None
            if rates is None
            else decide_compaction(self._make_case(size, state, prices, rates))
        )

    def find_miss_cost(
        self, size: PromptSize, state: ContextState, prices: CallPrices
    ) -> float | None:
        """Return the dollars lost if the provider's cache misses the next prompt; None if prices are unknown."""
        rates = self._find_rates(prices, size.tokens, state)
        return (
            None
            if rates is None
            else rates.at_read_share(state.call_pattern.read_share).miss_cost(size.tokens)
        )

    def _find_rates(self, prices: CallPrices, tokens: int, state: ContextState) -> Rates | None:
        if not self._options.economics:
            return None
        list_prices = prices_for(
            prices.model,
            time=datetime.fromtimestamp(self._wall_clock(), UTC),
            provider=None if prices.provider in PROVIDERS_WITHOUT_PRICES else prices.provider,
            prompt_tokens=tokens,
        )
        ttl = (
            "1h"
            if prices.uses_marks and self.find_cache_lifetime(state) >= CACHE_SECONDS["1h"]
            else "5m"
        )
        return Rates.from_prices(
            list_prices,
            ttl=ttl,
            bills_cache_writes=prices.uses_marks or bills_cache_writes(prices.model),
        )

    def _make_case(
        self, size: PromptSize, state: ContextState, prices: CallPrices, rates: Rates
    ) -> CompactionCase:
        budget = size.budget
        summarizer = prices.summarizer
        summary_tokens = budget.summary_size(
            max(0, size.tokens - size.fixed_tokens - budget.tail_tokens)
        )
        tokens_after = max(
            size.fixed_tokens + budget.tail_tokens + summary_tokens,
            min(state.tokens_after_compaction, budget.compacted_limit),
        )
        return CompactionCase(
            tokens=size.tokens,
            tokens_after=min(size.tokens, tokens_after),
            fixed_tokens=size.fixed_tokens,
            threshold=budget.threshold,
            limit=size.delay_limit,
            summary_cost=(
                summarizer.quote_price(size.tokens, summary_tokens)
                if isinstance(summarizer, PricedSummarizer)
                else 0.0
            )
            or 0.0,
            rates=rates,
            call_pattern=state.call_pattern,
            cold_reason=self.find_cold_reason(state),
            is_mid_turn=size.is_mid_turn,
        )
