"""After a refusal: what to try next, as a step with its reason, and what is learnt of the model's limits.

At most three compactions for one request, each stronger than the one before; a smaller output cap at most three times.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from everthread.compaction.pruning import prune
from everthread.compaction.summary import CompactionLevel
from everthread.core.messages import Message, edit_results, results_of, with_text
from everthread.core.outputs import ToStore, to_store
from everthread.core.provider_errors import ErrorVerdict
from everthread.core.transcript import latest_user_index
from everthread.store.models import LimitKind
from everthread.store.store import Store

# --- what to try ------------------------------------------------------------------------------------------------------


ATTEMPTS = (CompactionLevel.NORMAL, CompactionLevel.HALF_TAIL, CompactionLevel.LATEST_GROUP)
MOST_CAPS = 3
SMALLEST_CAP = 256
"""With less left for the answer, the prompt is what is too long."""
BIG_RESULT = 4_000
"""Characters; where bytes are the trouble, results beyond this are stored and cited."""
TOO_LARGE = frozenset({"prompt_too_long", "max_tokens_too_large", "payload_too_large"})
"""The kinds of refusal a smaller request may mend."""
NEAR_LIMIT = 0.85
"""From this share of the window on a refusal without a word is one for size."""


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """What to do about a refused request."""

    action: Literal["lower_cap", "slim", "compact", "give_up"]
    text: str = ""
    """For a person."""
    attempt: int = 1
    cap: int | None = None
    level: CompactionLevel = CompactionLevel.NORMAL


GIVE_UP = RecoveryStep("give_up")


@dataclass(slots=True)
class RecoveryAttempts:
    """What was tried for one request."""

    compactions: int = 0
    done: int = 0
    """Compactions that made the request smaller."""
    caps: int = 0
    cap: int | None = None
    """The output cap for the next try."""
    slimmed: bool = False

    def next_step(
        self, verdict: ErrorVerdict, *, output_cap: int | None, enabled: bool, thinking: int | None = None
    ) -> RecoveryStep:
        """What to try now. Asked again for the same refusal, it gives the next step.

        `output_cap`: that of the request; `thinking`: the budget the client set, which no cap may fall below.
        """
        if verdict.kind not in TOO_LARGE:
            return GIVE_UP
        if verdict.kind == "max_tokens_too_large":
            self.caps += 1
            room = output_room(verdict, self.cap or output_cap, thinking)
            if room is not None and self.caps <= MOST_CAPS:
                self.cap = room
                return RecoveryStep("lower_cap", f"asked for at most {room:,} tokens of output", self.caps, room)
        if not enabled:
            return GIVE_UP
        if verdict.kind == "payload_too_large" and not self.slimmed:
            self.slimmed = True
            return RecoveryStep("slim", "dropped old images and stored big results")
        if self.compactions == len(ATTEMPTS):
            return GIVE_UP
        level = ATTEMPTS[self.compactions]
        self.compactions += 1
        words = f"compaction, {level.name.lower().replace('_', ' ')}"
        return RecoveryStep("compact", words, self.compactions, level=level)

    @property
    def failure_text(self) -> str:
        """What was tried, in a sentence for a person."""
        if not self.done:
            return "and nothing in it could be made smaller"
        return f"even after {self.done} compaction{'s' if self.done > 1 else ''}"


def output_room(verdict: ErrorVerdict, output_cap: int | None, thinking: int | None = None) -> int | None:
    """The output cap to try next, after one that was too large; None where too little is left to be of use."""
    room = verdict.available_output
    if room is None and verdict.context_limit and verdict.input_tokens:
        room = verdict.context_limit - verdict.input_tokens
    if room is None:
        room = output_cap // 2 if output_cap else 0
    return room if room >= max(SMALLEST_CAP, (thinking or 0) + 1) else None


def lasting_cap(verdict: ErrorVerdict, cap: int) -> int:
    """What to remember of a cap that was lowered.

    Where only this prompt left no room for it, that is a quarter of the window, which is kept free for answers anyway:
    the room that one long prompt left says nothing of the next.
    """
    return max(cap, verdict.context_limit // 4) if verdict.context_limit else cap


def slim_messages(bodies: Sequence[Message], preview_chars: int) -> tuple[list[Message], list[ToStore]]:
    """The same messages in fewer bytes, and what must be stored first; those that stay as they are are the same."""
    latest = latest_user_index(bodies)
    slim = prune(bodies, protect_from=len(bodies) if latest is None else latest, results=False)
    stored: list[ToStore] = []
    return [_cite_results(index, message, preview_chars, stored) for index, message in enumerate(slim)], stored


def _cite_results(index: int, message: Message, preview_chars: int, stored: list[ToStore]) -> Message:
    if not any(len(result.text) > BIG_RESULT for result in results_of(message)):
        return message

    def replaced(result: Any, _holder: object) -> Any:
        big = len(result.text) > BIG_RESULT
        item = to_store(index, result.call_id, result.text, preview_chars=preview_chars) if big else None
        if item is None:
            return result.content
        stored.append(item)
        return with_text(result.content, item.replacement)

    return edit_results(message, replaced)


# --- what it taught ---------------------------------------------------------------------------------------------------


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
        self._limits: OrderedDict[LimitKey, _LearntLimits] = OrderedDict()

    async def window(self, key: LimitKey, stated: int) -> int:
        """The smallest of what is stated elsewhere, learnt and guessed."""
        limits = await self._fresh(key)
        return min(limit for limit in (stated, limits.window, limits.guessed) if limit is not None)

    async def output_cap(self, key: LimitKey) -> int | None:
        """The largest answer the model was found to allow; None where nothing is known."""
        return (await self._fresh(key)).output

    async def learn_refusal(  # noqa: PLR0913 - what is known of a refusal
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
        """What the refusal of a prompt of so many tokens teaches of the window; None where that is nothing."""
        if verdict.kind == "payload_too_large":
            return None
        if verdict.kind == "max_tokens_too_large":
            if verdict.context_limit is None:
                return None
            tokens += output_cap or 0
        return await self.learn_window(key, verdict, window, tokens, believed=is_overflow_error(status, body))

    async def learn_window(
        self, key: LimitKey, verdict: ErrorVerdict, window: int, sent: int, *, believed: bool = True
    ) -> LearntWindow | None:
        """After a prompt that was too long: what is stated is kept, else the next usual window is guessed.

        `sent`: the tokens of what was sent; `believed`: whether status and code are those of an overflow.
        """
        limits, limit = await self._fresh(key), verdict.context_limit
        if limit is not None:
            least = max(SMALLEST_WINDOW, limits.succeeded)
            exceeds = max(sent, verdict.input_tokens or 0) > limit
            if not believed or limit >= window or limit < least or not exceeds:
                return None
            await self._store_limit(key, limit, verdict.reason, "window")
            limits.window = limit
            return LearntWindow(limit, "the provider stated it", stored=True)
        refused = min(window, sent) if sent else window
        lower = next((usual for usual in USUAL_WINDOWS if usual < refused and usual > limits.succeeded), None)
        if lower is None:
            return None
        limits.guessed = lower
        return LearntWindow(lower, "a guess: the provider stated no limit", stored=False)

    async def learn_cap(self, key: LimitKey, cap: int, source: str) -> None:
        """A lower output cap was taken: the next requests ask for no more at once."""
        limits = await self._fresh(key)
        if limits.output is None or cap < limits.output:
            limits.output = cap
            await self._store_limit(key, cap, source, "output")

    async def _store_limit(self, key: LimitKey, tokens: int, source: str, kind: LimitKind) -> None:
        await self._store.learn_limit(
            key.base_url, key.model, tokens, source=source, headers=key.headers, tenant=key.tenant,
            credential=key.credential, kind=kind,
        )  # fmt: skip

    async def succeed(self, key: LimitKey, prompt: int) -> bool:
        """A prompt of this size was taken; whether it ended a smaller limit."""
        limits = await self._fresh(key)
        limits.succeeded = max(limits.succeeded, prompt)
        await self._store.record_success(key.base_url, key.model, prompt, headers=key.headers, tenant=key.tenant)
        if limits.guessed is not None and prompt > limits.guessed:
            limits.guessed = None
        if limits.window is None or prompt <= limits.window:
            return False
        limits.window = None
        return True

    async def _fresh(self, key: LimitKey) -> _LearntLimits:
        limits = self._limits.setdefault(key, _LearntLimits())
        self._limits.move_to_end(key)
        if len(self._limits) > MOST_KEYS:
            self._limits.popitem(last=False)
        if self._clock() - limits.read_at > FRESH:
            stored = await self._store.limits_for(key.base_url, key.model, headers=key.headers, tenant=key.tenant)
            limits.window = None if stored.window is None else stored.window.limit
            limits.output = None if stored.output is None else stored.output.limit
            limits.succeeded = max(limits.succeeded, stored.succeeded)
            limits.read_at = self._clock()
        return limits


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
