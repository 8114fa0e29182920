"""Decode Anthropic's messages. A decoded message keeps its native value, which is written back verbatim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.json_values import as_text
from everthread.core.messages import Message, ToolCallDict, kind_of, make_call, simplify_parts
from everthread.errors import WireError
from everthread.wire.alternating_roles import share_native_value, split_at_results
from everthread.wire.anthropic.anthropic_blocks import (
    API,
    decode_arguments,
    decode_part,
)
from everthread.wire.native_values import with_native
from everthread.wire.payload_checks import (
    require_list,
    require_object,
    require_objects,
    require_text,
)

ROLES = ("user", "assistant", "system")
THINKING_BLOCK_KINDS = frozenset({"thinking", "redacted_thinking"})


def decode_messages(
    wire_messages: Sequence[Mapping[str, Any]], *, model: str | None = None
) -> list[Message]:
    """Return core messages. `model` is the author of the assistant's reasoning, if known."""
    decoded: list[Message] = []
    for index, message in enumerate(require_list(wire_messages, "messages")):
        decoded += decode_message(message, f"messages[{index}]", model=model)
    return decoded


def decode_message(message: Any, path: str, *, model: str | None = None) -> list[Message]:
    """Decode one wire message: one core message, or several if it carries tool results."""
    message = require_object(message, path)
    role = message.get("role")
    content = message.get("content")
    if role not in ROLES:
        raise WireError(f"{path}.role must be one of {', '.join(ROLES)}, not {role!r}")
    author = model if role == "assistant" else None
    core_message: Message
    if isinstance(content, str):
        core_message = {"role": role, "content": content}
        return [with_native(core_message, API, message, model=author)]
    blocks = require_objects(content, f"{path}.content")
    if role == "user":
        return _decode_user(message, blocks, path)
    if role == "assistant":
        return [with_native(_decode_assistant(blocks, path), API, message, model=author)]
    return [with_native(_decode_simple_message(role, blocks), API, message)]


def _decode_simple_message(role: str, blocks: Sequence[Mapping[str, Any]]) -> Message:
    return {"role": role, "content": [decode_part(block) for block in blocks]}


def _decode_assistant(blocks: Sequence[Mapping[str, Any]], path: str) -> Message:
    parts = [
        decode_part(block)
        for block in blocks
        if kind_of(block) not in THINKING_BLOCK_KINDS | {"tool_use"}
    ]
    message: Message = {"role": "assistant", "content": simplify_parts(parts)}
    calls = [
        _decode_call(block, f"{path}.content[{index}]")
        for index, block in enumerate(blocks)
        if kind_of(block) == "tool_use"
    ]
    if calls:
        message["tool_calls"] = calls
    thoughts = (as_text(block.get("thinking")) for block in blocks)
    if reasoning := "\n\n".join(filter(None, thoughts)):
        message["reasoning_content"] = reasoning
    return message


def _decode_call(block: Mapping[str, Any], path: str) -> ToolCallDict:
    return make_call(
        require_text(block.get("id"), f"{path}.id"),
        require_text(block.get("name"), f"{path}.name"),
        arguments=decode_arguments(block.get("input", {})),
    )


def _decode_user(
    message: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], path: str
) -> list[Message]:
    decoded_runs: list[tuple[Message, Sequence[Mapping[str, Any]]]] = []
    for start, run in split_at_results(blocks, _is_result):
        if run and _is_result(run[0]):
            decoded_runs.append((_decode_result(run[0], f"{path}.content[{start}]"), run))
        else:
            decoded_runs.append((_decode_simple_message("user", run), run))
    return share_native_value(decoded_runs, message, "content", api=API)


def _is_result(block: Mapping[str, Any]) -> bool:
    return kind_of(block) == "tool_result"


def _decode_result(block: Mapping[str, Any], path: str) -> Message:
    call_id = require_text(block.get("tool_use_id"), f"{path}.tool_use_id")
    content = block.get("content")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content = [decode_part(inner) for inner in require_objects(content, f"{path}.content")]
    result: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
    return {**result, "is_error": True} if block.get("is_error") is True else result
