"""Splits a recorded conversation into model calls, each with its new messages, its answer and its time.

The time between calls decides what a provider's cache still holds. It comes from the log's own times; else from its
usage (a call that read nothing from a filled cache came after the cache had expired); else it is assumed: some seconds
before each message of the user, fewer before each result of a tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, cast

from everthread.core.messages import SYSTEM_ROLES, Message
from everthread.core.pricing import CanonicalUsage
from everthread.core.validation import repair
from everthread.errors import InputError
from everthread.lab.importers.log import Log, LoggedMessage

PAUSE, STEP = 60.0, 15.0
"""Assumed seconds before a message of the user, and before a tool's results."""
COLD_FACTOR = 1.2
"""A pause after which the cache had expired is assumed to be this many times its lifetime."""
WARM_FACTOR = 0.8
"""A pause after which it had not is assumed to be at most this part of its lifetime."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call to the model."""

    inputs: tuple[Message, ...]
    """The messages since the previous call."""
    answer: Message
    at: float = 0.0
    usage: CanonicalUsage | None = None
    cost: float | None = None
    model: str = ""
    output: int = 0
    """Tokens of the answer."""

    @property
    def by_person(self) -> bool:
        return any(message["role"] == "user" for message in self.inputs)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    calls: tuple[PlannedCall, ...]
    notes: tuple[str, ...] = ()
    """Repairs and assumptions."""
    timed: str = "assumed"
    """The source of the times: `given`, `log`, `usage` or `assumed`."""
    began: float | None = None
    """The time of the first call, in seconds since 1970, where it is known."""

    @property
    def messages(self) -> list[Message]:
        """Every message, as it is replayed."""
        return [message for call in self.calls for message in (*call.inputs, call.answer)]


def plan_replay(
    log: Log, *, times: Sequence[float] | None = None, pause: float = PAUSE, step: float = STEP, ttl: float = 300.0
) -> ReplayPlan:
    """Plan the calls of a conversation. `times`: their times in seconds; `ttl`: the lifetime of a cache entry."""
    repaired = repair([_strip_native(message) for message in log.messages])
    calls = list(_split_calls(repaired.messages, [entry for entry in log.entries if _is_answer(entry.message)]))
    if not calls:
        raise InputError(f"{log.source}: holds no answer of a model, so there is no call to replay")
    notes = [f"repairs: {len(repaired.actions):,}, the first: {repaired.actions[0]}"] if repaired.actions else []
    sent = [moment for moment in _sent_times(log) if moment is not None]
    began = None
    if times is not None:
        at, timed = _check_times(times, len(calls)), "given"
    elif len(sent) == len(calls) == sum(_is_answer(entry.message) for entry in log.entries):
        # Without steps back: a clock may have been reset.
        at, timed, began = [moment - sent[0] for moment in accumulate(sent, max)], "log", sent[0]
    else:
        has_usage = any(_used_cache(call.usage) for call in calls)
        at, timed = _assume_times(calls, pause, step, ttl), "usage" if has_usage else "assumed"
        assumed = f"{pause:g} s before each message of a person, {step:g} s before each result of a tool"
        why = "where its usage shows that a cache had forgotten, a pause; else" if has_usage else "assumed are"
        notes.append(f"the log has no times: {why} {assumed}")
    timed_calls = tuple(replace(call, at=moment) for call, moment in zip(calls, at, strict=True))
    return ReplayPlan(timed_calls, tuple(notes), timed, began)


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant"


def _strip_native(message: Message) -> Message:
    """The message without its native value; a system message in the middle becomes a user message."""
    bare: dict[str, Any] = {key: value for key, value in message.items() if key != "_native"}
    if bare.get("role") in SYSTEM_ROLES:
        bare["role"] = "user"
    return cast("Message", bare)


def _split_calls(messages: Sequence[Message], answers: Sequence[LoggedMessage]) -> Iterator[PlannedCall]:
    """A call for every answer; the answers are matched with the log by order, unless repair changed their number."""
    count = sum(map(_is_answer, messages))
    logged = iter(answers if count == len(answers) else ())
    messages_before: list[Message] = []
    for message in messages:
        if not _is_answer(message):
            messages_before.append(message)
            continue
        entry = next(logged, None) or LoggedMessage(message)
        yield PlannedCall(tuple(messages_before), message, usage=entry.usage, cost=entry.cost, model=entry.model)
        messages_before = []


def _sent_times(log: Log) -> list[float | None]:
    """The time of each call: that of its last input, else that of its answer."""
    sent_times: list[float | None] = []
    last: float | None = None
    for entry in log.entries:
        if not _is_answer(entry.message):
            last = entry.at
            continue
        sent_times.append(entry.at if last is None else last)
        last = None
    return sent_times


def _check_times(times: Sequence[float], count: int) -> list[float]:
    if len(times) != count:
        raise InputError(f"times has {len(times):,} entries; the conversation has {count:,} calls, one for each answer")
    if any(later < earlier for earlier, later in pairwise(times)):
        raise InputError("times goes back: each call is sent at or after the one before")
    return [float(moment) for moment in times]


def _assume_times(calls: Sequence[PlannedCall], pause: float, step: float, ttl: float) -> list[float]:
    at, moments = 0.0, []
    for number, call in enumerate(calls):
        before = calls[number - 1].usage if number else None
        gap = 0.0 if number == 0 else pause if call.by_person else step
        if number and call.usage is not None and _used_cache(before):
            forgot = not call.usage.cache_read_tokens
            gap = max(gap, ttl * COLD_FACTOR) if forgot else min(gap, ttl * WARM_FACTOR)
        at += gap
        moments.append(at)
    return moments


def _used_cache(usage: CanonicalUsage | None) -> bool:
    return usage is not None and bool(usage.cache_read_tokens or usage.cache_write_tokens)
