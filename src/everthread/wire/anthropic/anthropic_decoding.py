"""Decode Anthropic's messages. A decoded message keeps its native value, which is written back verbatim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everthread.core.messages import (
    Message,
    ToolCallDict,
    kind_of,
    simplify_parts,
)
from everthread.errors import WireError
from everthread.wire.anthropic.content_blocks import (
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

API = "anthropic"
ROLES = ("user", "assistant", "system")
THINKING_BLOCK_KINDS = frozenset({"thinking", "redacted_thinking"})


def decode_messages(
    wire: Sequence[Mapping[str, Any]], *, model: str | None = None
) -> list[Message]:
    """Return core messages. `model` is the author of the assistant's reasoning, if known."""
    decoded: list[Message] = []
    for index, message in enumerate(require_list(wire, "messages")):
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
    if isinstance(content, str):
        return [with_native({"role": role, "content": content}, API, message, model=author)]
    blocks = require_objects(content, f"{path}.content")
    if role == "user":
        return _decode_user(message, blocks, path)
    core_message = (
        _decode_assistant(blocks, path)
        if role == "assistant"
        else _decode_simple_message(role, blocks)
    )
    return [with_native(core_message, API, message, model=author)]


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
    reasoning_texts = [
        text for block in blocks if isinstance(text := block.get("thinking"), str) and text
    ]
    if reasoning_texts:
        message["reasoning_content"] = "\n\n".join(reasoning_texts)
    return message


def _decode_call(block: Mapping[str, Any], path: str) -> ToolCallDict:
    return {
        "id": require_text(block.get("id"), f"{path}.id"),
        "type": "function",
        "function": {
            "name": require_text(block.get("name"), f"{path}.name"),
            "arguments": decode_arguments(block.get("input", {})),
        },
    }


def _decode_user(
    message: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], path: str
) -> list[Message]:
    block_runs = list(_split_at_results(blocks))
    if len(block_runs) <= 1 and not _is_result(blocks[:1]):
        return [with_native(_decode_simple_message("user", blocks), API, message)]
    decoded: list[Message] = []
    for index, run in block_runs:
        core_message = (
            _decode_result(run[0], f"{path}.content[{index}]")
            if _is_result(run)
            else _decode_simple_message("user", run)
        )
        value = {**message, "content": list(run)} if len(block_runs) > 1 else message
        decoded.append(with_native(core_message, API, value, continues_previous=bool(decoded)))
    return decoded


def _split_at_results(
    blocks: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int, Sequence[Mapping[str, Any]]]]:
    """Yield runs of blocks with their start index: each tool result alone, the blocks between results together."""
    start = 0
    for index, block in enumerate(blocks):
        if _is_result([block]):
            if start < index:
                yield start, blocks[start:index]
            yield index, [block]
            start = index + 1
    if start < len(blocks):
        yield start, blocks[start:]


def _is_result(run: Sequence[Mapping[str, Any]]) -> bool:
    return bool(run) and kind_of(run[0]) == "tool_result"


def _decode_result(block: Mapping[str, Any], path: str) -> Message:
    call_id = require_text(block.get("tool_use_id"), f"{path}.tool_use_id")
    content = block.get("content")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content = [decode_part(inner) for inner in require_objects(content, f"{path}.content")]
    result: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
    return {**result, "is_error": True} if block.get("is_error") is True else result
