"""From a recorded conversation to calls: what was given to the model, what it answered, and when.

The time between calls decides what a provider's cache still holds. It is taken from the log's own times; else from
its usage (a call that read nothing from the cache after one that had filled it came after the cache had forgotten);
else it is assumed: so many seconds before each message of a person, and fewer before each result of a tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from everthread.core.messages import SYSTEM_ROLES, Message
from everthread.core.pricing import CanonicalUsage
from everthread.core.validation import repair
from everthread.errors import InputError
from everthread.lab.importers.log import Log, LoggedMessage

PAUSE, STEP = 60.0, 15.0
"""Seconds before a message of a person, and before a tool's results, where nothing tells."""
FORGOTTEN = 1.2
"""A pause after which a cache forgot is this many times as long as the cache remembers."""
WARM = 0.8
"""A pause after which it had not is at most this part of that."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call to the model."""

    given: tuple[Message, ...]
    """What came since the call before."""
    answer: Message
    at: float = 0.0
    """When it is sent, in seconds."""
    usage: CanonicalUsage | None = None
    """What the provider reported when it was recorded."""
    cost: float | None = None
    model: str = ""

    @property
    def by_person(self) -> bool:
        return any(message["role"] == "user" for message in self.given)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    calls: tuple[PlannedCall, ...]
    notes: tuple[str, ...] = ()
    """What had to be put right, and what was assumed."""
    timed: str = "assumed"
    """Where the times come from: `given`, `log`, `usage` or `assumed`."""
    began: float | None = None
    """When the first call was sent, in seconds since 1970, where that is known."""

    @property
    def messages(self) -> list[Message]:
        """Everything that was said, as it is replayed."""
        return [message for call in self.calls for message in (*call.given, call.answer)]


def planned(
    log: Log, *, times: Sequence[float] | None = None, pause: float = PAUSE, step: float = STEP, ttl: float = 300.0
) -> ReplayPlan:
    """The calls of a conversation. `times`: when each is sent, in seconds; `ttl`: how long a cache remembers."""
    mended = repair([_plain(message) for message in log.messages])
    calls = list(_calls(mended.messages, [entry for entry in log.said if entry.message.get("role") == "assistant"]))
    if not calls:
        raise InputError(f"{log.source}: holds no answer of a model, so there is no call to replay")
    notes = [f"repairs: {len(mended.actions):,}, the first: {mended.actions[0]}"] if mended.actions else []
    sent = _sent(log)
    began = None
    if times is not None:
        at, timed = _given(times, len(calls)), "given"
    elif len(sent) == len(calls) and all(moment is not None for moment in sent):
        known = [moment for moment in sent if moment is not None]
        at, timed, began = [moment - known[0] for moment in _growing(known)], "log", known[0]
    else:
        told = any(_cached(call.usage) for call in calls)
        at, timed = _reckoned(calls, pause, step, ttl), "usage" if told else "assumed"
        notes.append(_assumption(pause, step, from_usage=told))
    return ReplayPlan(
        tuple(replace(call, at=moment) for call, moment in zip(calls, at, strict=True)), tuple(notes), timed, began
    )


def _plain(message: Message) -> Message:
    """The message without what one provider wrote around it; one from the system in between speaks as the user."""
    bare: dict[str, Any] = {key: value for key, value in message.items() if key != "_native"}
    if bare.get("role") in SYSTEM_ROLES:
        bare["role"] = "user"
    return cast("Message", bare)


def _calls(messages: Sequence[Message], answers: Sequence[LoggedMessage]) -> Iterator[PlannedCall]:
    """A call for every answer; what repair left of the answers is matched with the log by its place."""
    count = sum(message["role"] == "assistant" for message in messages)
    known = iter(answers if count == len(answers) else ())
    given: list[Message] = []
    for message in messages:
        if message["role"] != "assistant":
            given.append(message)
            continue
        said = next(known, None) or LoggedMessage(message)
        yield PlannedCall(tuple(given), message, usage=said.usage, cost=said.cost, model=said.model)
        given = []


def _sent(log: Log) -> list[float | None]:
    """When each call was sent: with the last thing that was given to it, else when its answer was written down."""
    found: list[float | None] = []
    last: float | None = None
    for entry in log.said:
        if entry.message.get("role") != "assistant":
            last = entry.at
            continue
        found.append(entry.at if last is None else last)
        last = None
    return found


def _given(times: Sequence[float], count: int) -> list[float]:
    if len(times) != count:
        raise InputError(f"times has {len(times):,} entries; the conversation has {count:,} calls, one for each answer")
    if any(later < earlier for earlier, later in pairwise(times)):
        raise InputError("times goes back: each call is sent at or after the one before")
    return [float(moment) for moment in times]


def _growing(times: Sequence[float]) -> Iterator[float]:
    """Clocks are set back now and then; time is not."""
    latest = times[0]
    for moment in times:
        latest = max(latest, moment)
        yield latest


def _reckoned(calls: Sequence[PlannedCall], pause: float, step: float, ttl: float) -> list[float]:
    at, moments = 0.0, []
    for number, call in enumerate(calls):
        before = calls[number - 1].usage if number else None
        gap = 0.0 if number == 0 else pause if call.by_person else step
        if number and call.usage is not None and _cached(before):
            forgot = not call.usage.cache_read_tokens
            gap = max(gap, ttl * FORGOTTEN) if forgot else min(gap, ttl * WARM)
        at += gap
        moments.append(at)
    return moments


def _cached(usage: CanonicalUsage | None) -> bool:
    return usage is not None and bool(usage.cache_read_tokens or usage.cache_write_tokens)


def _assumption(pause: float, step: float, *, from_usage: bool) -> str:
    assumed = f"{pause:g} s before each message of a person, {step:g} s before each result of a tool"
    if from_usage:
        return f"the log has no times: where its usage shows that a cache had forgotten, a pause; else {assumed}"
    return f"the log has no times: assumed are {assumed}"
