"""What a caller hands in, as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from everthread.core.messages import Call, Message
from everthread.errors import InputError

Given = str | Message | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
"""Text, content parts, a message, or several messages."""

ROLES = ("user", "assistant", "tool")
NEVER_RAN = "[No result: the turn ended before this tool finished.]"


def as_messages(given: Given) -> list[Message]:
    """The messages meant; `InputError` tells what is wrong with what was given."""
    if given is None:
        return []
    if isinstance(given, str):
        if not given.strip():
            raise InputError("the message is empty; nothing was stored")
        return [{"role": "user", "content": given}]
    if isinstance(given, Mapping):
        return [_message(given)]
    items: list[Any] = list(given)
    if items and all(isinstance(item, Mapping) and "role" not in item and "type" in item for item in items):
        return [{"role": "user", "content": [dict(item) for item in items]}]
    return [_message(item) for item in items]


def open_stubs(calls: Mapping[str, Call] | Iterable[str]) -> list[Message]:
    """Results for calls that will get none any more: a history with open calls is refused everywhere."""
    return [{"role": "tool", "tool_call_id": call_id, "content": NEVER_RAN} for call_id in calls]


def _message(value: Any) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise InputError(f"a message is an object with a role, not {type(value).__name__}; nothing was stored")
    if value["role"] not in ROLES:
        raise InputError(
            f"a message of role {value['role']!r} cannot be sent; use {', '.join(ROLES)}. "
            "The system prompt is given when the conversation is opened."
        )
    return cast("Message", dict(value))
