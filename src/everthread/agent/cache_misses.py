"""The log of calls that were not read from the provider's cache, and why; `/why` shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from everthread.core.caching.cache_lifetimes import CACHE_SECONDS
from everthread.core.caching.shared_prefix import compare_prefixes
from everthread.core.types import ModelRequest
from everthread.thread import events
from everthread.thread.events import Event

MIN_CACHED_TOKENS = 1_024
"""The smallest prompt that a provider caches."""


@dataclass(frozen=True, slots=True)
class CallUsage:
    """A request to the main model, and the tokens read from the cache."""

    request: ModelRequest
    session: str
    time: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    diagnosis: str = ""
    """Why the cache missed, as the provider says."""


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """A call whose shared prefix was not read from the cache."""

    time: float
    expected_tokens: int
    cached_tokens: int
    reason: str
    is_from_provider: bool
    """Whether the provider gave the reason; otherwise it was inferred here."""


class CacheMissLog:
    """A listener that records cache misses for `/why`."""

    def __init__(
        self, clock: Callable[[], float] = time.time, *, ttl: float = CACHE_SECONDS["5m"]
    ) -> None:
        self._clock = clock
        self._ttl = ttl
        self._pending_call: CallUsage | None = None
        self._last_call: CallUsage | None = None
        self._has_ever_cached = False
        self.request_count = 0
        """Requests sent to the main model."""
        self.reported_call_count = 0
        """Requests whose usage the provider reported."""
        self.last_miss: CacheMiss | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.RequestReady):
            self.request_count += 1
            messages = event.request.messages[: len(event.request.messages) - event.injected_count]
            request = ModelRequest(
                event.request.model, messages, event.request.system, event.request.tools
            )
            self._pending_call = CallUsage(request, event.session, self._clock())
        elif (
            isinstance(event, events.UsageRecorded)
            and event.task == "main"
            and not event.is_estimated
            and self._pending_call
        ):
            usage = event.usage
            self._record_call(
                replace(
                    self._pending_call,
                    prompt_tokens=usage.prompt_tokens,
                    cached_tokens=usage.cache_read_tokens,
                    diagnosis=usage.cache_miss,
                )
            )

    def _record_call(self, current: CallUsage) -> None:
        previous = self._last_call
        self._last_call = current
        self.reported_call_count += 1
        self._has_ever_cached = self._has_ever_cached or current.cached_tokens > 0
        if (
            previous is not None
            and previous.prompt_tokens >= MIN_CACHED_TOKENS
            and current.cached_tokens < previous.prompt_tokens // 2
        ):
            self.last_miss = CacheMiss(
                current.time,
                previous.prompt_tokens,
                current.cached_tokens,
                current.diagnosis or self._explain_miss(previous, current),
                is_from_provider=bool(current.diagnosis),
            )

    def _explain_miss(self, previous: CallUsage, current: CallUsage) -> str:
        if previous.request.model != current.request.model:
            return f"another model: {previous.request.model} became {current.request.model}"
        if previous.session != current.session:
            return "the history was rewritten, or another session was entered: only tools and system prompt are shared"
        difference = compare_prefixes(previous.request, current.request)
        if not difference.is_extension:
            return f"the request no longer begins like the one before: {difference}"
        if current.time - previous.time > self._ttl:
            seconds = current.time - previous.time
            return f"{seconds:,.0f} s passed since the call before; a cached prefix is kept for {self._ttl:,.0f} s"
        if not self._has_ever_cached:
            return "the provider has reported no cached tokens so far: it may not cache, or not report it"
        return "the request extends the one before byte for byte; the provider dropped its cache by itself"
