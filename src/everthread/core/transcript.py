"""The parts of a list of messages: groups, turns, user messages, Everthread's summaries, lookups of earlier messages.

A message that is, or contains, a summary carries the private key `_summary`; every other function trusts that key
alone. `recognize_summaries` sets it for lists from outside, if a tag made with the home's key proves the text.
Without a key the tag is a plain content hash: it distinguishes a summary from text that quotes one, and gives no
protection. A proved tag is the value of `_summary`, by which the summary is found among similar text.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    Messages,
    calls_of,
    clip,
    content_text,
    kind_of,
    part_text,
    parts_of,
    results_of,
    with_content,
)
from everthread.core.user_words import user_words_in

SUMMARY_START = "[EVERTHREAD SUMMARY"
"""Start of a summary's first line; the rest of that line is for the reader."""
SUMMARY_END = "[END OF EVERTHREAD SUMMARY"
"""Start of a summary's last line; a tag and a bracket follow."""

_END_LINE = re.compile(
    r"\[(?<![^\n]\[)END OF EVERTHREAD SUMMARY(?: ([0-9a-f]{16}))?\][ \t]*$",
    re.MULTILINE,
)
_SUMMARY_MARK = re.compile(r"\[(?=(?:END OF )?EVERTHREAD SUMMARY)")


def seal_summary(text: str, key: bytes = b"") -> str:
    """Return the summary with its last line, which carries a tag over everything before it."""
    return f"{text}\n\n{SUMMARY_END} {_make_tag(text, key)}]"


def neutralize_summary_marks(text: str) -> str:
    """Change everything in a text that looks like the first or last line of a summary, so that none is recognised."""
    return _SUMMARY_MARK.sub("(", text)


def is_summary(message: Mapping[str, Any]) -> bool:
    """Return whether the message is, or contains, an Everthread summary."""
    return bool(message.get("_summary"))


def mark_summary(message: Message, key: bytes | None = None) -> Message:
    """Mark a message that contains a summary. With `key`, the mark is the summary's tag that the key proves."""
    texts = _list_text_parts(message) if key is not None else []
    tags = (
        _read_tag(text[slice(*span)])
        for text in texts
        for span in _find_summary_spans(text)
        if _has_valid_tag(text, span, key or b"")
    )
    return cast("Message", {**message, "_summary": next(filter(None, tags), True)})


def summary_text(message: Mapping[str, Any]) -> str:
    """Return the summary in a message, markers included; empty if there is none."""
    location = _locate_summary(message) if is_summary(message) else None
    return (
        _list_text_parts(message)[location[0]][slice(*location[1])] if location else ""
    )


def is_unproven(summary: str) -> bool:
    """Return whether a summary has no tag. Its text is used as background only."""
    end_line = _END_LINE.search(summary)
    return end_line is None or end_line[1] is None


def is_summary_first(message: Mapping[str, Any]) -> bool:
    """Return whether the summary comes before the rest of the message."""
    location = _locate_summary(message)
    return (
        location is not None
        and location[0] == 0
        and not _list_text_parts(message)[0][: location[1][0]].strip()
    )


def without_summary(message: Message) -> Message | None:
    """Return the message without its summary; None if nothing else is left."""
    if not is_summary(message):
        return message
    unmarked_message = cast(
        "Message", {key: value for key, value in message.items() if key != "_summary"}
    )
    location = _locate_summary(message)
    if location is None:
        return unmarked_message
    text_index, (start, end) = location
    text = _list_text_parts(message)[text_index]
    remaining: Any = f"{text[:start]}{text[end:]}".strip()
    content: Any = message.get("content")
    if isinstance(content, list):
        part_index = [
            index for index, part in enumerate(content) if kind_of(part) == "text"
        ][text_index]
        remaining = [
            *content[:part_index],
            *([{**content[part_index], "text": remaining}] if remaining else []),
            *content[part_index + 1 :],
        ]
    return (
        with_content(unmarked_message, remaining or None)
        if remaining or message.get("tool_calls")
        else None
    )


def recognize_summaries(messages: Sequence[Message], key: bytes = b"") -> list[Message]:
    """Mark our summaries among messages from outside, by their tags.

    Existing marks are dropped, and a tool result is never a summary. If there is a key, a summary whose tag was made
    without it is not proved: a message that is only such a summary loses its tag and is used as background only.
    """
    return [_recognize_summary(message, key) for message in messages]


def strip_summary_marks(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without private marks, for other programs."""
    return [
        cast(
            "Message",
            {name: value for name, value in message.items() if name != "_summary"},
        )
        if "_summary" in message
        else message
        for message in messages
    ]


def _recognize_summary(message: Message, key: bytes) -> Message:
    if "_summary" in message:
        message = strip_summary_marks([message])[0]
    if message.get("role") not in ("user", "assistant"):
        return message
    texts = _list_text_parts(message)
    for text in texts:
        for span in _find_summary_spans(text) if SUMMARY_START in text else ():
            if _has_valid_tag(text, span, key):
                return mark_summary(message, key)
            if (
                key
                and len(texts) == 1
                and _is_whole_text(text, span)
                and _has_valid_tag(text, span, b"")
            ):
                return mark_summary(
                    with_content(message, _END_LINE.sub(f"{SUMMARY_END}]", text))
                )
    return message


def _has_valid_tag(text: str, span: tuple[int, int], key: bytes) -> bool:
    summary = text[slice(*span)]
    end_line = _END_LINE.search(summary)
    if end_line is None or end_line[1] is None:
        return False
    return hmac.compare_digest(
        end_line[1], _make_tag(summary[: end_line.start()].removesuffix("\n\n"), key)
    )


def _read_tag(summary: str) -> str:
    """Return the tag in the last line of a summary; empty if there is none."""
    end_line = _END_LINE.search(summary)
    return (end_line[1] or "") if end_line else ""


def _is_whole_text(text: str, span: tuple[int, int]) -> bool:
    return text.strip() == text[slice(*span)].strip()


def _list_text_parts(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return (
        [part_text(part) for part in content if kind_of(part) == "text"]
        if isinstance(content, list)
        else []
    )


def _find_summary_spans(text: str) -> list[tuple[int, int]]:
    """Find where a summary may be in a text: at its beginning, or at its end after other words."""
    spans: list[tuple[int, int]] = []
    text_start = len(text) - len(text.lstrip())
    if text.startswith(SUMMARY_START, text_start):
        end_line = _END_LINE.search(text, text_start)
        spans.append((text_start, end_line.end() if end_line else len(text)))
    start = text.rfind(f"\n{SUMMARY_START}") + 1
    end_line = _END_LINE.search(text, start) if start > text_start else None
    if end_line and not text[end_line.end() :].strip():
        spans.append((start, end_line.end()))
    return spans


def _locate_summary(message: Mapping[str, Any]) -> tuple[int, tuple[int, int]] | None:
    """Find the summary in a marked message: the index of the text that contains it, and its span in that text."""
    texts = _list_text_parts(message)
    locations = [
        (text_index, span)
        for text_index, text in enumerate(texts)
        for span in _find_summary_spans(text)
    ]
    if len(locations) < 2:
        return locations[0] if locations else None
    mark = message.get("_summary")

    def rate_location(location: tuple[int, tuple[int, int]]) -> int:
        summary = texts[location[0]][slice(*location[1])]
        tag = _read_tag(summary)
        if not tag or f"\n{SUMMARY_START}" in summary:
            return 0
        return 2 if tag == mark else 1

    return max(locations, key=rate_location)


def _make_tag(text: str, key: bytes) -> str:
    return hmac.new(
        key, text.encode("utf-8", "surrogatepass"), hashlib.sha256
    ).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class CallGroup:
    """An assistant message with tool calls and the results that answer it.

    `result_indexes` are the indices of the messages that hold a first answer to one of its calls, in list order;
    `unanswered_ids` the ids of calls that nothing answers.
    """

    assistant_index: int
    call_ids: tuple[str, ...]
    result_indexes: tuple[int, ...]
    unanswered_ids: tuple[str, ...]

    @property
    def end(self) -> int:
        """One past the last message of the group."""
        return max((self.assistant_index, *self.result_indexes)) + 1


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


def find_call_groups(messages: Messages) -> list[CallGroup]:
    """Return every group, in order. A result belongs to the latest earlier call of its id that has no result yet."""
    open_calls: dict[str, list[int]] = {}
    result_indexes: dict[int, list[int]] = {}
    unanswered_ids: dict[int, list[str]] = {}
    call_ids: dict[int, tuple[str, ...]] = {}
    for index, message in enumerate(messages):
        if calls := calls_of(message):
            call_ids[index] = tuple(call.id for call in calls)
            unanswered_ids[index] = list(call_ids[index])
            result_indexes[index] = []
            open_calls |= {call.id: [] for call in calls}
            for call in calls:
                open_calls[call.id].append(index)
        for result in results_of(message):
            call_indexes = open_calls.get(result.call_id)
            if call_indexes:
                call_index = call_indexes.pop()
                unanswered_ids[call_index].remove(result.call_id)
                if index not in result_indexes[call_index]:
                    result_indexes[call_index].append(index)
    return [
        CallGroup(
            index, ids, tuple(result_indexes[index]), tuple(unanswered_ids[index])
        )
        for index, ids in call_ids.items()
    ]


def split_into_spans(messages: Messages) -> list[Span]:
    """Split the list into spans that must not be divided: each group, and each message outside the groups.

    Messages between a call and its late result belong to the same span.
    """
    ends = {group.assistant_index: group.end for group in find_call_groups(messages)}
    message_spans: list[Span] = []
    index = 0
    while index < len(messages):
        start = index
        end = index + 1
        while index < end:
            end = max(end, ends.get(index, 0))
            index += 1
        message_spans.append(Span(start, end))
    return message_spans


def user_text(message: Mapping[str, Any]) -> str:
    """Return the user's own words in this message; empty if there are none."""
    if message.get("role") != "user":
        return ""
    remaining = without_summary(cast("Message", message))
    return (
        ""
        if remaining is None
        else "\n".join(
            user_words_in([content_text([part]) for part in parts_of(remaining)])
        )
    )


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
    starts = [
        index for index, message in enumerate(messages) if is_user_message(message)
    ]
    bounds = [*starts, len(messages)]
    turn_spans = [
        TurnSpan(start, end, start) for start, end in itertools.pairwise(bounds)
    ]
    if messages and (not starts or starts[0] > 0):
        turn_spans.insert(0, TurnSpan(0, bounds[0], None))
    return turn_spans


def count_head_messages(messages: Messages) -> int:
    """Return how many messages are protected at the start (`protect_first_n`, fixed at 3).

    These are the system prompt and the first exchange: everything through the first user message, plus the assistant
    message after it if that made no calls. If calls come before the first user message, the request is missing from
    the list (lost, or in a client's summary), and only the system messages are protected.
    """
    first_user = next(
        (index for index, message in enumerate(messages) if is_user_message(message)),
        None,
    )
    if first_user is None or any(map(calls_of, messages[:first_user])):
        other_indexes = (
            index
            for index, message in enumerate(messages)
            if message.get("role") not in SYSTEM_ROLES
        )
        return next(other_indexes, len(messages))
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


_LOOKUP_TOOL = re.compile(
    r"(?:.*[^a-z0-9])?everthread[^a-z0-9]+(?:search|expand|status|state|pin|lcm_[a-z]{1,40})|recall|lcm_[a-z]{1,40}"
)
ANSWER_GIST_CHARS = 200
"""Characters to keep of an old answer."""
MAX_ANSWER_CHARS = 21_000
"""Everthread's answers are shorter. A longer answer comes from another tool of the same name."""


def is_lookup_tool(tool: str) -> bool:
    """Return whether a tool only looks up earlier messages: its arguments and answers are not findings."""
    return _LOOKUP_TOOL.fullmatch(tool.lower()) is not None


def is_lookup_answer(tool: str, text: str) -> bool:
    """Return whether a result answers a lookup. Such a result is never stored and cited."""
    return len(text) <= MAX_ANSWER_CHARS and is_lookup_tool(tool)


def shorten_answer(answer: str, limit: int = ANSWER_GIST_CHARS) -> str:
    """Return the start of an old answer's first line, which contains the question and the ids."""
    return clip(answer.lstrip().partition("\n")[0].rstrip(), limit)


def find_lookup_tools(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the tools with which a client can search and read earlier messages, without `lcm_…`."""
    own_tools = (
        name for name in names if is_lookup_tool(name) and "lcm_" not in name.lower()
    )
    return tuple(
        sorted(
            name
            for name in own_tools
            if name.lower().endswith(("search", "expand", "recall"))
        )
    )
