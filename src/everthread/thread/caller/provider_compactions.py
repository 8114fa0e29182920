"""Compactions that the provider made, which callers send back and which are never changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.core.messages import kind_of
from everthread.thread.caller.caller_request import CallerMessage

COMPACTION_MARK = '"compaction"'
"""A text that every message with a compaction of the provider contains."""


def count_protected_messages(messages: Sequence[CallerMessage], texts: Sequence[str]) -> int:
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
    return any(kind_of(part) == "compaction" for part in (value, *parts) if isinstance(part, dict))
