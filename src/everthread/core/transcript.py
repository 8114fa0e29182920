"""What a list of messages is made of: groups, turns, user messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from everthread.core.marks import without_summary
from everthread.core.messages import (
    SYSTEM_ROLES,
    Call,
    Message,
    Messages,
    Result,
    calls_of,
    content_text,
    kind_of,
    parts_of,
    results_of,
    users_words,
)


@dataclass(frozen=True, slots=True)
class Group:
    """An assistant message with tool calls and the results that answer it.

    `results` are the indices of the messages that hold a first answer to one of its calls, in list order;
    `missing` the ids of calls that nothing answers.
    """

    assistant: int
    call_ids: tuple[str, ...]
    results: tuple[int, ...]
    missing: tuple[str, ...]

    @property
    def end(self) -> int:
        """One past the last message of the group."""
        return max((self.assistant, *self.results)) + 1


@dataclass(frozen=True, slots=True)
class Span:
    """Messages `[start, end)` that stand or fall together."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Turn:
    """A user message and everything up to the next one. `user` is None for what stands before the first."""

    start: int
    end: int
    user: int | None


def groups(messages: Messages) -> list[Group]:
    """Every group, in order. A result belongs to the latest call of its id before it; a second one to none."""
    return pair_calls(list(map(calls_of, messages)), list(map(results_of, messages)))


def pair_calls(made: Sequence[Sequence[Call]], given: Sequence[Sequence[Result]]) -> list[Group]:
    """The groups of messages by the calls each makes and the results each gives."""
    waiting: dict[str, list[int]] = {}
    answered: dict[int, list[int]] = {}
    pending: dict[int, list[str]] = {}
    called: dict[int, tuple[str, ...]] = {}
    for index, (calls, results) in enumerate(zip(made, given, strict=True)):
        if calls:
            called[index] = tuple(call.id for call in calls)
            pending[index] = list(called[index])
            answered[index] = []
            waiting |= {call.id: [] for call in calls}
            for call in calls:
                waiting[call.id].append(index)
        for result in results:
            owners = waiting.get(result.call_id)
            if owners:
                owner = owners.pop()
                pending[owner].remove(result.call_id)
                if index not in answered[owner]:
                    answered[owner].append(index)
    return [Group(i, ids, tuple(answered[i]), tuple(pending[i])) for i, ids in called.items()]


def spans(messages: Messages) -> list[Span]:
    """The list cut into pieces that must not be split: a group is one piece, any other message its own.

    What stands between a call and its late result belongs to the piece too.
    """
    return cut_spans(groups(messages), len(messages))


def cut_spans(found: Iterable[Group], length: int) -> list[Span]:
    """The pieces of a list of this length with these groups in it."""
    ends = {group.assistant: group.end for group in found}
    pieces: list[Span] = []
    index = 0
    while index < length:
        start, end = index, index + 1
        while index < end:
            end = max(end, ends.get(index, 0))
            index += 1
        pieces.append(Span(start, end))
    return pieces


def user_text(message: Mapping[str, Any]) -> str:
    """What the user said in this message; empty when the user said nothing in it."""
    if message.get("role") != "user":
        return ""
    rest = without_summary(cast("Message", message))
    return "" if rest is None else "\n".join(users_words([content_text([part]) for part in parts_of(rest)]))


def is_user_message(message: Mapping[str, Any]) -> bool:
    """Whether a person speaks here: words of their own, or an image, a file or a recording without words."""
    if message.get("role") != "user":
        return False
    return bool(user_text(message)) or any(kind_of(part) in _MEDIA for part in parts_of(message))


def latest_user_index(messages: Messages) -> int | None:
    """Where the latest user message stands."""
    for index in range(len(messages) - 1, -1, -1):
        if is_user_message(messages[index]):
            return index
    return None


def turns(messages: Messages) -> list[Turn]:
    """The list as turns. Messages before the first user message form a turn without a user."""
    starts = [index for index, message in enumerate(messages) if is_user_message(message)]
    bounds = [*starts, len(messages)]
    found = [Turn(start, end, start) for start, end in itertools.pairwise(bounds)]
    if messages and (not starts or starts[0] > 0):
        found.insert(0, Turn(0, bounds[0], None))
    return found


def head_length(messages: Messages) -> int:
    """How many messages are protected at the start (`protect_first_n`, fixed at 3).

    The system prompt and the first exchange. Where the system prompt is kept apart: everything through the first
    user message, plus the assistant message after it if that made no calls. Work that nobody asked for in this list
    (the request was lost, or is in a summary of the client's) is no first exchange, however late a user speaks.
    """
    first = next((index for index, message in enumerate(messages) if is_user_message(message)), None)
    if first is None or any(map(calls_of, messages[:first])):
        others = (index for index, message in enumerate(messages) if message.get("role") not in SYSTEM_ROLES)
        return next(others, len(messages))
    end = first + 1
    if end < len(messages) and messages[end].get("role") == "assistant" and not calls_of(messages[end]):
        end += 1
    return end


_MEDIA = frozenset({"image_url", "image", "input_image", "input_audio", "file", "document", "input_file"})
