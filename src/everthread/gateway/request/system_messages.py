"""Count the system messages around a conversation, which are no part of its identity."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.core.messages import SYSTEM_ROLES, kind_of
from everthread.gateway.compaction_items import COMPACTION_TRIGGER
from everthread.gateway.request.json_slices import Element


def count_leading_system(elements: Sequence[Element]) -> int:
    """Count the messages of the system prompt at the start."""
    for count in range(len(elements)):
        value = elements[count].value
        if not isinstance(value, dict) or value.get("role") not in SYSTEM_ROLES:
            return count
    return len(elements)


def count_trailing_system(elements: Sequence[Element], system_count: int) -> int:
    """Count the system reminders at the end, which clients renew with each request."""
    count = 0
    while len(elements) - count > system_count + 1:
        value = elements[len(elements) - 1 - count].value
        if not isinstance(value, dict) or not (
            value.get("role") in SYSTEM_ROLES or kind_of(value) == COMPACTION_TRIGGER
        ):
            break
        count += 1
    return count
