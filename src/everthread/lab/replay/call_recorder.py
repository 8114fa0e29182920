"""Record what the calls of one strategy cost and why they missed the cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.costs.prices import compute_cost, prices_for
from everthread.core.types import ModelRequest
from everthread.lab.provider.cache import (
    CACHE_STEP_TOKENS,
    MIN_CACHED_TOKENS,
    CacheUse,
)
from everthread.lab.replay import result
from everthread.lab.replay.cache_lifetime import caches_by_marks, find_cache_seconds
from everthread.lab.replay.result import PlayedCall


@dataclass(slots=True)
class ReplayRecorder:
    """Records the calls of one strategy."""

    ttl: str
    started_at: float
    """The time of the first call, in seconds since 1970, because prices change."""
    calls: list[PlayedCall] = field(default_factory=list)
    _previous_call: tuple[ModelRequest, CacheUse, float] | None = None

    def record_call(
        self,
        request: ModelRequest,
        use: CacheUse,
        output_tokens: int,
        sent_at: float,
        *,
        rewrite_cause: str = "",
    ) -> None:
        """Record a call. `rewrite_cause` says why its history does not extend that of the previous call."""
        cause, missed_tokens = self._find_miss(request, use, sent_at, rewrite_cause)
        self._previous_call = request, use, sent_at
        input_cost, output_cost = price_call(
            request.model, use, output_tokens, timestamp=self.started_at + sent_at
        )
        self.calls.append(
            PlayedCall(
                sent_at,
                len(request.messages),
                use,
                output_tokens=output_tokens,
                input_cost=input_cost,
                output_cost=output_cost,
                miss=cause,
                missed_tokens=missed_tokens,
            )
        )

    def _find_miss(
        self, request: ModelRequest, use: CacheUse, sent_at: float, rewrite_cause: str
    ) -> tuple[result.Cause, int]:
        """Return why the call missed the cache and how many tokens. Of several causes, the most costly counts."""
        if self._previous_call is None:
            return result.FIRST_CAUSE, 0
        previous_request, previous_use, previous_time = self._previous_call
        readable_tokens = _count_readable_tokens(previous_request.model, previous_use)
        if readable_tokens == 0:
            return (result.SHORT_PROMPT_CAUSE if use.read == 0 else ""), 0
        if readable_tokens <= use.read:
            return "", 0
        causes = [
            (previous_request.model != request.model, result.MODEL_CAUSE),
            (
                sent_at - previous_time >= find_cache_seconds(request.model, self.ttl),
                result.EXPIRED_CAUSE,
            ),
            (previous_request.tools != request.tools, result.TOOLS_CAUSE),
            (bool(rewrite_cause), rewrite_cause),
            (previous_request.system != request.system, result.SYSTEM_CAUSE),
        ]
        return next(
            (cause for applies, cause in causes if applies), result.CHANGED_CAUSE
        ), readable_tokens - use.read


def price_call(
    model: str, use: CacheUse, output_tokens: int, *, timestamp: float
) -> tuple[Decimal | None, Decimal | None]:
    """Return dollars for the prompt and for the output, or None if a price is unknown."""
    prices = prices_for(
        model, time=datetime.fromtimestamp(timestamp, UTC), prompt_tokens=use.prompt
    )
    if prices is None:
        return None, None
    prompt_usage = CanonicalUsage(
        input_tokens=use.input,
        cache_read_tokens=use.read,
        cache_write_tokens=use.write,
        cache_write_1h_tokens=use.write_1h,
    )
    return compute_cost(prompt_usage, prices), compute_cost(
        CanonicalUsage(output_tokens=output_tokens), prices
    )


def _count_readable_tokens(model: str, use: CacheUse) -> int:
    """Return how many tokens of a prompt the next call can read from the cache.

    With marks these are the tokens read and written, without marks all but the end of the prompt.
    """
    if caches_by_marks(model):
        return use.read + use.write
    readable_tokens = use.prompt - 2 * CACHE_STEP_TOKENS
    return readable_tokens if readable_tokens >= MIN_CACHED_TOKENS else 0
