"""The messages that replace the start of a client's history: in the client's protocol, and as stored text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everthread.compaction.summary.summary_message import (
    find_reading_tools,
    rename_tools,
)
from everthread.core.messages import Message
from everthread.core.tool_outputs import OPENING_TAG, READ_HINT, replace_reader_name
from everthread.core.types import Api, ModelRequest
from everthread.store.rewrite_records import Rewrite
from everthread.thread.wire_messages import encode_messages, encode_value


class RenderedMessage(NamedTuple):
    """A message that we wrote, in the form of the protocol, and its text."""

    value: Any
    text: str


def replace_start(
    api: Api,
    compacted: Sequence[Message],
    sent: Sequence[Any],
    request: ModelRequest,
    *,
    max_tail_count: int,
) -> tuple[list[Any], int]:
    """Return the messages that replace the start of the sent ones, and the number of sent messages that stay.

    Messages at the end that the compaction left unchanged stay, at most `max_tail_count`. `request`: names the model
    and the tools.
    """
    wire_messages = encode_messages(api, compacted, request.model)
    tail_count = 0
    while (
        tail_count < min(max_tail_count, len(wire_messages), len(sent))
        and wire_messages[-1 - tail_count] == sent[-1 - tail_count]
    ):
        tail_count += 1
    replacement = wire_messages[: len(wire_messages) - tail_count]
    return mention_reading_tool(replacement, sent, request.tools), tail_count


def mention_reading_tool(
    replacement: Sequence[Any],
    sent: Sequence[Any],
    tools: Sequence[Mapping[str, Any]] | None,
) -> list[Any]:
    """Name the client's reading tool in the blocks that we wrote; the client's own messages stay unchanged."""
    tool = _choose_reader(find_reading_tools(tools))
    named_messages = []
    for index, value in enumerate(replacement):
        is_same = index < len(sent) and sent[index] == value
        is_ours = not is_same and OPENING_TAG in encode_value(value) and value not in sent
        named_messages.append(replace_reader_name(value, tool) if is_ours else value)
    return named_messages


def rename_reading_tools(text: str, old_names: Sequence[str], new_names: Sequence[str]) -> str:
    """Adapt a replacement made for a client with other reading tools, so that it names the present ones."""
    text = rename_tools(text, old_names, new_names)
    old_reader = _choose_reader(old_names)
    new_reader = _choose_reader(new_names)
    if old_reader is None or new_reader is None:
        return text
    return text.replace(READ_HINT.format(old_reader), READ_HINT.format(new_reader))


def _choose_reader(names: Sequence[str]) -> str | None:
    """Return the first tool that can read a stored output, or None if no tool can."""
    readers = (name for name in names if name.lower().endswith(("recall", "expand")))
    return next(readers, None)


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


def match_unchanged(replacement: Sequence[str], covered: Sequence[str]) -> list[int | None]:
    """Return, for each text of a replacement, the index of the covered message that equals it, or None.

    Compare the beginning in order, then backwards from the end: among equal messages, a compaction keeps the newest.
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
            index for index in indexes_by_text.get(replacement[position], ()) if index < limit
        ]
        if earlier_indexes:
            indexes[position] = limit = earlier_indexes[-1]
    return indexes
