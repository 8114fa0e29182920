"""Map a compacted history back to the client's bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from everthread.compaction.summary.summary_message import (
    find_reading_tools,
    rename_tools,
)
from everthread.core.messages import Message, kind_of
from everthread.core.tool_outputs import OPENING_TAG, READ_HINT, replace_reader_name
from everthread.core.types import Api
from everthread.store.rewrite_records import Rewrite
from everthread.thread.caller.sent_history import SentMessage
from everthread.thread.wire_messages import encode_messages, encode_value

COMPACTION_MARK = '"compaction"'
"""A text that every message with a compaction of the provider contains."""


@dataclass(frozen=True, slots=True)
class StartReplacement:
    """Messages that replace the start of a request; the last `tail_count` messages of the request stay."""

    tail_count: int
    """Number of messages at the end that stay unchanged."""
    replacement: list[Any]


def find_start_replacement(
    api: Api,
    compacted: Sequence[Message],
    sent: Sequence[Any],
    model: str,
    *,
    max_tail_count: int,
) -> StartReplacement:
    """Return the part of the compacted messages that replaces the start of the sent ones.

    Messages at the end that the compaction left unchanged, at most `max_tail_count`, are not replaced.
    """
    wire_messages = encode_messages(api, compacted, model)
    tail_count = 0
    while (
        tail_count < min(max_tail_count, len(wire_messages), len(sent))
        and wire_messages[-1 - tail_count] == sent[-1 - tail_count]
    ):
        tail_count += 1
    return StartReplacement(
        tail_count, wire_messages[: len(wire_messages) - tail_count]
    )


def name_reading_tool(
    start_replacement: StartReplacement,
    sent: Sequence[Any],
    tools: Sequence[Mapping[str, Any]] | None,
) -> StartReplacement:
    """Name the client's reading tool in the blocks that we wrote; the client's own messages stay unchanged."""
    tool = _choose_reader(find_reading_tools(tools))
    replacement = []
    for index, value in enumerate(start_replacement.replacement):
        is_same = index < len(sent) and sent[index] == value
        replacement.append(
            value
            if is_same or OPENING_TAG not in encode_value(value) or value in sent
            else replace_reader_name(value, tool)
        )
    return replace(start_replacement, replacement=replacement)


def rename_reader(text: str, old_names: Sequence[str], new_names: Sequence[str]) -> str:
    """Adapt a replacement made for a client with other reading tools, so that it names the present ones."""
    text = rename_tools(text, old_names, new_names)
    old_reader = _choose_reader(old_names)
    new_reader = _choose_reader(new_names)
    if old_reader is None or new_reader is None:
        return text
    return text.replace(READ_HINT.format(old_reader), READ_HINT.format(new_reader))


def _choose_reader(names: Sequence[str]) -> str | None:
    """Return the first tool that can read a stored output; None if no tool can."""
    readers = (name for name in names if name.lower().endswith(("recall", "expand")))
    return next(readers, None)


def count_protected_messages(
    messages: Sequence[SentMessage], texts: Sequence[str]
) -> int:
    """Count the messages up to the provider's own last compaction, which are never covered, edited or dropped.

    `texts`: the texts of the messages.
    """
    for index in range(len(texts) - 1, -1, -1):
        if COMPACTION_MARK in texts[index] and is_compaction(messages[index].value):
            return index + 1
    return 0


def is_compaction(value: Any) -> bool:
    """Return whether a message is or contains a compaction of the provider."""
    if not isinstance(value, dict):
        return False
    content = value.get("content")
    parts = content if isinstance(content, list) else ()
    return any(
        kind_of(part) == "compaction"
        for part in (value, *parts)
        if isinstance(part, dict)
    )


def render_replacement(
    replacement: Sequence[Any], sent: Sequence[SentMessage], lead_count: int = 0
) -> str:
    """Return the replacement as text; unchanged messages at its start keep the client's own bytes.

    The first `lead_count` sent messages are put before the replacement, unchanged.
    """
    texts = [message.text for message in sent[:lead_count]]
    sent = sent[lead_count:]
    is_same = True
    for index, value in enumerate(replacement):
        is_same = is_same and index < len(sent) and sent[index].value == value
        texts.append(sent[index].text if is_same else encode_value(value))
    return ",".join(texts)


class RenderedMessage(NamedTuple):
    """A message that we wrote, in the form of the protocol, and its text."""

    value: Any
    text: str


def parse_replacement(rewrite: Rewrite) -> list[RenderedMessage]:
    """Return the messages of a rewrite, each with its text."""
    return split_messages(rewrite.replacement.decode())


def split_messages(text: str) -> list[RenderedMessage]:
    """Return the messages in a text, separated by commas, each with its own text."""
    decode = json.JSONDecoder().raw_decode
    messages = []
    start = 0
    while start < len(text):
        value, end = decode(text, start)
        messages.append(RenderedMessage(value, text[start:end]))
        start = end + 1
    return messages


def match_unchanged(
    replacement: Sequence[str], covered: Sequence[str]
) -> list[int | None]:
    """Return, for each text of a replacement, the index of the covered message that equals it, or None.

    Compare the beginning in order, then backwards from the end: of equal messages a compaction keeps the newest.
    """
    indexes: list[int | None] = [None] * len(replacement)
    shared_count = 0
    while shared_count < min(len(replacement), len(covered)) and (
        replacement[shared_count] == covered[shared_count]
    ):
        indexes[shared_count] = shared_count
        shared_count += 1
    indexes_by_text: dict[str, list[int]] = {}
    for index in range(shared_count, len(covered)):
        indexes_by_text.setdefault(covered[index], []).append(index)
    limit = len(covered)
    for position in range(len(replacement) - 1, shared_count - 1, -1):
        earlier_indexes = [
            index
            for index in indexes_by_text.get(replacement[position], ())
            if index < limit
        ]
        if earlier_indexes:
            indexes[position] = limit = earlier_indexes[-1]
    return indexes
