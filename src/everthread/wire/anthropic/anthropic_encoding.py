"""Encode one message in Anthropic's form: its native value verbatim, or a translation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.core.caching.claude_cache_marks import find_markable_block
from everthread.core.json_values import as_list, as_object, as_text
from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    Messages,
    Part,
    content_text,
    kind_of,
    parts_of,
)
from everthread.core.types import System
from everthread.wire.alternating_roles import EncodedMessage, wrap_instruction
from everthread.wire.anthropic.anthropic_blocks import (
    API,
    encode_arguments,
    encode_part,
    make_text_block,
)
from everthread.wire.anthropic.anthropic_decoding import (
    ROLES,
    THINKING_BLOCK_KINDS,
)
from everthread.wire.native_values import can_use_reasoning, native_record


def find_certain_role(message: Message) -> str:
    """Return the wire role of a message if it certainly adds a block, or an empty string if that is not certain."""
    if message["role"] == "tool":
        return "user"
    calls: Any = message.get("tool_calls")
    has_calls = (
        isinstance(calls, list) and len(message) == 3 and calls and isinstance(calls[0], dict)
    )
    if message["role"] == "assistant" and has_calls and "function" in calls[0]:
        return "assistant"
    encoded_message = _encode_text_message(message)
    return encoded_message.role if encoded_message else ""


def encode_assistant_blocks(message: Message) -> list[Part]:
    """Return the content of a reply: the blocks of one assistant message, whichever model wrote it."""
    encoded_message = encode_message(message, None, AnthropicCallIds())
    return [] if encoded_message is None else encoded_message.parts


def encode_system(system: System, leading_messages: Messages) -> System:
    """Return the system prompt, with the instructions a list of messages begins with."""
    if not leading_messages:
        return system
    blocks = parts_of({"content": system})
    for message in leading_messages:
        encoded_message = EncodedMessage(
            "system",
            [_replace_media(block) for block in map(encode_part, parts_of(message)) if block],
        )
        mark = _find_cache_mark(message, is_native=False)
        if mark:
            encoded_message = _move_cache_mark(encoded_message, mark)
        blocks += encoded_message.parts
    return blocks or None


def count_leading_instructions(messages: Messages) -> int:
    """Count the first messages that belong in the system prompt; Anthropic's own system messages stay in place."""
    count = 0
    while (
        count < len(messages)
        and messages[count].get("role") in SYSTEM_ROLES
        and not native_record(messages[count], API)
    ):
        count += 1
    return count


@dataclass(slots=True)
class AnthropicCallIds:
    """Assign call ids of the alphabet that Anthropic accepts, each used once. A result names the latest call of its id.

    A new id depends on earlier messages only, so a longer history never changes the ids of a shorter one.
    """

    use_counts: dict[str, int] = field(default_factory=dict)
    latest_wire_ids: dict[str, str] = field(default_factory=dict)

    def copy(self) -> AnthropicCallIds:
        return AnthropicCallIds(dict(self.use_counts), dict(self.latest_wire_ids))

    def keep_id(self, call_id: str) -> None:
        self.use_counts.setdefault(call_id, 1)
        self.latest_wire_ids[call_id] = call_id

    def assign_id(self, call_id: str) -> str:
        base = candidate = _clean_call_id(call_id)
        while candidate in self.use_counts:
            self.use_counts[base] += 1
            candidate = f"{base}_{self.use_counts[base]}"
        self.use_counts[candidate] = 1
        self.latest_wire_ids[call_id] = candidate
        return candidate

    def find_id_for_result(self, call_id: str) -> str:
        return self.latest_wire_ids.get(call_id) or _clean_call_id(call_id)


def _clean_call_id(call_id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id) or "call"


def encode_message(
    message: Message, model: str | None, call_ids: AnthropicCallIds
) -> EncodedMessage | None:
    """Return a message in Anthropic's form, or None if it has no content to send."""
    if (text_message := _encode_text_message(message)) is not None:
        return text_message
    encoded_message = _encode_native_message(message, model, call_ids) or _encode_foreign_message(
        message, call_ids
    )
    mark = _find_cache_mark(message, is_native=encoded_message.native is not None)
    if mark and encoded_message.parts:
        encoded_message = _move_cache_mark(encoded_message, mark)
    return encoded_message if encoded_message.parts or encoded_message.native is not None else None


def _encode_text_message(message: Message) -> EncodedMessage | None:
    """Return the blocks of a message that is only a role and a text, the most frequent form, or None for others."""
    if len(message) != 2:
        return None
    role = message["role"]
    content = message.get("content")
    if role in ROLES and isinstance(content, str) and content and not content.isspace():
        return EncodedMessage(role, [{"type": "text", "text": content}])
    return None


def _encode_native_message(
    message: Message, model: str | None, call_ids: AnthropicCallIds
) -> EncodedMessage | None:
    record = native_record(message, API)
    value = record["value"] if record else None
    if record is None or not isinstance(value, dict) or value.get("role") not in ROLES:
        return None
    blocks = parts_of(value)
    for block in blocks:
        if kind_of(block) == "tool_use":
            call_ids.keep_id(as_text(block.get("id")))
    continues_previous = bool(record.get("joined"))
    native: dict[str, Any] | None = value
    if not can_use_reasoning(message, API, model):
        without_thoughts = [block for block in blocks if kind_of(block) not in THINKING_BLOCK_KINDS]
        if len(without_thoughts) < len(blocks):
            blocks = without_thoughts
            native = {**value, "content": blocks} if blocks else None
    return EncodedMessage(value["role"], blocks, native, continues_previous)


def _encode_foreign_message(message: Message, call_ids: AnthropicCallIds) -> EncodedMessage:
    role = message.get("role")
    if role == "tool":
        result_fields = {
            "tool_use_id": message.get("tool_call_id"),
            "content": message.get("content"),
        }
        error_field = {"is_error": True} if message.get("is_error") is True else {}
        return EncodedMessage(
            "user",
            [_encode_result({"type": "tool_result", **result_fields, **error_field}, call_ids)],
        )
    if role in SYSTEM_ROLES:
        block = make_text_block(content_text(message.get("content")))
        return EncodedMessage(
            "user",
            [{"type": "text", "text": wrap_instruction(block["text"])}] if block else [],
        )
    is_from_other_api = "_native" in message
    parts = [
        part
        for part in parts_of(message)
        if not (is_from_other_api and kind_of(part) in THINKING_BLOCK_KINDS)
    ]
    blocks = [block for part in parts if (block := _encode_block(part, call_ids))]
    if role != "assistant":
        return EncodedMessage("user", blocks)
    refusal = make_text_block(message.get("refusal"))
    blocks = [_replace_media(block) for block in blocks] + ([refusal] if refusal else [])
    return EncodedMessage("assistant", blocks + list(_encode_calls(message, call_ids)))


def _encode_block(part: Part, call_ids: AnthropicCallIds) -> Part | None:
    kind = kind_of(part)
    if kind == "tool_use":
        return _encode_call(
            part,
            part.get("id"),
            part.get("name"),
            encode_arguments(part.get("input")),
            call_ids,
        )
    return _encode_result(part, call_ids) if kind == "tool_result" else encode_part(part)


def _encode_calls(message: Mapping[str, Any], call_ids: AnthropicCallIds) -> Iterator[Part]:
    for call in map(as_object, as_list(message.get("tool_calls"))):
        function = call.get("function")
        custom = call.get("custom")
        if isinstance(custom, dict):
            yield _encode_call(
                {},
                call.get("id"),
                custom.get("name"),
                {"input": custom.get("input")},
                call_ids,
            )
        elif isinstance(function, dict):
            arguments = encode_arguments(function.get("arguments"))
            yield _encode_call({}, call.get("id"), function.get("name"), arguments, call_ids)


def _encode_call(
    other_fields: Part,
    call_id: Any,
    name: Any,
    arguments: dict[str, Any],
    call_ids: AnthropicCallIds,
) -> Part:
    call_fields = {
        "type": "tool_use",
        "id": call_ids.assign_id(as_text(call_id)),
        "name": as_text(name) or "unknown",
    }
    return {**other_fields, **call_fields, "input": arguments}


def _encode_result(part: Part, call_ids: AnthropicCallIds) -> Part:
    """Return a result block; its content may be empty, but has no blank text."""
    block = {
        **part,
        "tool_use_id": call_ids.find_id_for_result(as_text(part.get("tool_use_id"))),
    }
    content = block.pop("content", None)
    if isinstance(content, list):
        inner = list(filter(None, map(encode_part, parts_of({"content": content}))))
        return {**block, "content": inner} if inner else block
    text = content_text(content)
    return {**block, "content": text} if text.strip() else block


def _replace_media(block: Part) -> Part:
    """Replace an image or a file with a placeholder: Anthropic accepts them from the user only."""
    kind = kind_of(block)
    return {"type": "text", "text": f"[{kind} omitted]"} if kind in ("image", "document") else block


def _find_cache_mark(message: Message, *, is_native: bool) -> Mapping[str, Any] | None:
    """Return the cache mark of a message, or None if it has none.

    A native message is sent in its native form; its core content is searched too, because a mark may be only there.
    """
    parts = parts_of(message) if is_native else []
    marks = (block.get("cache_control") for block in (message, *reversed(parts)))
    return next((mark for mark in marks if isinstance(mark, dict)), None)


def _move_cache_mark(encoded_message: EncodedMessage, mark: Mapping[str, Any]) -> EncodedMessage:
    """Move a message's cache mark to its last block that can carry one."""
    blocks = list(encoded_message.parts)
    index = find_markable_block(blocks)
    if index is not None:
        blocks[index] = {**blocks[index], "cache_control": dict(mark)}
    native = encoded_message.native
    if native is not None:
        native = {**native, "content": blocks}
    return replace(encoded_message, parts=blocks, native=native)
