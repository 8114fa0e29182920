"""Correct the shape of one message: its role, the types of its parts, the form of its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from everthread.core.json_values import json_text
from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    Message,
    Part,
    content_text,
    without_native_value,
)
from everthread.core.validation import (
    ARGUMENT_FIELD_BY_CALL_TYPE,
    BLOCK_ROLES,
    is_chat_call,
)

ROLE_NAMES = {
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "bot": "assistant",
}


def correct_message(message: Mapping[str, Any], role: str) -> Message:
    """Return the message itself if its shape is right, else a corrected copy."""
    changes: dict[str, Any] = {}
    content = message.get("content")
    calls = message.get("tool_calls")
    if role != message["role"]:
        changes["role"] = role
    if isinstance(content, list):
        parts = [part for item in content if (part := _correct_part(item, role)) is not None]
        if not _has_same_items(parts, content) or not (parts or role == "assistant"):
            changes["content"] = parts or ""
    elif not isinstance(content, str) and (content is not None or role != "assistant"):
        changes["content"] = content_text(content)
    if "tool_calls" in message:
        call_list = calls if isinstance(calls, list) else []
        corrected_calls = [call for item in call_list if (call := _correct_call(item)) is not None]
        if not corrected_calls or not _has_same_items(corrected_calls, call_list):
            changes["tool_calls"] = corrected_calls
    if not changes:
        return cast("Message", message)
    copy = dict(without_native_value(message)) | changes
    if not copy.get("tool_calls"):
        copy.pop("tool_calls", None)
        if role == "assistant" and copy.get("content") is None:
            copy["content"] = ""
    return cast("Message", copy)


def _has_same_items(new: Sequence[Any], old: Sequence[Any]) -> bool:
    return len(new) == len(old) and all(
        new_item is old_item for new_item, old_item in zip(new, old, strict=True)
    )


def _correct_call(call: Any) -> Any:
    """Return the call with a type and text arguments, or None if it names no tool."""
    for kind, key in ARGUMENT_FIELD_BY_CALL_TYPE.items():
        inner = call.get(kind) if isinstance(call, dict) else None
        if isinstance(inner, dict) and is_name(inner.get("name")):
            if is_chat_call(call):
                return call
            return {
                **call,
                "type": kind,
                kind: {**inner, key: json_text(inner.get(key)) or "{}"},
            }
    return None


def _correct_part(part: Any, role: str) -> Part | None:
    """Return the part with a type, or None if it is not a part, or not allowed for this role."""
    if not isinstance(part, dict):
        return None if part is None else {"type": "text", "text": str(part)}
    if not isinstance(part.get("type"), str):
        return {**part, "type": "text", "text": str(part.get("text", ""))}
    if BLOCK_ROLES.get(part["type"], role) != role:
        return None
    if part["type"] in CALL_BLOCK_KINDS and not is_name(part.get("name")):
        return {"type": "text", "text": "[a tool call without a name was here]"}
    return part


def is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
