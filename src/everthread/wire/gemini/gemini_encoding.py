"""Encode core messages as Gemini's contents; a message from Gemini is written back verbatim."""

from __future__ import annotations

import json
import re
from typing import Any

from everthread.core.json_values import as_text, without_keys
from everthread.core.message_repair import OPENING_TEXT
from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    Messages,
    Part,
    calls_of,
    content_text,
    kind_of,
    parts_of,
    results_of,
)
from everthread.wire.alternating_roles import (
    EncodedMessage,
    group_by_role,
    needs_opening,
    wrap_instruction,
)
from everthread.wire.gemini.field_names import find_field_name, get_object_field
from everthread.wire.gemini.gemini_parts import API, Content, encode_part
from everthread.wire.native_values import (
    can_use_reasoning,
    native_record,
    native_value,
)
from everthread.wire.openai_chat import to_chat_messages

PLACEHOLDER_SIGNATURE = "skip_thought_signature_validator"
"""The signature that Google documents for calls that its model did not write."""
_GENERATION_PATTERN = re.compile(r"gemini-(\d+)")
_FIRST_SIGNED_GENERATION = 3
"""The first generation of models that requires a signature at calls."""
CallNames = dict[str, tuple[str, str]]
"""Name and native id of each call, by its id."""


def encode_messages(messages: Messages, *, model: str | None = None) -> list[Content]:
    """Return contents for `model`; thoughts and signatures of another model are left out."""
    call_names: CallNames = {}
    encoded_messages = [
        encoded_message
        for message in messages
        if (encoded_message := _encode_message(message, model, call_names)) is not None
    ]
    contents = [_join_neighbours(neighbours) for neighbours in group_by_role(encoded_messages)]
    if messages and needs_opening(encoded_messages, assistant_role="model"):
        contents.insert(0, {"role": "user", "parts": [{"text": OPENING_TEXT}]})
    return contents


def _join_neighbours(neighbours: list[EncodedMessage]) -> Content:
    first = neighbours[0]
    if len(neighbours) == 1 and first.native is not None:
        return dict(first.native)
    parts = [part for neighbour in neighbours for part in neighbour.parts]
    if first.native is not None and all(neighbour.native is not None for neighbour in neighbours):
        return {**first.native, "parts": parts}
    if first.role == "user":  # responses first
        parts.sort(key=lambda part: get_object_field(part, "functionResponse") is None)
    return {"role": first.role, "parts": parts}


def _encode_message(
    message: Message, model: str | None, call_names: CallNames
) -> EncodedMessage | None:
    """Return the parts that a message adds to the wire, or None if there are none."""
    value = native_value(message, API)
    if isinstance(value, dict):
        return _encode_native_message(message, value, model, call_names)
    encoded_messages = [
        _encode_foreign_message(chat_message, model, call_names)
        for chat_message in to_chat_messages(message)
    ]
    parts = [part for encoded_message in encoded_messages for part in encoded_message.parts]
    return EncodedMessage(encoded_messages[0].role, parts) if parts else None


def _encode_native_message(
    message: Message, value: Content, model: str | None, call_names: CallNames
) -> EncodedMessage:
    record = native_record(message, API)
    continues_previous = bool(record and record.get("joined"))
    parts = parts_of({"content": value.get("parts")})
    if message["role"] != "assistant":
        return EncodedMessage("user", parts, value, continues_previous)
    call_fields = (get_object_field(part, "functionCall") for part in parts)
    function_calls = [fields for fields in call_fields if fields is not None]
    for call, function_call in zip(calls_of(message), function_calls, strict=False):
        call_names[call.id] = call.name, as_text(function_call.get("id"))
    content = value if value.get("role") else {"role": "model", **value}
    if can_use_reasoning(message, API, model):
        return EncodedMessage("model", parts, content)
    unsigned_parts = [_without_signature(part) for part in parts if not part.get("thought")]
    new_parts = _sign_calls(unsigned_parts, model)
    if new_parts != parts:
        content = {**content, "parts": new_parts}
    return EncodedMessage("model", new_parts, content)


def _without_signature(part: Part) -> Part:
    name = find_field_name(part, "thoughtSignature")
    return without_keys(part, name) if name in part else part


def _sign_calls(parts: list[Part], model: str | None) -> list[Part]:
    """Give the first call a placeholder signature, which models since the third generation require."""
    generation = _GENERATION_PATTERN.search(model or "")
    if generation is None or int(generation[1]) < _FIRST_SIGNED_GENERATION:
        return parts
    signed_parts = list(parts)
    for index, part in enumerate(parts):
        if get_object_field(part, "functionCall") is not None:
            signed_parts[index] = {**part, "thoughtSignature": PLACEHOLDER_SIGNATURE}
            break
    return signed_parts


def _encode_foreign_message(
    message: Message, model: str | None, call_names: CallNames
) -> EncodedMessage:
    role = message.get("role")
    if role == "tool":
        return EncodedMessage("user", _encode_response(message, call_names))
    if role in SYSTEM_ROLES:
        text = content_text(message.get("content"))
        return EncodedMessage("user", [{"text": wrap_instruction(text)}] if text.strip() else [])
    encoded_parts = map(encode_part, parts_of(message))
    parts = [part for part in encoded_parts if part is not None]
    if role != "assistant":
        return EncodedMessage("user", parts)
    if refusal := as_text(message.get("refusal")):
        parts.append({"text": refusal})
    for call in calls_of(message):
        call_names[call.id] = call.name, ""
        arguments = _parse_arguments(call.arguments)
        parts.append({"functionCall": {"name": call.name or "unknown", "args": arguments}})
    return EncodedMessage("model", _sign_calls(parts, model))


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"input": text}


def _encode_response(message: Message, call_names: CallNames) -> list[Part]:
    [result] = results_of(message)
    name, native_id = call_names.get(result.call_id, (result.tool_name, ""))
    key = "error" if message.get("is_error") is True else "output"
    name = name or result.tool_name or "unknown"
    response: dict[str, Any] = {"id": native_id} if native_id else {}
    response |= {"name": name, "response": {key: result.text}}
    media = (encode_part(part) for part in parts_of(message) if kind_of(part) != "text")
    return [{"functionResponse": response}, *(part for part in media if part is not None)]
