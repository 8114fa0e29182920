"""What providers teach: how large a prompt and an answer a model takes.

A stated limit is believed where the error is one of an overflow and what was sent exceeds it; never below 1,000 tokens
nor below a prompt that succeeded lately. Without a statement the next lower of a few usual windows is tried, for this
process only.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everthread.core.provider_errors import ErrorVerdict
from everthread.store.store import Store

USUAL_WINDOWS = (128_000, 64_000, 32_000, 16_000, 8_000)
SMALLEST_WINDOW = 1_000
FRESH = 30.0
"""Seconds until the store is asked again what other processes learnt."""
MOST_KEYS = 10_000
_STATUSES = frozenset({400, 413, 422, 500})
"""With these a provider refuses a prompt for its size; a stream that begins with an error has 200."""
_OVERFLOW_CODE = re.compile(r"context|length|too_?(?:long|large|big|many)|exceed|max|token|size|^\d+$", re.IGNORECASE)
_PLAIN_CODES = frozenset({"", "invalid_request_error", "bad_request", "badrequesterror", "error", "api_error", "400"})
_FIELDS = re.compile(r"^(?:messages|input|prompt|contents|max_\w+)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LimitKey:
    """For whom and what a limit holds. `headers`: those that change the window, in one text."""

    tenant: str
    base_url: str
    model: str
    headers: str = ""
    credential: str = field(default="", compare=False)
    """A digest of the one that is used: what a second one met holds for all tenants."""


@dataclass(frozen=True, slots=True)
class LearntWindow:
    """A window that is another than was thought."""

    tokens: int
    source: str
    stored: bool


@dataclass(slots=True)
class _Known:
    asked: float = float("-inf")
    window: int | None = None
    output: int | None = None
    succeeded: int = 0
    guessed: int | None = None


class ModelLimits:
    """Learnt windows and output caps, in memory and in the store."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[LimitKey, _Known] = OrderedDict()

    async def window(self, key: LimitKey, stated: int) -> int:
        """The smallest of what is stated elsewhere, learnt and guessed."""
        known = await self._fresh(key)
        return min(limit for limit in (stated, known.window, known.guessed) if limit is not None)

    async def output_cap(self, key: LimitKey) -> int | None:
        """The largest answer the model was found to allow; None where nothing is known."""
        return (await self._fresh(key)).output

    async def learn_window(
        self,
        key: LimitKey,
        verdict: ErrorVerdict,
        window: int,
        sent: int,
        *,
        believed: bool = True,
    ) -> LearntWindow | None:
        """After a prompt that was too long: what is stated is kept, else the next usual window is guessed.

        `sent`: the tokens of what was sent; `believed`: whether status and code are those of an overflow.
        """
        known, limit = await self._fresh(key), verdict.context_limit
        if limit is not None:
            least = max(SMALLEST_WINDOW, known.succeeded)
            exceeds = max(sent, verdict.input_tokens or 0) > limit
            if not believed or limit >= window or limit < least or not exceeds:
                return None
            await self._store.learn_limit(
                key.base_url, key.model, limit, source=verdict.reason, headers=key.headers, tenant=key.tenant,
                credential=key.credential,
            )  # fmt: skip
            known.window = limit
            return LearntWindow(limit, "the provider stated it", stored=True)
        refused = min(window, sent) if sent else window
        lower = next((usual for usual in USUAL_WINDOWS if usual < refused and usual > known.succeeded), None)
        if lower is None:
            return None
        known.guessed = lower
        return LearntWindow(lower, "a guess: the provider stated no limit", stored=False)

    async def learn_cap(self, key: LimitKey, cap: int, source: str) -> None:
        """A lower output cap was taken: the next requests ask for no more at once."""
        known = await self._fresh(key)
        if known.output is None or cap < known.output:
            known.output = cap
            await self._store.learn_limit(
                key.base_url, key.model, cap, source=source, headers=key.headers, tenant=key.tenant,
                credential=key.credential, kind="output",
            )  # fmt: skip

    async def succeed(self, key: LimitKey, prompt: int) -> bool:
        """A prompt of this size was taken; whether it ended a smaller limit."""
        known = await self._fresh(key)
        known.succeeded = max(known.succeeded, prompt)
        await self._store.record_success(key.base_url, key.model, prompt, headers=key.headers, tenant=key.tenant)
        if known.guessed is not None and prompt > known.guessed:
            known.guessed = None
        if known.window is None or prompt <= known.window:
            return False
        known.window = None
        return True

    async def _fresh(self, key: LimitKey) -> _Known:
        known = self._known.setdefault(key, _Known())
        self._known.move_to_end(key)
        if len(self._known) > MOST_KEYS:
            self._known.popitem(last=False)
        if self._clock() - known.asked > FRESH:
            found = await self._store.limits_for(key.base_url, key.model, headers=key.headers, tenant=key.tenant)
            known.window = None if found.window is None else found.window.limit
            known.output = None if found.output is None else found.output.limit
            known.succeeded = max(known.succeeded, found.succeeded)
            known.asked = self._clock()
        return known


def is_overflow_error(status: int | None, body: Any) -> bool:
    """Whether status and code are those of an overflow: an error about something else may quote anything.

    A value the client sent, such as a role or a model's name, can stand in an error's text and say what it likes.
    """
    if status is not None and status >= 300 and status not in _STATUSES:
        return False
    stated = _error_fields(body)
    code, field = stated.get("code"), stated.get("param")
    if isinstance(field, str) and field and not _FIELDS.match(field):
        return False
    named = [value for value in (code, stated.get("type")) if isinstance(value, str | int)]
    return all(str(value).lower() in _PLAIN_CODES or _OVERFLOW_CODE.search(str(value)) for value in named)


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
