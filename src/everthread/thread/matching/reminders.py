"""Reminders that clients add to the newest user message and remove later."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from everthread.thread.matching.history import MessageIdentity

_BLANK_LINE_PATTERN = re.compile(r"\n\n+")


class Reminder(NamedTuple):
    """An addition to the newest user message."""

    appended_text: str
    blocks: Sequence[dict[str, Any]] = ()
    """Extra blocks after the message's own."""


def find_last_user_message(messages: Sequence[MessageIdentity], first: int, end: int) -> int:
    """Return the last index in `[first, end)` with words of the user, or -1."""
    for index in range(end - 1, first - 1, -1):
        if messages[index].has_user_words:
            return index
    return -1


def list_reminders(value: dict[str, Any]) -> Iterator[Reminder]:
    """Yield possible reminders: each end of a message after a blank line or a block, the shortest first."""
    parts = _content_parts(value)
    text = str(parts[-1].get("text") or "")
    for match in reversed(list(_BLANK_LINE_PATTERN.finditer(text))):
        yield Reminder(text[match.start() :])
    for index in range(len(parts) - 1, 0, -1):
        yield Reminder("", parts[index:])


def with_reminder(value: dict[str, Any], reminder: Reminder) -> dict[str, Any]:
    """Return a user message with the reminder that it had as the newest message."""
    appended_text, blocks = reminder
    parts = _content_parts(value)
    if appended_text:
        last_text = parts[-1].get("text") or ""
        parts[-1] = {**parts[-1], "text": f"{last_text}{appended_text}"}
    return {**value, "content": [*parts, *blocks]}


def _content_parts(value: dict[str, Any]) -> list[dict[str, Any]]:
    content = value["content"]
    parts = content if isinstance(content, list) else [content]
    return [
        part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in parts
    ]
