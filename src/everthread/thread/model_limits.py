"""The limits of models, learnt from refusals and successes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.core.recent_dict import RecentDict
from everthread.store.records import LimitKey, LimitKind
from everthread.store.store import Store
from everthread.thread.recovery import MIN_OUTPUT_CAP, ProviderRefusal

USUAL_WINDOWS = (128_000, 64_000, 32_000, 16_000, 8_000)
MIN_WINDOW = 1_000
REFRESH_SECONDS = 30.0
"""Seconds after which limits are read from the store again, because other processes learn some too."""
MAX_CACHED_KEYS = 10_000
_OVERFLOW_STATUSES = frozenset({400, 413, 422, 500})
"""Statuses of a refusal for size, besides those below 300, which a stream has that begins with an error."""
_OVERFLOW_ERROR_CODE_PATTERN = re.compile(
    r"context|length|too_?(?:long|large|big|many)|exceed|max|token|size|^\d+$",
    re.IGNORECASE,
)
_GENERIC_ERROR_CODE_PATTERN = re.compile(
    r"^(?:(?:api_)?error)?$|invalid.?(?:request|argument)|bad.?request", re.IGNORECASE
)
"""Codes that only say that the request is at fault."""
_SIZE_FIELDS_PATTERN = re.compile(
    r"^(?:messages|input|prompt|contents|max_\w+)(?:_tokens)?\b", re.IGNORECASE
)
REPORTED_MARGIN_DIVISOR = 50
UNREPORTED_MARGIN_DIVISOR = 3
"""The margin to keep free is the prompt's tokens, and those not yet counted by the provider, divided by these."""
MIN_CONFIRMING_SHARE = 0.25
"""Minimum share of a guessed window that a successful prompt must have to confirm the guess."""


@dataclass(frozen=True, slots=True)
class LearntWindow:
    """A window that differs from the assumed one."""

    tokens: int
    source: str
    is_stored: bool


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of a model, as known for one call."""

    window: int
    """The smallest of the assumed, the learnt and the guessed window."""
    learnt_window: int | None = None
    """The window that a provider stated or a success confirmed; prompt and output share it."""
    output_cap: int | None = None
    """The largest output that the provider stated for the model."""

    def compute_max_output(self, prompt_tokens: int, *, unreported_tokens: int) -> int | None:
        """Return the largest output cap that fits beside a prompt in a learnt window, or None without one.

        `unreported_tokens`: the prompt's tokens that are estimated, because the provider has not counted them yet. At
        most half of the remaining tokens are kept free for errors of the estimate: a refusal costs less than an answer
        that is cut off.
        """
        if not self.learnt_window:
            return None
        free_tokens = self.learnt_window - prompt_tokens
        reported_margin = prompt_tokens // REPORTED_MARGIN_DIVISOR
        margin = reported_margin + unreported_tokens // UNREPORTED_MARGIN_DIVISOR
        return max(free_tokens - min(margin, free_tokens // 2), MIN_OUTPUT_CAP)


@dataclass(slots=True)
class _CachedLimits:
    """The limits learnt for one model, and the time at which they were read from the store."""

    read_at: float = float("-inf")
    window: int | None = None
    output_cap: int | None = None
    largest_success: int = 0
    guessed_window: int | None = None


class ModelLimits:
    """Learnt windows and output caps, in memory and in the store."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._limits: RecentDict[LimitKey, _CachedLimits] = RecentDict(MAX_CACHED_KEYS)

    async def load(self, key: LimitKey, assumed_window: int) -> CallLimits:
        """Return the limits for the next call. `assumed_window`: the model's window if nothing was learnt."""
        limits = await self._load_limits(key)
        windows = [limit for limit in (limits.window, limits.guessed_window) if limit is not None]
        return CallLimits(
            min([assumed_window, *windows]),
            learnt_window=limits.window,
            output_cap=limits.output_cap,
        )

    async def learn_refusal(
        self,
        key: LimitKey,
        verdict: ErrorVerdict,
        refusal: ProviderRefusal,
        *,
        assumed_window: int,
        tokens: int,
        output_cap: int | None,
    ) -> LearntWindow | None:
        """Learn from the refusal of a prompt of `tokens`; return the window if it differs from the assumed one."""
        if verdict.kind == "payload_too_large":
            return None
        is_credible = is_overflow_error(refusal.status, refusal.body)
        if verdict.kind == "prompt_too_long":
            return await self.learn_window(
                key, verdict, assumed_window, tokens, is_credible=is_credible
            )
        if verdict.output_limit is not None and (is_credible or _names_output_cap(refusal.body)):
            await self.learn_cap(key, verdict.output_limit, verdict.reason)
        if verdict.context_limit is None:
            return None
        total_tokens = max(tokens, verdict.input_tokens or 0) + (output_cap or 0)
        return await self.learn_window(
            key, verdict, assumed_window, total_tokens, is_credible=is_credible, is_shared=True
        )

    async def learn_window(
        self,
        key: LimitKey,
        verdict: ErrorVerdict,
        assumed_window: int,
        sent_tokens: int,
        *,
        is_credible: bool = True,
        is_shared: bool = False,
    ) -> LearntWindow | None:
        """Store the limit that a refusal for size states; if it states none, guess the next smaller usual window.

        `is_credible`: whether status and code are those of an overflow. `is_shared`: whether the limit includes the
        output, so that it is useful even if it equals the known window.
        """
        limits = await self._load_limits(key)
        limit = verdict.context_limit
        if limit is not None:
            min_limit = max(MIN_WINDOW, limits.largest_success)
            exceeds_limit = max(sent_tokens, verdict.input_tokens or 0) > limit
            is_plausible = is_credible and limit >= min_limit and exceeds_limit
            is_useful = limit < assumed_window or is_shared
            if not is_plausible or not is_useful:
                return None
            await self._store_limit(key, limit, verdict.reason, "window")
            limits.window = limit
            if limit >= assumed_window:
                return None
            return LearntWindow(limit, "the provider stated it", is_stored=True)
        refused_size = min(assumed_window, sent_tokens) if sent_tokens else assumed_window
        for usual_window in USUAL_WINDOWS:
            if limits.largest_success < usual_window < refused_size:
                limits.guessed_window = usual_window
                reason = "a guess: the provider stated no limit"
                return LearntWindow(usual_window, reason, is_stored=False)
        return None

    async def learn_cap(self, key: LimitKey, cap: int, source: str) -> None:
        """Store the largest output that a model allows, as a cap for the next requests."""
        limits = await self._load_limits(key)
        if limits.output_cap is None or cap < limits.output_cap:
            limits.output_cap = cap
            await self._store_limit(key, cap, source, "output")

    async def _store_limit(self, key: LimitKey, tokens: int, source: str, kind: LimitKind) -> None:
        """Store a learnt limit, so that other processes use it."""
        await self._store.limits.learn_limit(key, tokens, source=source, kind=kind)

    async def record_success(self, key: LimitKey, prompt_tokens: int) -> bool:
        """Record that a prompt of this size was accepted; return whether this removed a smaller limit."""
        limits = await self._load_limits(key)
        limits.largest_success = max(limits.largest_success, prompt_tokens)
        await self._store.limits.record_success(key, prompt_tokens)
        await self._check_guess(key, limits, prompt_tokens)
        if limits.window is None or prompt_tokens <= limits.window:
            return False
        limits.window = None
        return True

    async def _check_guess(self, key: LimitKey, limits: _CachedLimits, prompt_tokens: int) -> None:
        """Drop a guessed window after a larger prompt succeeded; store it after one of about its size succeeded."""
        guess = limits.guessed_window
        if guess is None or prompt_tokens < MIN_CONFIRMING_SHARE * guess:
            return
        limits.guessed_window = None
        if prompt_tokens <= guess and (limits.window is None or guess < limits.window):
            await self._store_limit(
                key, guess, "found by stepping down, confirmed by a success", "window"
            )
            limits.window = guess

    async def _load_limits(self, key: LimitKey) -> _CachedLimits:
        """Return the limits of a key, read from the store if they are not fresh."""
        limits = self._limits.get(key) or _CachedLimits()
        self._limits[key] = limits
        if self._clock() - limits.read_at > REFRESH_SECONDS:
            stored_limits = await self._store.limits.load_limits(key)
            limits.window = None if stored_limits.window is None else stored_limits.window.limit
            limits.output_cap = None if stored_limits.output is None else stored_limits.output.limit
            limits.largest_success = max(
                limits.largest_success, stored_limits.largest_accepted_tokens
            )
            limits.read_at = self._clock()
        return limits


def is_overflow_error(status: int | None, body: Any) -> bool:
    """Return whether the status and code can mean an overflow.

    The text of an error does not count: it may quote values from the client, such as a role or a model's name.
    """
    if status is not None and status >= 300 and status not in _OVERFLOW_STATUSES:
        return False
    error_fields = _read_error_fields(body)
    code = error_fields.get("code")
    field = error_fields.get("param")
    if isinstance(field, str) and field and not _SIZE_FIELDS_PATTERN.match(field):
        return False
    codes = [value for value in (code, error_fields.get("type")) if isinstance(value, str | int)]
    return all(
        _GENERIC_ERROR_CODE_PATTERN.search(str(value))
        or _OVERFLOW_ERROR_CODE_PATTERN.search(str(value))
        for value in codes
    )


def _names_output_cap(body: Any) -> bool:
    """Return whether the error's `param` is the output cap."""
    field = _read_error_fields(body).get("param")
    return isinstance(field, str) and field.startswith("max_")


def _read_error_fields(body: Any) -> dict[str, Any]:
    if isinstance(body, bytes | str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return {}
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return {}
    error_object = body.get("error")
    return error_object if isinstance(error_object, dict) else body
