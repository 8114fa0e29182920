"""The text of a replacement: messages of the protocol, separated by commas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from everthread.store.rewrite_records import Rewrite
from everthread.thread.caller.caller_request import CallerMessage
from everthread.thread.wire_messages import encode_value


def render_replacement(
    replacement: Sequence[Any], sent: Sequence[CallerMessage], lead_count: int = 0
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
