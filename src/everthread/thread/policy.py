"""Decide when to compact a context, with a reason, for the conversation and the gateway alike.

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
from everthread.compaction.summary import Summarizer
from everthread.core.caching.cache_lifetimes import CACHE_SECONDS, bills_writes
from everthread.core.call_pattern import CallPattern
from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.economics import (
    MIN_THRESHOLD_SHARE,
    CompactionCase,
    Decision,
    Rates,
    weigh,
)
from everthread.core.prices import prices_for
from everthread.core.tokens import budget as defaults
from everthread.core.tokens.budget import Budget
from everthread.core.tokens.calibration import Calibration
from everthread.thread.compaction_pause import CompactionPause

COLD_CACHE = "cold-cache"
"""The reason of an early compaction, because the provider no longer caches the prompt."""
IDLE = "idle"
"""The reason of a compaction shortly before the provider's cache expires."""
AUTOMATIC = frozenset({"in-loop", "preflight", "hygiene", COLD_CACHE, IDLE})
FADING_COMPACTIONS = 2
"""From this compaction of a thread on, warn the user that detail may fade."""
RETRY_GROWTH = 1.10
"""After a compaction that could make nothing smaller, the next automatic one waits for this growth."""
MAX_DELAY = 1.7
"""A compaction that would follow the last one too soon waits until at most this many times the threshold."""
MIN_CALLS = 8
"""A compaction should buy this many calls in a small window ..."""
MAX_CALLS = 20
"""... and this many in a large one ..."""
WINDOW_TOKENS_PER_CALL = 3_200
"""... one for each of this many tokens of the window in between."""
MIN_HYGIENE_MESSAGES = 4
NEARLY_COLD_SHARE = 0.8
"""Share of the time a cache is kept after which a summary is written from it, while reading it is still cheap."""
OPTIONAL_WAIT_SECONDS = 0.25
"""Seconds a turn waits for an optional summary of a model."""
PROVIDERS_WITHOUT_PRICES = frozenset({"auto", "custom", "local"})
"""Provider names that do not identify prices."""


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Settings of a context, named as in the configuration."""

    enabled: bool = True
    background: bool = True
    idle: bool = False
    """Compact shortly before the provider's cache expires."""
    threshold: float = defaults.THRESHOLD
    target_ratio: float = defaults.TARGET_RATIO
    protect_last_n: int = defaults.PROTECT_LAST_N
    threshold_tokens: int | None = defaults.THRESHOLD_TOKENS
    user_words: float = defaults.USER_WORDS
    result_chars: int = defaults.RESULT_CHARS
    turn_chars: int = defaults.TURN_CHARS
    preview_chars: int = defaults.PREVIEW_CHARS
    cache_ttl: str = "5m"
    economics: bool = True
    """Weigh in dollars when to compact, if prices are known."""
    max_tokens: int | None = None
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`threshold`, `threshold_tokens` and `target_ratio` of single models, by name or glob."""

    def for_model(self, name: str) -> Self:
        """Return the settings for a model: those under its exact name, or else under the longest glob that matches."""
        fitting = [pattern for pattern in self.models if fnmatchcase(name, pattern)]
        chosen = name if name in self.models else max(fitting, key=len, default=None)
        return (
            self if chosen is None else replace(self, models={}, **self.models[chosen])
        )

    def budget(self, window: int, *, fixed: int = 0) -> Budget:
        """Return the budget of a window. If system prompt and tools (`fixed`) reach T, T is 85 % of the window."""
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
        if fixed < budget.threshold or budget.threshold >= budget.hygiene:
            return budget
        return replace(
            self, threshold=budget.hygiene / window, threshold_tokens=None
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
    rhythm: CallPattern = field(default_factory=CallPattern)
    pause: CompactionPause = field(default_factory=CompactionPause)
    retry_above_tokens: int = 0
    """No automatic compaction below this size: the last one could make nothing smaller, or not enough."""
    changed: str = ""
    """The reason, other than time, why the next request does not match the cache."""
    compacted: int = 0
    """Tokens after the last compaction."""

    def observe(self, usage: CanonicalUsage, now: float, *, ttl: float) -> None:
        """Record an answered call. After a compaction its prompt is not compared with an earlier one."""
        before = (
            self.rhythm.rewritten()
            if usage.prompt_tokens < self.rhythm.prompt
            else self.rhythm
        )
        self.rhythm = before.after(usage, now, ttl=ttl)
        self.changed = ""

    def fail(self, tokens: int) -> None:
        """Record a compaction of this size that achieved nothing: the next one waits until the prompt has grown."""
        self.retry_above_tokens = round(tokens * RETRY_GROWTH)

    def succeed(self, tokens: int, threshold: int) -> None:
        """Record a compaction that left `tokens`.

        If that still reaches the threshold, the next one waits until the prompt has grown.
        """
        self.retry_above_tokens = (
            round(tokens * RETRY_GROWTH) if tokens >= threshold else 0
        )

    def dump(self) -> dict[str, Any]:
        """Return the state as JSON values, so that another process can resume."""
        return {
            **self.calibration.dump(),
            "pause": self.pause.dump(),
            "rhythm": self.rhythm.dump(),
            "compacted": self.compacted,
            "retry_above_tokens": self.retry_above_tokens,
        }

    @classmethod
    def load(cls, state: Any) -> ContextState:
        fields = state if isinstance(state, Mapping) else {}
        return cls(
            calibration=Calibration.load(state),
            rhythm=CallPattern.load(fields.get("rhythm")),
            pause=CompactionPause.load(fields.get("pause")),
            retry_above_tokens=_as_count(fields.get("retry_above_tokens")),
            compacted=_as_count(fields.get("compacted")),
        )


def _as_count(value: Any) -> int:
    """Return a stored number of tokens, or 0 if the value is not one."""
    return value if isinstance(value, int) and value > 0 else 0


@dataclass(frozen=True, slots=True)
class PromptSize:
    """The size of the next prompt, in tokens of the provider's count."""

    tokens: int
    fixed: int
    """System prompt and tools."""
    budget: Budget
    output: int | None = None
    """The requested output cap."""
    is_mid_turn: bool = False
    """Whether the call hands tool results to the model, in the middle of a turn."""

    @property
    def hard_limit(self) -> int:
        """From here on a request has no room for its answer: it cannot go without a compaction."""
        window = self.budget.window
        spare = min(self.output or defaults.SPARE_OUTPUT, window // 8)
        return max(self.budget.threshold, window - spare - window // 50)

    @property
    def delay_limit(self) -> int:
        """A compaction that is due may be put off below this size."""
        window = self.budget.window
        spare = min(self.output or defaults.SPARE_OUTPUT, window // 4)
        latest = min(
            int(MAX_DELAY * self.budget.threshold),
            self.budget.hygiene,
            window - spare - window // 50,
        )
        return max(self.budget.threshold, latest)

    @property
    def is_full(self) -> bool:
        return self.tokens >= self.hard_limit

    @property
    def when_due(self) -> PromptSize:
        """This prompt, as if it had grown to the threshold by the end of the turn."""
        tokens = max(self.tokens, self.budget.threshold)
        return replace(self, tokens=tokens, is_mid_turn=False)


# Dollars


@runtime_checkable
class PricedSummarizer(Protocol):
    """A summariser that can quote the price of a summary."""

    def quote(self, tokens: int, budget: int) -> float | None:
        """Return the dollars for a summary of `budget` tokens of a prompt of `tokens`; None if a price is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class CallPrices:
    """The model and the summariser whose prices apply."""

    model: str
    provider: str
    marked: bool
    """Whether the cache is written only at marks."""
    summarizer: Summarizer

    @property
    def is_journal(self) -> bool:
        """Whether the journal writes: it takes milliseconds, so it is never prepared ahead."""
        return self.summarizer.name == JOURNAL

    @property
    def free_summary(self) -> bool:
        """Whether a summary costs nothing: no model has to write it."""
        return (
            not isinstance(self.summarizer, PricedSummarizer)
            or self.summarizer.quote(1_000, 100) == 0
        )


# The decision


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """The action before a call, with its reason."""

    action: Literal["send", "wait", "compact"]
    """`send`: nothing is due; `wait`: due but postponed; `compact`."""
    why: str
    reason: str = ""
    """The reason of the compaction: `in-loop`, `preflight`, `cold-cache` …"""
    must_wait: bool = False
    """Whether the request must wait for the compaction."""
    weighed: Decision | None = None
    """The dollars; None if economics are off or prices unknown."""

    @property
    def compacts(self) -> bool:
        return self.action == "compact"


class CompactionPolicy:
    """Decide, without side effects except that an expired pause is cleared."""

    def __init__(self, options: ContextOptions, wall: Callable[[], float]) -> None:
        self._options = options
        self._wall = wall

    def decide(
        self,
        size: PromptSize,
        state: ContextState,
        prices: CallPrices,
        *,
        reason: str,
        ready: bool = False,
    ) -> PolicyDecision:
        """Decide whether to compact before a call of this size. `ready`: a summary is prepared already."""
        tokens = size.tokens
        threshold = size.budget.threshold
        if not self._options.enabled:
            return PolicyDecision("send", "compression is disabled")
        weighed = (
            self.weigh(size, state, prices)
            if tokens >= MIN_THRESHOLD_SHARE * threshold
            else None
        )
        if tokens < threshold:
            if weighed is None or weighed.action != "now":
                return PolicyDecision(
                    "send",
                    f"{tokens:,} tokens are below the threshold of {threshold:,}",
                )
            if self._options.background and not ready and not prices.free_summary:
                return PolicyDecision(
                    "send", "it would pay now, but somebody would wait for the summary"
                )
            if why := self._too_soon(size, state):
                return PolicyDecision("send", why, weighed=weighed)
            early = PolicyDecision("compact", weighed.why, COLD_CACHE, weighed=weighed)
            return self._skip_if_ineffective(size.when_due, state, early)
        if weighed is not None and weighed.action == "later":
            return PolicyDecision("wait", weighed.why, weighed=weighed)
        if why := self._too_soon(size, state):
            return PolicyDecision("wait", why, weighed=weighed)
        why = (
            weighed.why
            if weighed
            else f"{tokens:,} tokens reach the threshold of {threshold:,}"
        )
        return self._skip_if_ineffective(
            size, state, PolicyDecision("compact", why, reason, size.is_full, weighed)
        )

    def _too_soon(self, size: PromptSize, state: ContextState) -> str:
        """Return the reason why a compaction would follow the last one too soon; empty if it may proceed.

        Each one fades detail and rewrites the cache, so it should buy a number of calls while the window has room.
        """
        calls = state.rhythm.since_rewrite
        least = min(
            MAX_CALLS, max(MIN_CALLS, size.budget.window // WINDOW_TOKENS_PER_CALL)
        )
        is_soon = bool(state.compacted) and calls < least
        if (
            not is_soon
            or not self._options.economics
            or size.tokens >= size.delay_limit
        ):
            return ""
        return f"the last compaction was {calls} calls ago; it waits for {least} calls or {size.delay_limit:,} tokens"

    def prepares(
        self, size: PromptSize, state: ContextState, prices: CallPrices
    ) -> bool:
        """Return whether a model should write the next summary in the background: from 80 % of the threshold on."""
        may_prepare = (
            self._options.enabled and self._options.background and not prices.is_journal
        )
        if not may_prepare or size.tokens < size.budget.background_start:
            return False
        weighed = self.weigh(size.when_due, state, prices)
        return (weighed is None or weighed.action == "now") and not self.is_vain(
            size.when_due, state
        )

    def prepares_at_pause(
        self, size: PromptSize, state: ContextState, prices: CallPrices
    ) -> bool:
        """Return whether to write a summary shortly before the cache expires, if every second pause is final."""
        rates = self._rates(prices, size.tokens, state)
        may_prepare = (
            self._options.enabled and self._options.background and not prices.is_journal
        )
        if not may_prepare or rates is None or not rates.caches:
            return False
        weighed = weigh(
            replace(self._case(size, state, prices, rates), cold="the pause")
        )
        pays = weighed.action == "now" and weighed.saves > 2 * weighed.cost
        return pays and not self.is_vain(size.when_due, state)

    def compacts_at_pause(self, size: PromptSize, state: ContextState) -> bool:
        """Return whether to compact shortly before the cache expires."""
        options = self._options
        is_large = size.tokens >= MIN_THRESHOLD_SHARE * size.budget.threshold
        return (
            options.enabled
            and options.idle
            and is_large
            and not self.is_vain(size, state)
        )

    def is_hygiene_due(self, size: PromptSize, messages: int) -> bool:
        """Return whether the gateway should compact before it takes an incoming message."""
        return (
            self._options.enabled
            and messages >= MIN_HYGIENE_MESSAGES
            and size.tokens >= size.budget.hygiene
        )

    def is_vain(self, size: PromptSize, state: ContextState) -> bool:
        """Return whether the last compactions showed that another would save nothing yet."""
        return bool(self._find_obstacle(size, state))

    def _find_obstacle(self, size: PromptSize, state: ContextState) -> str:
        """Return why a compaction would not help yet; empty if it may."""
        if size.tokens < state.retry_above_tokens:
            return "the last compaction could not make it small enough"
        return (
            "automatic compaction is paused"
            if state.pause.holds(size.tokens, self._wall())
            else ""
        )

    def _skip_if_ineffective(
        self, size: PromptSize, state: ContextState, decision: PolicyDecision
    ) -> PolicyDecision:
        why = self._find_obstacle(size, state)
        return (
            PolicyDecision("send", why, weighed=decision.weighed) if why else decision
        )

    # Dollars

    def cold(self, state: ContextState) -> str:
        """Return why the provider's cache does not hold the next prompt; empty if it may."""
        if state.changed:
            return state.changed
        now = self._wall()
        last = state.rhythm.last
        ttl = self.lifetime(state)
        if last is None or not state.rhythm.is_cold(now, ttl=ttl):
            return ""
        return f"{now - last:,.0f} s passed since the last call, and it is kept for {ttl:,.0f} s"

    def lifetime(self, state: ContextState) -> float:
        """Return how many seconds the provider keeps the thread's prefix, as far as calls showed it."""
        return state.rhythm.lifetime or self._options.cache_seconds

    def weigh(
        self, size: PromptSize, state: ContextState, prices: CallPrices
    ) -> Decision | None:
        """Return the cost and the saving of a compaction; None if economics are off or prices unknown."""
        rates = self._rates(prices, size.tokens, state)
        return None if rates is None else weigh(self._case(size, state, prices, rates))

    def price_of_miss(
        self, size: PromptSize, state: ContextState, prices: CallPrices
    ) -> float | None:
        """Return the dollars lost if the provider's cache misses the next prompt; None if prices are unknown."""
        rates = self._rates(prices, size.tokens, state)
        return (
            None
            if rates is None
            else rates.at_read_share(state.rhythm.read_share).miss(size.tokens)
        )

    def _rates(
        self, prices: CallPrices, tokens: int, state: ContextState
    ) -> Rates | None:
        if not self._options.economics:
            return None
        list_prices = prices_for(
            prices.model,
            at=datetime.fromtimestamp(self._wall(), UTC),
            provider=None
            if prices.provider in PROVIDERS_WITHOUT_PRICES
            else prices.provider,
            prompt_tokens=tokens,
        )
        ttl = (
            "1h"
            if prices.marked and self.lifetime(state) >= CACHE_SECONDS["1h"]
            else "5m"
        )
        return Rates.of(
            list_prices, ttl=ttl, marked=prices.marked or bills_writes(prices.model)
        )

    def _case(
        self, size: PromptSize, state: ContextState, prices: CallPrices, rates: Rates
    ) -> CompactionCase:
        budget = size.budget
        writer = prices.summarizer
        summary = budget.summary(max(0, size.tokens - size.fixed - budget.tail))
        remaining = max(
            size.fixed + budget.tail + summary,
            min(state.compacted, budget.compacted_limit),
        )
        return CompactionCase(
            tokens=size.tokens,
            after=min(size.tokens, remaining),
            fixed=size.fixed,
            threshold=budget.threshold,
            limit=size.delay_limit,
            summary=(
                writer.quote(size.tokens, summary)
                if isinstance(writer, PricedSummarizer)
                else 0.0
            )
            or 0.0,
            rates=rates,
            rhythm=state.rhythm,
            cold=self.cold(state),
            is_mid_turn=size.is_mid_turn,
        )


# Messages to the user


def fading_text(count: int, cure: str = "A new conversation starts afresh") -> str:
    return (
        f"This conversation was compacted {count} times; older detail may fade. {cure}; "
        "what must last belongs into the system prompt or a memory."
    )


def fixed_text(fixed: int, window: int, more: str) -> str:
    """Return the notice that system prompt and tools raise the threshold."""
    share = round(100 * fixed / window)
    return (
        f"System prompt and tools alone take {fixed:,} tokens ({share} % of the window), as much as the threshold: the "
        f"history is compacted at 85 % of the window only. {more}"
    )
