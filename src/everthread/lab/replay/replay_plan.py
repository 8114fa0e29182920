"""Splits a recorded conversation into model calls, each with its new messages, its answer and its time.

The time between calls decides what a provider's cache still holds. It comes from the log's own times; else from its
usage (a call that read nothing from a filled cache came after the cache had expired); else it is assumed: some seconds
before each message of the user, fewer before each result of a tool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.message_repair import repair
from everthread.core.messages import SYSTEM_ROLES, Message, count_noun
from everthread.errors import InputError
from everthread.lab.importers.log import Log, LoggedMessage

PAUSE_SECONDS = 60.0
STEP_SECONDS = 15.0
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
    entry: int = 0
    """Index of the answer in the log."""

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
    """The time of the first call, in seconds since 1970, if it is known."""

    @property
    def messages(self) -> list[Message]:
        """Every replayed message."""
        return [
            message for call in self.calls for message in (*call.inputs, call.answer)
        ]


def plan_replay(
    log: Log,
    *,
    times: Sequence[float] | None = None,
    pause: float = PAUSE_SECONDS,
    step: float = STEP_SECONDS,
    ttl: float = 300.0,
) -> ReplayPlan:
    """Plan the calls of a conversation. `times`: their times in seconds; `ttl`: the lifetime of a cache entry.

    Each call keeps the time and the usage of its own answer in the log, however many messages a repair changed.
    """
    repaired = repair(
        [
            _prepare_message(message, number)
            for number, message in enumerate(log.messages)
        ]
    )
    calls = []
    recorded: list[float | None] = []
    sent_times = _find_sent_times(log.entries)
    for inputs, answer, number in _split_calls(repaired.messages):
        entry = log.entries[number]
        calls.append(
            PlannedCall(
                inputs,
                answer,
                usage=entry.usage,
                cost=entry.cost,
                model=entry.model,
                entry=number,
            )
        )
        recorded.append(sent_times[number])
    if not calls:
        raise InputError(
            f"{log.source}: holds no answer of a model, so there is no call to replay"
        )
    notes = (
        [f"repairs: {len(repaired.actions):,}, the first: {repaired.actions[0]}"]
        if repaired.actions
        else []
    )
    if times is not None:
        moments = _Moments(_check_times(times, len(calls)), "given")
    else:
        moments = _date_calls(calls, recorded, pause, step=step, ttl=ttl)
    timed_calls = tuple(
        replace(call, at=moment) for call, moment in zip(calls, moments.at, strict=True)
    )
    return ReplayPlan(
        timed_calls, (*notes, *moments.notes), moments.source, moments.began
    )


@dataclass(frozen=True, slots=True)
class _Moments:
    """The time of each call in seconds since the first, and the source of the times."""

    at: list[float]
    source: str
    began: float | None = None
    notes: tuple[str, ...] = ()


def _date_calls(
    calls: Sequence[PlannedCall],
    recorded: Sequence[float | None],
    pause: float,
    *,
    step: float,
    ttl: float,
) -> _Moments:
    known = [moment for moment in recorded if moment is not None]
    if known:
        began = known[0]
        since = [None if moment is None else moment - began for moment in recorded]
        missing = len(calls) - len(known)
        notes = (
            (f"{count_noun(missing, 'call')} without a time in the log; assumed",)
            if missing
            else ()
        )
        return _Moments(
            _complete_times(calls, since, pause, step=step), "log", began, notes
        )
    has_usage = any(_used_cache(call.usage) for call in calls)
    assumed = f"{pause:g} s before each message of a person, {step:g} s before each result of a tool"
    why = (
        "where its usage shows that a cache had forgotten, a pause; else"
        if has_usage
        else "assumed are"
    )
    note = f"the log has no times: {why} {assumed}"
    source = "usage" if has_usage else "assumed"
    return _Moments(_assume_times(calls, pause, step, ttl=ttl), source, notes=(note,))


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant"


_ENTRY = "_entry"
"""Key of a message's index in the log. A repair keeps it, whatever else it changes."""


def _prepare_message(message: Message, number: int) -> Message:
    """Return the message with its index, without its native value; a later system message becomes a user message."""
    bare: dict[str, Any] = {
        key: value for key, value in message.items() if key != "_native"
    }
    if bare.get("role") in SYSTEM_ROLES:
        bare["role"] = "user"
    bare[_ENTRY] = number
    return cast("Message", bare)


def _split_calls(
    messages: Sequence[Message],
) -> Iterator[tuple[tuple[Message, ...], Message, int]]:
    """Yield the inputs and the answer of each call, and the answer's index in the log."""
    inputs: list[Message] = []
    for prepared in messages:
        bare: dict[str, Any] = dict(prepared)
        number = bare.pop(_ENTRY, None)
        message = cast("Message", bare)
        if _is_answer(message):
            yield tuple(inputs), message, cast("int", number)
            inputs = []
        else:
            inputs.append(message)


def _find_sent_times(entries: Sequence[LoggedMessage]) -> dict[int, float | None]:
    """Return the time of the call of each answer, by the answer's index: that of its last input, else its own."""
    sent_times: dict[int, float | None] = {}
    last: float | None = None
    for number, entry in enumerate(entries):
        if _is_answer(entry.message):
            sent_times[number] = entry.at if last is None else last
            last = None
        elif entry.at is not None:
            last = entry.at
    return sent_times


def _complete_times(
    calls: Sequence[PlannedCall],
    recorded: Sequence[float | None],
    pause: float,
    *,
    step: float,
) -> list[float]:
    """Return the recorded times without steps back (a clock may have been reset); assume the missing ones."""
    moments: list[float] = []
    now = 0.0
    for number, call in enumerate(calls):
        moment = recorded[number]
        if moment is None:
            following = next(
                (later for later in recorded[number:] if later is not None), math.inf
            )
            gap = pause if call.by_person else step
            moment = min(now + gap, following)
        now = max(now, moment)
        moments.append(now)
    return moments


def _check_times(times: Sequence[float], count: int) -> list[float]:
    if len(times) != count:
        raise InputError(
            f"times has {len(times):,} entries; the conversation has {count:,} calls, one for each answer"
        )
    if any(later < earlier for earlier, later in pairwise(times)):
        raise InputError(
            "times goes back: each call is sent at or after the one before"
        )
    return [float(moment) for moment in times]


def _assume_times(
    calls: Sequence[PlannedCall], pause: float, step: float, *, ttl: float
) -> list[float]:
    at = 0.0
    moments = []
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
    return usage is not None and bool(
        usage.cache_read_tokens or usage.cache_write_tokens
    )
