"""Check the messages of a caller, and split them into results and others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from everthread.core.messages import (
    RESULT_BLOCK_KINDS,
    Message,
    Part,
    ToolCall,
    kind_of,
    parts_of,
    results_of,
    with_content,
)
from everthread.core.validation import is_empty
from everthread.errors import InputError

MessageInput = str | Message | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
"""Text, content parts, a message, or several messages."""

ROLES = ("user", "assistant", "tool")
UNFINISHED_RESULT = "[No result: the turn ended before this tool finished.]"


def as_messages(value: MessageInput) -> list[Message]:
    """Return the input as a list of messages. Raise `InputError` if it is not valid."""
    if value is None:
        return []
    if isinstance(value, str):
        if not value.strip():
            raise InputError("the message is empty; nothing was stored")
        return [{"role": "user", "content": value}]
    if isinstance(value, Mapping):
        return [_check_message(value)]
    value_list: Any = value
    if not isinstance(value_list, list | tuple):
        raise InputError(
            f"a message is text or an object with a role, not {type(value).__name__}; nothing was stored"
        )
    items: list[Any] = list(value_list)
    if items and all(
        isinstance(item, Mapping) and "role" not in item and "type" in item for item in items
    ):
        return [_check_message({"role": "user", "content": [dict(item) for item in items]})]
    return [_check_message(item) for item in items]


def make_stub_results(calls: Mapping[str, ToolCall] | Iterable[str]) -> list[Message]:
    """Return results for calls that will never get one, because providers refuse a history with open calls."""
    return [
        {"role": "tool", "tool_call_id": call_id, "content": UNFINISHED_RESULT} for call_id in calls
    ]


def _check_message(value: Any) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise InputError(
            f"a message is an object with a role, not {type(value).__name__}; nothing was stored"
        )
    if value["role"] not in ROLES:
        raise InputError(
            f"a message of role {value['role']!r} cannot be sent; use {', '.join(ROLES)}. "
            "The system prompt is given when the conversation is opened."
        )
    message = cast("Message", dict(value))
    if not isinstance(message.get("content"), str | list | None):
        raise InputError(
            f"content is text or a list of parts, not {type(value['content']).__name__}"
        )
    if message["role"] != "tool" and is_empty(message) and not results_of(message):
        raise InputError("the message is empty; nothing was stored")
    return message


def split_results(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """Split messages into tool results and others.

    Results that came as blocks of a user message become separate messages.
    """
    results: list[Message] = []
    others: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(message)
            continue
        if not results_of(message):
            others.append(message)
            continue
        parts = parts_of(message)
        results += [
            _make_result_message(part) for part in parts if kind_of(part) in RESULT_BLOCK_KINDS
        ]
        other_parts = with_content(
            message, [part for part in parts if kind_of(part) not in RESULT_BLOCK_KINDS]
        )
        if not is_empty(other_parts):
            others.append(other_parts)
    return results, others


def _make_result_message(part: Part) -> Message:
    message: Message = {
        "role": "tool",
        "tool_call_id": part.get("tool_use_id", ""),
        "content": part.get("content"),
    }
    return {**message, "is_error": True} if part.get("is_error") is True else message
