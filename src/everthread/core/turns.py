"""Split a list of messages: calls with their results, spans that must not be divided, turns, the head."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from everthread.core.messages import (
    Message,
    Messages,
    calls_of,
    content_text,
    count_leading_system_messages,
    kind_of,
    parts_of,
    results_of,
)
from everthread.core.summary_marks import without_summary
from everthread.core.user_words import user_words_in


class CallPosition(NamedTuple):
    """The place of a tool call or of a result: the index of its message, and its number among those of the message."""

    message_index: int
    number: int


@dataclass(frozen=True, slots=True)
class CallPairs:
    """The tool calls of a list of messages and the results that answer them."""

    result_by_call: dict[CallPosition, CallPosition]
    """The first result of each answered call."""
    call_by_result: dict[CallPosition, CallPosition]
    """The call of each result, further results of an answered call included."""


@dataclass(frozen=True, slots=True)
class ToolCallGroup:
    """An assistant message with tool calls and the results that answer it.

    `result_indexes` are the indices of the messages that hold a first answer to one of its calls, in list order;
    `unanswered_ids` the ids of calls that nothing answers.
    """

    assistant_index: int
    call_ids: tuple[str, ...]
    result_indexes: tuple[int, ...]
    unanswered_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Messages `[start, end)` that must not be separated."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """A user message and everything up to the next one. `user_index` is None for the messages before the first."""

    start: int
    end: int
    user_index: int | None


def pair_calls(messages: Messages) -> CallPairs:
    """Pair each result with the latest earlier call of its id.

    Calls of one id in the same message take one result each. Once all of them are answered, a further result belongs to
    the call that was answered last.
    """
    pairs = CallPairs(result_by_call={}, call_by_result={})
    unanswered_calls: dict[str, list[CallPosition]] = {}
    latest_call: dict[str, CallPosition] = {}
    for index, message in enumerate(messages):
        calls = calls_of(message)
        unanswered_calls |= {call.id: [] for call in calls}
        for number, call in enumerate(calls):
            latest_call[call.id] = CallPosition(index, number)
            unanswered_calls[call.id].append(latest_call[call.id])
        for number, result in enumerate(results_of(message)):
            if result.call_id not in latest_call:
                continue
            position = CallPosition(index, number)
            if unanswered_calls[result.call_id]:
                latest_call[result.call_id] = unanswered_calls[result.call_id].pop(0)
                pairs.result_by_call[latest_call[result.call_id]] = position
            pairs.call_by_result[position] = latest_call[result.call_id]
    return pairs


def find_call_groups(messages: Messages) -> list[ToolCallGroup]:
    """Return the group of each message with calls, in order."""
    result_by_call = pair_calls(messages).result_by_call
    groups: list[ToolCallGroup] = []
    for index, message in enumerate(messages):
        call_ids = [call.id for call in calls_of(message)]
        if not call_ids:
            continue
        results = [
            result_by_call.get(CallPosition(index, number)) for number in range(len(call_ids))
        ]
        result_indexes = {result.message_index for result in results if result is not None}
        unanswered_ids = [
            call_id for call_id, result in zip(call_ids, results, strict=True) if result is None
        ]
        groups.append(
            ToolCallGroup(
                index,
                tuple(call_ids),
                result_indexes=tuple(sorted(result_indexes)),
                unanswered_ids=tuple(unanswered_ids),
            )
        )
    return groups


def split_into_spans(messages: Messages, pairs: CallPairs | None = None) -> list[Span]:
    """Split the list into spans that must not be divided: each group, and each message outside the groups.

    Messages between a call and its late result belong to the same span. `pairs`: the paired calls, if known.
    """
    pairs = pairs or pair_calls(messages)
    ends = [0] * len(messages)
    for call, result in pairs.result_by_call.items():
        ends[call.message_index] = max(ends[call.message_index], result.message_index + 1)
    message_spans: list[Span] = []
    index = 0
    while index < len(messages):
        start = index
        end = index + 1
        while index < end:
            end = max(end, ends[index])
            index += 1
        message_spans.append(Span(start, end))
    return message_spans


def user_text(message: Mapping[str, Any]) -> str:
    """Return the user's own words in this message, or an empty string if there are none."""
    if message.get("role") != "user":
        return ""
    remaining = without_summary(cast("Message", message))
    if remaining is None:
        return ""
    return "\n".join(user_words_in([content_text([part]) for part in parts_of(remaining)]))


def is_user_message(message: Mapping[str, Any]) -> bool:
    """Return whether the message is from a person: it has the person's own words, an image, a file or a recording."""
    if message.get("role") != "user":
        return False
    return bool(user_text(message)) or any(
        kind_of(part) in _MEDIA_KINDS for part in parts_of(message)
    )


def find_latest_user_index(messages: Messages) -> int | None:
    """Return the index of the latest user message."""
    for index in range(len(messages) - 1, -1, -1):
        if is_user_message(messages[index]):
            return index
    return None


def split_into_turns(messages: Messages) -> list[TurnSpan]:
    """Return the list as turns. Messages before the first user message form a turn without a user."""
    starts = [index for index, message in enumerate(messages) if is_user_message(message)]
    bounds = [*starts, len(messages)]
    turn_spans = [TurnSpan(start, end, start) for start, end in itertools.pairwise(bounds)]
    if messages and (not starts or starts[0] > 0):
        turn_spans.insert(0, TurnSpan(0, bounds[0], None))
    return turn_spans


def count_head_messages(messages: Messages) -> int:
    """Return how many messages are protected at the start.

    These are the system prompt and the first exchange: everything through the first user message, plus the assistant
    message after it if that made no calls. If calls come before the first user message, the request is missing from
    the list (lost, or in a client's summary), and only the system messages are protected.
    """
    user_indexes = (index for index, message in enumerate(messages) if is_user_message(message))
    first_user = next(user_indexes, None)
    if first_user is None or any(map(calls_of, messages[:first_user])):
        return count_leading_system_messages(messages)
    end = first_user + 1
    if (
        end < len(messages)
        and messages[end].get("role") == "assistant"
        and not calls_of(messages[end])
    ):
        end += 1
    return end


_MEDIA_KINDS = frozenset(
    {
        "image_url",
        "image",
        "input_image",
        "input_audio",
        "file",
        "document",
        "input_file",
    }
)
