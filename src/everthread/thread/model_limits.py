"""The limits of models, learnt from refusals and successes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.core.recent_dict import RecentDict
from everthread.store.records import LimitKind
from everthread.store.store import Store

USUAL_WINDOWS = (128_000, 64_000, 32_000, 16_000, 8_000)
MIN_WINDOW = 1_000
FRESH_SECONDS = 30.0
"""Seconds after which limits learnt by other processes are read from the store again."""
MAX_KEYS = 10_000
_STATUSES = frozenset({400, 413, 422, 500})
"""Statuses of a refusal for size; a stream that begins with an error has 200."""
_OVERFLOW_CODE = re.compile(
    r"context|length|too_?(?:long|large|big|many)|exceed|max|token|size|^\d+$",
    re.IGNORECASE,
)
_GENERIC_CODE = re.compile(
    r"^(?:(?:api_)?error)?$|invalid.?(?:request|argument)|bad.?request", re.IGNORECASE
)
"""A generic code, which only says that the request is at fault."""
_FIELDS = re.compile(
    r"^(?:messages|input|prompt|contents|max_\w+)(?:_tokens)?\b", re.IGNORECASE
)
CONFIRMING_SHARE = 0.25
"""A success of at least this share of a guessed window confirms it: a request compacted for it is about that size."""


@dataclass(frozen=True, slots=True)
class LimitKey:
    """The tenant, address and model that a limit holds for. `headers`: those that change the window, in one text."""

    tenant: str
    base_url: str
    model: str
    headers: str = ""
    credential: str = field(default="", compare=False)
    """A digest of the credential in use: a limit that a second credential also met holds for all tenants."""


@dataclass(frozen=True, slots=True)
class LearntWindow:
    """A window that differs from the assumed one."""

    tokens: int
    source: str
    stored: bool


@dataclass(slots=True)
class _LearntLimits:
    read_at: float = float("-inf")
    window: int | None = None
    output: int | None = None
    succeeded: int = 0
    guessed: int | None = None


class ModelLimits:
    """Learnt windows and output caps, in memory and in the store."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._limits: RecentDict[LimitKey, _LearntLimits] = RecentDict(MAX_KEYS)

    async def window(self, key: LimitKey, stated: int) -> int:
        """Return the smallest of the stated, the learnt and the guessed window."""
        limits = await self._fresh(key)
        return min(
            limit
            for limit in (stated, limits.window, limits.guessed)
            if limit is not None
        )

    async def learnt_window(self, key: LimitKey) -> int | None:
        """Return the window that a provider stated or a success confirmed; None if neither did."""
        return (await self._fresh(key)).window

    async def output_cap(self, key: LimitKey) -> int | None:
        """Return the largest answer the model was found to allow; None if unknown."""
        return (await self._fresh(key)).output

    async def learn_refusal(
        self,
        key: LimitKey,
        verdict: ErrorVerdict,
        *,
        window: int,
        tokens: int,
        output_cap: int | None,
        status: int | None,
        body: Any,
    ) -> LearntWindow | None:
        """Learn from the refusal of a prompt of `tokens`; return the window if it is another than was thought."""
        if verdict.kind == "payload_too_large":
            return None
        believed = is_overflow_error(status, body)
        if verdict.kind == "prompt_too_long":
            return await self.learn_window(
                key, verdict, window, tokens, believed=believed
            )
        if verdict.output_limit is not None and (believed or _names_output_cap(body)):
            await self.learn_cap(key, verdict.output_limit, verdict.reason)
        if verdict.context_limit is None:
            return None
        total = max(tokens, verdict.input_tokens or 0) + (output_cap or 0)
        return await self.learn_window(
            key, verdict, window, total, believed=believed, is_shared=True
        )

    async def learn_window(
        self,
        key: LimitKey,
        verdict: ErrorVerdict,
        window: int,
        sent: int,
        *,
        believed: bool = True,
        is_shared: bool = False,
    ) -> LearntWindow | None:
        """Keep the limit that a refusal for size states, or else guess the next usual window.

        `sent`: the tokens that were sent; `believed`: status and code are those of an overflow; `is_shared`: output
        counts too, so that the limit is useful even if it equals the known window.
        """
        limits = await self._fresh(key)
        limit = verdict.context_limit
        if limit is not None:
            least = max(MIN_WINDOW, limits.succeeded)
            exceeds = max(sent, verdict.input_tokens or 0) > limit
            if (
                not believed
                or limit < least
                or not exceeds
                or (limit >= window and not is_shared)
            ):
                return None
            await self._store_limit(key, limit, verdict.reason, "window")
            limits.window = limit
            return (
                LearntWindow(limit, "the provider stated it", stored=True)
                if limit < window
                else None
            )
        refused = min(window, sent) if sent else window
        lower = next(
            (
                usual
                for usual in USUAL_WINDOWS
                if usual < refused and usual > limits.succeeded
            ),
            None,
        )
        if lower is None:
            return None
        limits.guessed = lower
        return LearntWindow(
            lower, "a guess: the provider stated no limit", stored=False
        )

    async def learn_cap(self, key: LimitKey, cap: int, source: str) -> None:
        """Store the largest output that a model allows, as a cap for the next requests."""
        limits = await self._fresh(key)
        if limits.output is None or cap < limits.output:
            limits.output = cap
            await self._store_limit(key, cap, source, "output")

    async def _store_limit(
        self, key: LimitKey, tokens: int, source: str, kind: LimitKind
    ) -> None:
        await self._store.learn_limit(
            key.base_url,
            key.model,
            tokens,
            source=source,
            headers=key.headers,
            tenant=key.tenant,
            credential=key.credential,
            kind=kind,
        )

    async def succeed(self, key: LimitKey, prompt: int) -> bool:
        """Record that a prompt of this size was accepted; return whether it ended a smaller limit."""
        limits = await self._fresh(key)
        limits.succeeded = max(limits.succeeded, prompt)
        await self._store.record_success(
            key.base_url, key.model, prompt, headers=key.headers, tenant=key.tenant
        )
        await self._settle_guess(key, limits, prompt)
        if limits.window is None or prompt <= limits.window:
            return False
        limits.window = None
        return True

    async def _settle_guess(
        self, key: LimitKey, limits: _LearntLimits, prompt: int
    ) -> None:
        """Drop a guessed window after a success above it; keep it like a stated one after a success of its size."""
        guess = limits.guessed
        if guess is None or prompt < CONFIRMING_SHARE * guess:
            return
        limits.guessed = None
        if prompt <= guess and (limits.window is None or guess < limits.window):
            await self._store_limit(
                key, guess, "found by stepping down, confirmed by a success", "window"
            )
            limits.window = guess

    async def _fresh(self, key: LimitKey) -> _LearntLimits:
        limits = self._limits.get(key) or _LearntLimits()
        self._limits[key] = limits
        if self._clock() - limits.read_at > FRESH_SECONDS:
            stored = await self._store.limits_for(
                key.base_url, key.model, headers=key.headers, tenant=key.tenant
            )
            limits.window = None if stored.window is None else stored.window.limit
            limits.output = None if stored.output is None else stored.output.limit
            limits.succeeded = max(limits.succeeded, stored.succeeded)
            limits.read_at = self._clock()
        return limits


def is_overflow_error(status: int | None, body: Any) -> bool:
    """Return whether the status and code can mean an overflow; the text of another error may quote anything.

    A value from the client, such as a role or a model's name, can appear in an error's text with any wording.
    """
    if status is not None and status >= 300 and status not in _STATUSES:
        return False
    stated = _error_fields(body)
    code = stated.get("code")
    field = stated.get("param")
    if isinstance(field, str) and field and not _FIELDS.match(field):
        return False
    named = [
        value for value in (code, stated.get("type")) if isinstance(value, str | int)
    ]
    return all(
        _GENERIC_CODE.search(str(value)) or _OVERFLOW_CODE.search(str(value))
        for value in named
    )


def _names_output_cap(body: Any) -> bool:
    """Return whether the error's `param` is the output cap."""
    field = _error_fields(body).get("param")
    return isinstance(field, str) and field.startswith("max_")


def _error_fields(body: Any) -> dict[str, Any]:
    if isinstance(body, bytes | str):
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return {}
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return {}
    inner = body.get("error")
    return inner if isinstance(inner, dict) else body
