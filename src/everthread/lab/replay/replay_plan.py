"""Split a recorded conversation into model calls, each with its new messages, its answer and its time.

The time between calls decides how much a provider's cache still holds. It comes from the log's own times, or else from
its usage, because a call that read nothing from a filled cache came after the cache had expired. Without either it is
assumed, with a longer pause before each message of the user than before each result of a tool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.message_repair import repair
from everthread.core.messages import SYSTEM_ROLES, Message
from everthread.core.text import count_noun
from everthread.errors import InputError
from everthread.lab.importers.log import Log, LoggedMessage

ASSUMED_USER_PAUSE_SECONDS = 60.0
STEP_SECONDS = 15.0
"""Assumed seconds before a message of the user, and before a tool's results."""
EXPIRED_PAUSE_FACTOR = 1.2
"""A pause after which the cache had expired is assumed to be this many times its lifetime."""
MAX_WARM_PAUSE_FACTOR = 0.8
"""A pause after which the cache had not expired is assumed to be at most this share of its lifetime."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call to the model."""

    inputs: tuple[Message, ...]
    """The messages since the previous call."""
    answer: Message
    sent_at: float = 0.0
    """Seconds since the first call."""
    usage: CanonicalUsage | None = None
    cost: float | None = None
    model: str = ""
    output_tokens: int = 0
    """Tokens of the answer."""
    entry_index: int = 0
    """Index of the answer in the log."""

    @property
    def has_user_message(self) -> bool:
        return any(message["role"] == "user" for message in self.inputs)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The calls of a conversation in order, with the times at which a replay sends them."""

    calls: tuple[PlannedCall, ...]
    notes: tuple[str, ...] = ()
    """Repairs and assumptions, in words."""
    times_from: str = "assumed"
    """The source of the times: `given`, `log`, `usage` or `assumed`."""
    started_at: float | None = None
    """The time of the first call, in seconds since 1970, if it is known."""

    @property
    def messages(self) -> list[Message]:
        """Every replayed message."""
        return [message for call in self.calls for message in (*call.inputs, call.answer)]


def plan_replay(
    log: Log,
    *,
    times: Sequence[float] | None = None,
    pause: float = ASSUMED_USER_PAUSE_SECONDS,
    step: float = STEP_SECONDS,
    ttl: float = 300.0,
) -> ReplayPlan:
    """Plan the calls of a conversation. `times` are given in seconds, and `ttl` is the lifetime of a cache entry.

    Each call keeps the time and the usage of its own answer in the log, however many messages a repair changed.
    """
    repair_result = repair(
        [_prepare_message(message, entry_index) for entry_index, message in enumerate(log.messages)]
    )
    calls = []
    recorded_times: list[float | None] = []
    sent_time_by_entry_index = _find_sent_times(log.entries)
    for inputs, answer, entry_index in _split_calls(repair_result.messages):
        entry = log.entries[entry_index]
        calls.append(
            PlannedCall(
                inputs,
                answer,
                usage=entry.usage,
                cost=entry.cost,
                model=entry.model,
                entry_index=entry_index,
            )
        )
        recorded_times.append(sent_time_by_entry_index[entry_index])
    if not calls:
        raise InputError(f"{log.source}: holds no answer of a model, so there is no call to replay")
    notes = []
    if repair_result.actions:
        notes = [f"repairs: {len(repair_result.actions):,}, the first: {repair_result.actions[0]}"]
    if times is not None:
        call_times = _CallTimes(_check_times(times, len(calls)), "given")
    else:
        call_times = _find_call_times(calls, recorded_times, pause, step=step, ttl=ttl)
    timed_calls = tuple(
        replace(call, sent_at=seconds)
        for call, seconds in zip(calls, call_times.seconds, strict=True)
    )
    return ReplayPlan(
        timed_calls,
        (*notes, *call_times.notes),
        call_times.source,
        call_times.started_at,
    )


@dataclass(frozen=True, slots=True)
class _CallTimes:
    """The time of each call in seconds since the first, and the source of the times."""

    seconds: list[float]
    source: str
    started_at: float | None = None
    notes: tuple[str, ...] = ()


def _find_call_times(
    calls: Sequence[PlannedCall],
    recorded_times: Sequence[float | None],
    pause: float,
    *,
    step: float,
    ttl: float,
) -> _CallTimes:
    known_times = [moment for moment in recorded_times if moment is not None]
    if known_times:
        started_at = known_times[0]
        seconds_since_start = [
            None if moment is None else moment - started_at for moment in recorded_times
        ]
        missing_count = len(calls) - len(known_times)
        notes: tuple[str, ...] = ()
        if missing_count:
            notes = (f"{count_noun(missing_count, 'call')} without a time in the log; assumed",)
        return _CallTimes(
            _complete_times(calls, seconds_since_start, pause, step=step),
            "log",
            started_at,
            notes,
        )
    reason = "assumed are"
    source = "assumed"
    if any(_used_cache(call.usage) for call in calls):
        reason = "where its usage shows that a cache had forgotten, a pause; else"
        source = "usage"
    assumed_text = (
        f"{pause:g} s before each message of a person, {step:g} s before each result of a tool"
    )
    note = f"the log has no times: {reason} {assumed_text}"
    return _CallTimes(_assume_times(calls, pause, step, ttl=ttl), source, notes=(note,))


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant"


_INDEX_KEY = "_entry"
"""Key of a message's index in the log. A repair keeps it, whatever else it changes."""


def _prepare_message(message: Message, entry_index: int) -> Message:
    """Return the message with its index, without its native value, and with the role `user` instead of `system`."""
    fields: dict[str, Any] = {key: value for key, value in message.items() if key != "_native"}
    if fields.get("role") in SYSTEM_ROLES:
        fields["role"] = "user"
    fields[_INDEX_KEY] = entry_index
    return cast("Message", fields)


def _split_calls(
    messages: Sequence[Message],
) -> Iterator[tuple[tuple[Message, ...], Message, int]]:
    """Yield the inputs and the answer of each call, and the answer's index in the log."""
    inputs: list[Message] = []
    for prepared_message in messages:
        fields: dict[str, Any] = dict(prepared_message)
        entry_index = fields.pop(_INDEX_KEY, None)
        message = cast("Message", fields)
        if _is_answer(message):
            yield tuple(inputs), message, cast("int", entry_index)
            inputs = []
        else:
            inputs.append(message)


def _find_sent_times(entries: Sequence[LoggedMessage]) -> dict[int, float | None]:
    """Return when the request for each answer was sent, by the answer's index.

    That is the time of the last message before the answer, or the answer's own time.
    """
    sent_time_by_entry_index: dict[int, float | None] = {}
    last_input_time: float | None = None
    for entry_index, entry in enumerate(entries):
        if _is_answer(entry.message):
            sent_time_by_entry_index[entry_index] = (
                entry.timestamp if last_input_time is None else last_input_time
            )
            last_input_time = None
        elif entry.timestamp is not None:
            last_input_time = entry.timestamp
    return sent_time_by_entry_index


def _complete_times(
    calls: Sequence[PlannedCall],
    recorded_times: Sequence[float | None],
    pause: float,
    *,
    step: float,
) -> list[float]:
    """Return a time for each call. Assume missing times, and raise a time that goes back because a clock was reset."""
    times: list[float] = []
    now = 0.0
    for call_index, call in enumerate(calls):
        recorded_time = recorded_times[call_index]
        if recorded_time is None:
            next_time = next(
                (
                    later_time
                    for later_time in recorded_times[call_index:]
                    if later_time is not None
                ),
                math.inf,
            )
            gap = pause if call.has_user_message else step
            recorded_time = min(now + gap, next_time)
        now = max(now, recorded_time)
        times.append(now)
    return times


def _check_times(times: Sequence[float], call_count: int) -> list[float]:
    if len(times) != call_count:
        raise InputError(
            f"times has {len(times):,} entries; the conversation has {call_count:,} calls, one for each answer"
        )
    if any(later_time < earlier_time for earlier_time, later_time in pairwise(times)):
        raise InputError("times goes back: each call is sent at or after the one before")
    return [float(moment) for moment in times]


def _assume_times(
    calls: Sequence[PlannedCall], pause: float, step: float, *, ttl: float
) -> list[float]:
    sent_at = 0.0
    times = [sent_at]
    for previous_call, call in pairwise(calls):
        gap = pause if call.has_user_message else step
        if call.usage is not None and _used_cache(previous_call.usage):
            if call.usage.cache_read_tokens:
                gap = min(gap, ttl * MAX_WARM_PAUSE_FACTOR)
            else:
                gap = max(gap, ttl * EXPIRED_PAUSE_FACTOR)
        sent_at += gap
        times.append(sent_at)
    return times


def _used_cache(usage: CanonicalUsage | None) -> bool:
    return usage is not None and bool(usage.cache_read_tokens or usage.cache_write_tokens)
