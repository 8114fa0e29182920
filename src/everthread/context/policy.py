"""When a context is compacted: one decision, with its reason, for the conversation and the gateway alike.

Whoever asks brings the size of the next prompt and what the thread's calls taught so far, and carries the decision out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, Self, runtime_checkable

from everthread.compaction.summary import Summarizer
from everthread.core.cache_control import CACHE_SECONDS
from everthread.core.pricing import (
    EARLIEST,
    CallPattern,
    CanonicalUsage,
    CompactionCase,
    Decision,
    Rates,
    prices_for,
    weigh,
)
from everthread.core.tokens import budget as defaults
from everthread.core.tokens.budget import Budget, Calibration

COLD = "cold-cache"
"""The reason of a compaction that comes early, because the provider has forgotten the prompt anyway."""
AUTOMATIC = frozenset({"in-loop", "preflight", "hygiene", COLD})
FADING = 2
"""From this compaction of a thread on the user is told that detail may fade."""
GROWTH = 1.10
"""After a compaction that could make nothing smaller, the next automatic one waits for this growth."""
EFFECTIVE = 0.90
"""A compaction is effective if the next reported prompt has at most this share of the one before."""
STRIKES = 2
PAUSE_SECONDS = 300.0
PAUSE_GROWTH = 1.10
HYGIENE_MESSAGES = 4
NEARLY_COLD = 0.8
"""Share of the time a cache is kept after which a summary is written from it, while reading it is still cheap."""
GRACE = 0.25
"""Seconds a turn waits for a model's summary that it could do without."""
SPARE_OUTPUT = 4_096
"""Room for an answer where its cap is not known."""
UNNAMED = frozenset({"auto", "custom", "local"})
"""Providers whose name says nothing about prices."""


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Settings of a context, named as in the configuration."""

    enabled: bool = True
    background: bool = True
    threshold: float = defaults.THRESHOLD
    target_ratio: float = defaults.TARGET_RATIO
    protect_last_n: int = defaults.PROTECT_LAST_N
    threshold_tokens: int | None = None
    user_words: float = defaults.USER_WORDS
    result_chars: int = defaults.RESULT_CHARS
    turn_chars: int = defaults.TURN_CHARS
    preview_chars: int = defaults.PREVIEW_CHARS
    cache_ttl: str = "5m"
    economics: bool = True
    """Weigh in dollars when to compact, where prices are known."""
    max_tokens: int | None = None
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`threshold`, `threshold_tokens` and `target_ratio` of single models, by name or glob."""

    def for_model(self, name: str) -> Self:
        """The settings that hold for a model: its own name counts first, then the longest glob that fits."""
        fitting = [pattern for pattern in self.models if fnmatchcase(name, pattern)]
        chosen = name if name in self.models else max(fitting, key=len, default=None)
        return self if chosen is None else replace(self, models={}, **self.models[chosen])

    def budget(self, window: int, *, fixed: int = 0) -> Budget:
        """What a window allows. Where system prompt and tools (`fixed`) alone reach T, T is 85 % of the window."""
        budget = Budget.for_window(
            window, threshold=self.threshold, target_ratio=self.target_ratio, protect_last_n=self.protect_last_n,
            threshold_tokens=self.threshold_tokens, result_chars=self.result_chars, turn_chars=self.turn_chars,
            preview_chars=self.preview_chars, user_words=self.user_words,
            max_output=None if self.max_tokens is None else min(self.max_tokens, max(window // 4, 1)),
        )  # fmt: skip
        if fixed < budget.threshold or budget.threshold >= budget.hygiene:
            return budget
        return replace(self, threshold=budget.hygiene / window, threshold_tokens=None).budget(window)

    @property
    def cache_seconds(self) -> float:
        """How long a provider keeps what is cached."""
        return CACHE_SECONDS[self.cache_ttl]


# What a thread's calls taught


@dataclass(slots=True)
class CompactionPause:
    """No thrashing: two compactions in a row that hardly help pause the next ones.

    Times are of the wall: another process goes on with them.
    """

    judged: int = 0
    """The last compaction whose effect is known."""
    strikes: int = 0
    since: float | None = None
    tokens: int = 0
    """The prompt's size when it began."""
    relieved: int = 0
    """The prompt before a compaction whose effect is not reported yet."""

    def judge(self, depth: int, before: int, reported: int, now: float) -> bool:
        """Take note of the prompt the provider counted after a compaction; True where a pause begins with it."""
        if depth <= self.judged:
            return False
        self.judged = depth
        self.strikes = 0 if reported <= EFFECTIVE * before else self.strikes + 1
        if self.strikes < STRIKES:
            return False
        self.since, self.tokens = now, reported
        return True

    def report(self, reported: int, now: float) -> bool:
        """The first prompt counted after a compaction of `relieved` tokens; True where a pause begins with it."""
        before, self.relieved = self.relieved, 0
        return before > 0 and self.judge(self.judged + 1, before, reported, now)

    def exempt(self, depth: int) -> None:
        """A compaction after an overflow is not judged by what it brings."""
        self.judged = max(self.judged, depth)

    def holds(self, tokens: int, now: float) -> bool:
        """Whether compactions pause for a prompt of this size."""
        if self.since is None:
            return False
        if tokens < PAUSE_GROWTH * self.tokens and 0 <= now - self.since < PAUSE_SECONDS:
            return True
        self.strikes, self.since, self.tokens = 0, None, 0
        return False

    def dump(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def load(cls, state: Any) -> CompactionPause:
        """From what `dump` gave; whatever is not of that shape is as if it had never been."""
        values = state if isinstance(state, Mapping) else {}
        numbers = {name: values[name] for name in cls.__slots__ if isinstance(values.get(name), int | float)}
        since = numbers.pop("since", None)
        counts = {name: int(value) for name, value in numbers.items()}
        return cls(**counts, since=None if since is None else float(since))


@dataclass(slots=True)
class ContextState:
    """What the calls of one thread taught. It is kept with the thread, so that any process goes on with it."""

    calibration: Calibration = field(default_factory=Calibration)
    rhythm: CallPattern = field(default_factory=CallPattern)
    pause: CompactionPause = field(default_factory=CompactionPause)
    futile: int = 0
    """Below this size no compaction is tried: the last one could make nothing smaller."""
    changed: str = ""
    """What made the next request another than the cache holds, besides the time."""
    compacted: int = 0
    """What the last compaction left, in tokens."""

    def observe(self, usage: CanonicalUsage, now: float, *, ttl: float) -> None:
        """A call was answered. After a compaction its prompt is compared with none."""
        before = self.rhythm.rewritten() if usage.prompt_tokens < self.rhythm.prompt else self.rhythm
        self.rhythm = before.after(usage, now, ttl=ttl)
        self.changed = ""

    def fail(self, tokens: int) -> None:
        """A compaction of a prompt of this size came to nothing: the next one waits until it has grown."""
        self.futile = round(tokens * GROWTH)

    def dump(self) -> dict[str, Any]:
        """What another process goes on with, as JSON values."""
        own = {"pause": self.pause.dump(), "rhythm": self.rhythm.dump(), "compacted": self.compacted}
        return {**self.calibration.dump(), **own}

    @classmethod
    def load(cls, state: Any) -> ContextState:
        fields = state if isinstance(state, Mapping) else {}
        compacted = fields.get("compacted")
        return cls(
            Calibration.load(state), CallPattern.load(fields.get("rhythm")), CompactionPause.load(fields.get("pause")),
            compacted=compacted if isinstance(compacted, int) and compacted > 0 else 0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PromptSize:
    """A prompt as it would be sent, in tokens as the provider counts them."""

    tokens: int
    fixed: int
    """System prompt and tools."""
    budget: Budget
    output: int | None = None
    """The output cap that was asked for."""

    @property
    def hard_limit(self) -> int:
        """From here on a request has no room for its answer: it cannot go without a compaction."""
        window = self.budget.window
        spare = min(self.output or SPARE_OUTPUT, window // 8)
        return max(self.budget.threshold, window - spare - window // 50)

    @property
    def is_full(self) -> bool:
        return self.tokens >= self.hard_limit

    @property
    def when_due(self) -> PromptSize:
        """This prompt, as if it had grown to the threshold."""
        return replace(self, tokens=max(self.tokens, self.budget.threshold))


# Dollars


@runtime_checkable
class PricedSummarizer(Protocol):
    """A summariser that knows what a summary would cost."""

    def quote(self, tokens: int, budget: int) -> float | None:
        """Dollars for a summary of `budget` tokens of a prompt of `tokens`; None where a price is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class CallPrices:
    """Whose prices count: the model's, and the summariser's."""

    model: str
    provider: str
    marked: bool
    """The cache is written where marks ask for it."""
    summarizer: Summarizer

    @property
    def free_summary(self) -> bool:
        """Whether a summary costs nothing: no model has to write it."""
        return not isinstance(self.summarizer, PricedSummarizer) or self.summarizer.quote(1_000, 100) == 0


# The decision


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """What to do before a call, and why."""

    action: Literal["send", "wait", "compact"]
    """Nothing is due; it is due and put off; compact."""
    why: str
    reason: str = ""
    """Of the compaction: `in-loop`, `preflight`, `cold-cache` …"""
    must_wait: bool = False
    """The request cannot go before the compaction is done."""
    weighed: Decision | None = None
    """The dollars; None where economics are off or prices unknown."""

    @property
    def compacts(self) -> bool:
        return self.action == "compact"


class CompactionPolicy:
    """Decides; changes nothing but the state's pause, when that is over."""

    def __init__(self, options: ContextOptions, wall: Callable[[], float]) -> None:
        self._options = options
        self._wall = wall

    def decide(
        self, size: PromptSize, state: ContextState, prices: CallPrices, *, reason: str, ready: bool = False
    ) -> PolicyDecision:
        """Whether to compact before a call of this size. `ready`: a summary is prepared already."""
        tokens, threshold = size.tokens, size.budget.threshold
        if not self._options.enabled:
            return PolicyDecision("send", "compression is disabled")
        weighed = self.weigh(size, state, prices) if tokens >= EARLIEST * threshold else None
        if tokens < threshold:
            if weighed is None or weighed.action != "now":
                return PolicyDecision("send", f"{tokens:,} tokens are below the threshold of {threshold:,}")
            if self._options.background and not ready and not prices.free_summary:
                return PolicyDecision("send", "it would pay now, but somebody would wait for the summary")
            early = PolicyDecision("compact", weighed.why, COLD, weighed=weighed)
            return self._unless_vain(size.when_due, state, early)
        if weighed is not None and weighed.action == "later":
            return PolicyDecision("wait", weighed.why, weighed=weighed)
        why = weighed.why if weighed else f"{tokens:,} tokens reach the threshold of {threshold:,}"
        return self._unless_vain(size, state, PolicyDecision("compact", why, reason, size.is_full, weighed))

    def prepares(self, size: PromptSize, state: ContextState, prices: CallPrices) -> bool:
        """Whether the next summary is written ahead, beside the conversation: from 80 % of the threshold on."""
        if not (self._options.enabled and self._options.background) or size.tokens < size.budget.background_start:
            return False
        weighed = self.weigh(size.when_due, state, prices)
        return (weighed is None or weighed.action == "now") and not self.is_vain(size.when_due, state)

    def prepares_at_pause(self, size: PromptSize, state: ContextState, prices: CallPrices) -> bool:
        """Whether a summary is written shortly before the cache forgets, if every second pause ends for good."""
        rates = self._rates(prices, size.tokens)
        if not (self._options.enabled and self._options.background) or rates is None or not rates.caches:
            return False
        weighed = weigh(replace(self._case(size, state, prices, rates), cold="the pause"))
        pays = weighed.action == "now" and weighed.saves > 2 * weighed.cost
        return pays and not self.is_vain(size.when_due, state)

    def is_hygiene_due(self, size: PromptSize, messages: int) -> bool:
        """The gateway's safety net, before it takes an incoming message."""
        return self._options.enabled and messages >= HYGIENE_MESSAGES and size.tokens >= size.budget.hygiene

    def is_vain(self, size: PromptSize, state: ContextState) -> bool:
        """Whether the last compactions showed that another would bring nothing yet."""
        return bool(self._obstacle(size, state))

    def _obstacle(self, size: PromptSize, state: ContextState) -> str:
        """Why a compaction would bring nothing yet; empty where it may."""
        if size.tokens < state.futile:
            return "the last compaction could make nothing smaller"
        return "automatic compaction is paused" if state.pause.holds(size.tokens, self._wall()) else ""

    def _unless_vain(self, size: PromptSize, state: ContextState, decision: PolicyDecision) -> PolicyDecision:
        why = self._obstacle(size, state)
        return PolicyDecision("send", why, weighed=decision.weighed) if why else decision

    # Dollars

    def cold(self, state: ContextState) -> str:
        """Why the provider's cache does not hold the next prompt; empty where it may."""
        if state.changed:
            return state.changed
        now, last, ttl = self._wall(), state.rhythm.last, self._options.cache_seconds
        if last is None or not state.rhythm.is_cold(now, ttl=ttl):
            return ""
        return f"{now - last:,.0f} s passed since the last call, and it is kept for {ttl:,.0f} s"

    def weigh(self, size: PromptSize, state: ContextState, prices: CallPrices) -> Decision | None:
        """What a compaction costs and saves; None where economics are off or prices unknown."""
        rates = self._rates(prices, size.tokens)
        return None if rates is None else weigh(self._case(size, state, prices, rates))

    def price_of_miss(self, size: PromptSize, state: ContextState, prices: CallPrices) -> float | None:
        """Dollars lost if the provider's cache does not hold the next prompt; None where prices are unknown."""
        rates = self._rates(prices, size.tokens)
        return None if rates is None else rates.at_read_share(state.rhythm.read_share).miss(size.tokens)

    def _rates(self, prices: CallPrices, tokens: int) -> Rates | None:
        if not self._options.economics:
            return None
        list_prices = prices_for(
            prices.model,
            at=datetime.fromtimestamp(self._wall(), UTC),
            provider=None if prices.provider in UNNAMED else prices.provider,
            prompt_tokens=tokens,
        )
        return Rates.of(list_prices, ttl=self._options.cache_ttl, marked=prices.marked)

    def _case(self, size: PromptSize, state: ContextState, prices: CallPrices, rates: Rates) -> CompactionCase:
        budget, writer = size.budget, prices.summarizer
        summary = budget.summary(max(0, size.tokens - size.fixed - budget.tail))
        remaining = max(size.fixed + budget.tail + summary, min(state.compacted, budget.compacted_limit))
        return CompactionCase(
            tokens=size.tokens,
            after=min(size.tokens, remaining),
            fixed=size.fixed,
            threshold=budget.threshold,
            limit=max(budget.threshold, min(budget.hygiene, size.hard_limit)),
            summary=(writer.quote(size.tokens, summary) if isinstance(writer, PricedSummarizer) else 0.0) or 0.0,
            rates=rates,
            rhythm=state.rhythm,
            cold=self.cold(state),
        )


# What a person is told


def paused_text(tokens: int) -> str:
    return (
        f"Automatic compaction is paused: two in a row made the prompt hardly smaller ({tokens:,} tokens). It resumes "
        "when the history has grown by a tenth or after five minutes."
    )


def fading_text(count: int, cure: str = "A new conversation starts afresh") -> str:
    return (
        f"This conversation was compacted {count} times; older detail may fade. {cure}; "
        "what must last belongs into the system prompt or a memory."
    )


def fixed_text(fixed: int, window: int, more: str) -> str:
    """System prompt and tools take so much that the threshold is raised."""
    share = round(100 * fixed / window)
    return (
        f"System prompt and tools alone take {fixed:,} tokens ({share} % of the window), as much as the threshold: the "
        f"history is compacted at 85 % of the window only. {more}"
    )
