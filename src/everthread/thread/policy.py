"""Decide when to compact a context, and why. Conversations and the gateway use the same policy.

The caller passes the size of the next prompt and the state learnt from the thread's calls, and carries out the
decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, Self, runtime_checkable

from everthread.compaction.journal.journal import AUTHOR as JOURNAL
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.caching.cache_lifetimes import CACHE_SECONDS, bills_cache_writes
from everthread.core.call_pattern import CallPattern
from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.economics import (
    MIN_THRESHOLD_SHARE,
    CompactionCase,
    CompactionDecision,
    Rates,
    decide_compaction,
)
from everthread.core.prices import prices_for
from everthread.core.tokens import budget as defaults
from everthread.core.tokens.budget import Budget
from everthread.core.tokens.calibration import Calibration
from everthread.thread.compaction_pause import CompactionPause

COLD_CACHE = "cold-cache"
"""The reason of an early compaction: the provider no longer caches the prompt."""
IDLE = "idle"
"""The reason of a compaction shortly before the provider's cache expires."""
AUTOMATIC_REASONS = frozenset({"in-loop", "preflight", "hygiene", COLD_CACHE, IDLE})
MIN_FADING_COMPACTIONS = 2
"""From this compaction of a thread on, warn the user that detail may fade."""
RETRY_GROWTH_FACTOR = 1.10
"""After a compaction that could not shrink the prompt, the next automatic one waits for this growth."""
MAX_DELAY_FACTOR = 1.7
"""A compaction soon after the last one is delayed until the prompt has at most this many times the threshold."""
MIN_CALLS_BETWEEN_COMPACTIONS = 8
"""Minimum calls between two compactions in a small window."""
MAX_CALLS_BETWEEN_COMPACTIONS = 20
"""Minimum calls between two compactions in a large window."""
WINDOW_TOKENS_PER_CALL = 3_200
"""Between these bounds, the minimum number of calls is the window divided by this."""
MIN_HYGIENE_MESSAGES = 4
CACHE_LIFETIME_SHARE = 0.8
"""Share of the cache's lifetime after which a summary is written, while reading the cache is still cheap."""
PROVIDERS_WITHOUT_PRICES = frozenset({"auto", "custom", "local"})
"""Provider names that do not identify prices."""


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Settings of a context, named as in the configuration."""

    enabled: bool = True
    background: bool = True
    idle: bool = False
    """Compact shortly before the provider's cache expires."""
    threshold: float = defaults.DEFAULT_THRESHOLD
    target_ratio: float = defaults.DEFAULT_TARGET_RATIO
    protect_last_n: int = defaults.DEFAULT_PROTECT_LAST_N
    threshold_tokens: int | None = defaults.DEFAULT_THRESHOLD_TOKENS
    user_words: float = defaults.DEFAULT_USER_WORDS_SHARE
    result_chars: int = defaults.DEFAULT_RESULT_CHARS
    turn_chars: int = defaults.DEFAULT_TURN_CHARS
    preview_chars: int = defaults.DEFAULT_PREVIEW_CHARS
    cache_ttl: str = "5m"
    economics: bool = True
    """Weigh in dollars when to compact, if prices are known."""
    max_tokens: int | None = None
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`threshold`, `threshold_tokens` and `target_ratio` of single models, by name or glob."""

    def for_model(self, name: str) -> Self:
        """Return the settings for a model: those under its exact name, or else under the longest glob that matches."""
        matching_patterns = [
            pattern for pattern in self.models if fnmatchcase(name, pattern)
        ]
        best_pattern = (
            name
            if name in self.models
            else max(matching_patterns, key=len, default=None)
        )
        return (
            self
            if best_pattern is None
            else replace(self, models={}, **self.models[best_pattern])
        )

    def budget(self, window: int, *, fixed_tokens: int = 0) -> Budget:
        """Return the budget of a window. If system prompt and tools alone reach the threshold, raise it to 85 %."""
        budget = Budget.for_window(
            window,
            threshold=self.threshold,
            target_ratio=self.target_ratio,
            protect_last_n=self.protect_last_n,
            threshold_tokens=self.threshold_tokens,
            result_chars=self.result_chars,
            turn_chars=self.turn_chars,
            preview_chars=self.preview_chars,
            user_words=self.user_words,
            max_output=None
            if self.max_tokens is None
            else min(self.max_tokens, max(window // 4, 1)),
        )
        if fixed_tokens < budget.threshold or budget.threshold >= budget.hygiene_limit:
            return budget
        return replace(
            self, threshold=budget.hygiene_limit / window, threshold_tokens=None
        ).budget(window)

    @property
    def cache_seconds(self) -> float:
        """Seconds for which a provider keeps its cache."""
        return CACHE_SECONDS[self.cache_ttl]


# State learnt from a thread's calls


@dataclass(slots=True)
class ContextState:
    """State learnt from the calls of one thread and stored with it, so that any process can continue."""

    calibration: Calibration = field(default_factory=Calibration)
    call_pattern: CallPattern = field(default_factory=CallPattern)
    pause: CompactionPause = field(default_factory=CompactionPause)
    retry_above_tokens: int = 0
    """Prompt size below which no automatic compaction is made, because the last one did not help enough."""
    cache_change: str = ""
    """Why the next request does not match the cache, unless the reason is time; empty if it matches."""
    tokens_after_compaction: int = 0
    """Prompt tokens after the last compaction."""

    def observe(self, usage: CanonicalUsage, now: float, *, ttl: float) -> None:
        """Record an answered call. If its prompt is smaller than the last one, assume that it was compacted."""
        pattern = (
            self.call_pattern.after_compaction()
            if usage.prompt_tokens < self.call_pattern.prompt
            else self.call_pattern
        )
        self.call_pattern = pattern.add_call(usage, now, ttl=ttl)
        self.cache_change = ""

    def record_failure(self, tokens: int) -> None:
        """Record a compaction that did not shrink a prompt of this size; the next one waits until it has grown."""
        self.retry_above_tokens = round(tokens * RETRY_GROWTH_FACTOR)

    def record_success(self, tokens: int, threshold: int) -> None:
        """Record a compaction after which the prompt has this size.

        If that still reaches the threshold, the next compaction waits until the prompt has grown.
        """
        self.retry_above_tokens = (
            round(tokens * RETRY_GROWTH_FACTOR) if tokens >= threshold else 0
        )

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON values, so that another process can resume."""
        return {
            **self.calibration.dump(),
            "pause": self.pause.dump(),
            "rhythm": self.call_pattern.dump(),
            "compacted": self.tokens_after_compaction,
            "retry_above_tokens": self.retry_above_tokens,
        }

    @classmethod
    def load(cls, state: Any) -> ContextState:
        fields = state if isinstance(state, Mapping) else {}
        return cls(
            calibration=Calibration.load(state),
            call_pattern=CallPattern.load(fields.get("rhythm")),
            pause=CompactionPause.load(fields.get("pause")),
            retry_above_tokens=_read_token_count(fields.get("retry_above_tokens")),
            tokens_after_compaction=_read_token_count(fields.get("compacted")),
        )


def _read_token_count(value: Any) -> int:
    """Return a stored number of tokens, or 0 if the value is not one."""
    return value if isinstance(value, int) and value > 0 else 0


@dataclass(frozen=True, slots=True)
class PromptSize:
    """The size of the next prompt, in tokens of the provider's count."""

    tokens: int
    fixed_tokens: int
    """System prompt and tools."""
    budget: Budget
    output_cap: int | None = None
    """The requested output cap."""
    is_mid_turn: bool = False
    """Whether the call hands tool results to the model, in the middle of a turn."""

    @property
    def hard_limit(self) -> int:
        """The size from which on a prompt leaves too few tokens for an answer, so that it must be compacted."""
        window = self.budget.window
        reserve = min(self.output_cap or defaults.DEFAULT_OUTPUT_RESERVE, window // 8)
        return max(self.budget.threshold, window - reserve - window // 50)

    @property
    def delay_limit(self) -> int:
        """The size up to which a compaction that is due may be delayed."""
        window = self.budget.window
        reserve = min(self.output_cap or defaults.DEFAULT_OUTPUT_RESERVE, window // 4)
        limit = min(
            int(MAX_DELAY_FACTOR * self.budget.threshold),
            self.budget.hygiene_limit,
            window - reserve - window // 50,
        )
        return max(self.budget.threshold, limit)

    @property
    def is_full(self) -> bool:
        return self.tokens >= self.hard_limit

    @property
    def grown_to_threshold(self) -> PromptSize:
        """The size that the prompt will have when a compaction is due: at least the threshold, at the end of a turn."""
        tokens = max(self.tokens, self.budget.threshold)
        return replace(self, tokens=tokens, is_mid_turn=False)


# Dollars


@runtime_checkable
class PricedSummarizer(Protocol):
    """A summariser that can quote the price of a summary."""

    def quote_price(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for a summary of `budget` tokens of a prompt of `tokens`; None if a price is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class CallPrices:
    """The model and the summariser whose prices apply."""

    model: str
    provider: str
    uses_marks: bool
    """Whether the cache is written only at marks."""
    summarizer: Summarizer

    @property
    def is_journal(self) -> bool:
        """Whether the journal writes the summary, which takes milliseconds and is never prepared ahead."""
        return self.summarizer.name == JOURNAL

    @property
    def has_free_summary(self) -> bool:
        """Whether a summary costs nothing, because no model writes it."""
        return (
            not isinstance(self.summarizer, PricedSummarizer)
            or self.summarizer.quote_price(1_000, 100) == 0
        )


# The decision


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

    def __init__(
        self, options: ContextOptions, wall_clock: Callable[[], float]
    ) -> None:
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
            if (
                self._options.background
                and not is_summary_ready
                and not prices.has_free_summary
            ):
                return PolicyDecision(
                    "send", "it would pay now, but somebody would wait for the summary"
                )
            if explanation := self._explain_too_soon(size, state):
                return PolicyDecision("send", explanation, cost_decision=cost_decision)
            early_decision = PolicyDecision(
                "compact", cost_decision.reason, COLD_CACHE, cost_decision=cost_decision
            )
            return self._skip_if_ineffective(
                size.grown_to_threshold, state, early_decision
            )
        if cost_decision is not None and cost_decision.action == "later":
            return PolicyDecision(
                "wait", cost_decision.reason, cost_decision=cost_decision
            )
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
        if (
            not is_too_soon
            or not self._options.economics
            or size.tokens >= size.delay_limit
        ):
            return ""
        return (
            f"the last compaction was {calls_since} calls ago; "
            f"it waits for {min_calls} calls or {size.delay_limit:,} tokens"
        )

    def should_prepare(
        self, size: PromptSize, state: ContextState, prices: CallPrices
    ) -> bool:
        """Return whether a model should write the next summary in the background, from 80 % of the threshold on."""
        may_prepare = (
            self._options.enabled and self._options.background and not prices.is_journal
        )
        if not may_prepare or size.tokens < size.budget.background_start:
            return False
        cost_decision = self.weigh_costs(size.grown_to_threshold, state, prices)
        return (
            cost_decision is None or cost_decision.action == "now"
        ) and not self.is_ineffective(size.grown_to_threshold, state)

    def should_prepare_when_idle(
        self, size: PromptSize, state: ContextState, prices: CallPrices
    ) -> bool:
        """Return whether to write a summary shortly before the cache expires; it must save twice its cost."""
        rates = self._find_rates(prices, size.tokens, state)
        may_prepare = (
            self._options.enabled and self._options.background and not prices.is_journal
        )
        if not may_prepare or rates is None or not rates.has_cache_discount:
            return False
        cost_decision = decide_compaction(
            replace(
                self._make_case(size, state, prices, rates), cold_reason="the pause"
            )
        )
        is_worthwhile = (
            cost_decision.action == "now"
            and cost_decision.savings > 2 * cost_decision.cost
        )
        return is_worthwhile and not self.is_ineffective(size.grown_to_threshold, state)

    def should_compact_when_idle(self, size: PromptSize, state: ContextState) -> bool:
        """Return whether to compact shortly before the cache expires."""
        options = self._options
        is_large = size.tokens >= MIN_THRESHOLD_SHARE * size.budget.threshold
        return (
            options.enabled
            and options.idle
            and is_large
            and not self.is_ineffective(size, state)
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
        return f"{now - last_call:,.0f} s passed since the last call, and it is kept for {ttl:,.0f} s"

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
            else rates.at_read_share(state.call_pattern.read_share).miss_cost(
                size.tokens
            )
        )

    def _find_rates(
        self, prices: CallPrices, tokens: int, state: ContextState
    ) -> Rates | None:
        if not self._options.economics:
            return None
        list_prices = prices_for(
            prices.model,
            time=datetime.fromtimestamp(self._wall_clock(), UTC),
            provider=None
            if prices.provider in PROVIDERS_WITHOUT_PRICES
            else prices.provider,
            prompt_tokens=tokens,
        )
        ttl = (
            "1h"
            if prices.uses_marks
            and self.find_cache_lifetime(state) >= CACHE_SECONDS["1h"]
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


# Messages to the user


def make_fading_notice(
    count: int, advice: str = "A new conversation starts afresh"
) -> str:
    return (
        f"This conversation was compacted {count} times; older detail may fade. {advice}; "
        "what must last belongs into the system prompt or a memory."
    )


def make_fixed_size_notice(fixed_tokens: int, window: int, advice: str) -> str:
    """Return the notice that system prompt and tools raise the threshold."""
    share = round(100 * fixed_tokens / window)
    return (
        f"System prompt and tools alone take {fixed_tokens:,} tokens ({share} % of the window), as much as the "
        f"threshold: the history is compacted at 85 % of the window only. {advice}"
    )
