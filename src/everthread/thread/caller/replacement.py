"""Map a compacted history back to the client's bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.summary_message import reading_tools
from everthread.core.messages import Message, kind_of
from everthread.core.outputs import OPENING_TAG, replace_reader_name
from everthread.core.types import Api
from everthread.store.records import Rewrite
from everthread.thread.wire_messages import encode_messages, encode_value


@dataclass(frozen=True, slots=True)
class Cover:
    """The part of a request that is replaced, and its replacement."""

    tail: int
    """Number of messages at the end that stay unchanged."""
    replacement: list[Any]


def cover(
    api: Api,
    compacted: Sequence[Message],
    sent: Sequence[Any],
    model: str,
    *,
    most: int,
) -> Cover:
    """Return the cover: keep the messages at the end that compaction left unchanged, at most `most`."""
    wire = encode_messages(api, compacted, model)
    tail = 0
    while tail < min(most, len(wire), len(sent)) and wire[-1 - tail] == sent[-1 - tail]:
        tail += 1
    return Cover(tail, wire[: len(wire) - tail])


def name_tool(
    cover: Cover, sent: Sequence[Any], tools: Sequence[Mapping[str, Any]] | None
) -> Cover:
    """Name the client's reading tool in the blocks that we wrote; the client's own messages stay unchanged."""
    named = [
        name
        for name in reading_tools(tools)
        if name.lower().endswith(("recall", "expand"))
    ]
    tool = named[0] if named else None
    replacement = []
    for index, value in enumerate(cover.replacement):
        same = index < len(sent) and sent[index] == value
        replacement.append(
            value
            if same or OPENING_TAG not in encode_value(value) or value in sent
            else replace_reader_name(value, tool)
        )
    return replace(cover, replacement=replacement)


def protected_head(values: Sequence[Any]) -> int:
    """Count the messages up to the provider's own last compaction, which are never covered, edited or dropped."""
    lengths = [length for length, value in enumerate(values, 1) if is_compaction(value)]
    return lengths[-1] if lengths else 0


def is_compaction(value: Any) -> bool:
    """Return whether a message is, or holds, a compaction of the provider."""
    if not isinstance(value, dict):
        return False
    content = value.get("content")
    parts = content if isinstance(content, list) else ()
    return any(
        kind_of(part) == "compaction"
        for part in (value, *parts)
        if isinstance(part, dict)
    )


def replacement_text(
    replacement: Sequence[Any], sent: Sequence[tuple[Any, str]], head: int = 0
) -> str:
    """Return the replacement as text; unchanged messages at its start keep the client's own bytes.

    The first `head` messages are put before it unchanged.
    """
    texts = [text for _, text in sent[:head]]
    sent = sent[head:]
    same = True
    for index, value in enumerate(replacement):
        same = same and index < len(sent) and sent[index][0] == value
        texts.append(sent[index][1] if same else encode_value(value))
    return ",".join(texts)


def replacement_messages(rewrite: Rewrite) -> list[tuple[Any, str]]:
    """Return the messages of a rewrite with their text."""
    return split_messages(rewrite.replacement.decode())


def split_messages(text: str) -> list[tuple[Any, str]]:
    """Return the messages in a text, separated by commas, each with its own text."""
    decode = json.JSONDecoder().raw_decode
    messages = []
    at = 0
    while at < len(text):
        value, end = decode(text, at)
        messages.append((value, text[at:end]))
        at = end + 1
    return messages


def match_unchanged(
    replacement: Sequence[str], covered: Sequence[str]
) -> list[int | None]:
    """Return for each text of a replacement the covered message that it is; None if it is none of them.

    The beginning is compared in order, the rest from the end: of equal messages a compaction keeps the newest.
    """
    indexes: list[int | None] = [None] * len(replacement)
    lead = 0
    while lead < min(len(replacement), len(covered)) and (
        replacement[lead] == covered[lead]
    ):
        indexes[lead] = lead
        lead += 1
    places: dict[str, list[int]] = {}
    for index in range(lead, len(covered)):
        places.setdefault(covered[index], []).append(index)
    limit = len(covered)
    for position in range(len(replacement) - 1, lead - 1, -1):
        found = [
            index for index in places.get(replacement[position], ()) if index < limit
        ]
        if found:
            indexes[position] = limit = found[-1]
    return indexes
