"""Anthropic messages -> core messages.

A user message that carries tool results becomes several core messages: one `tool` message a result, one `user`
message for what stands between or after them. Each keeps its own blocks as native value; all but the first are
marked as joined to the one before, so that writing puts the one message together again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everthread.core.messages import Message, ToolCall, kind_of, simplest
from everthread.errors import WireError
from everthread.wire.anthropic.blocks import API, arguments_text, part_from
from everthread.wire.native import with_native
from everthread.wire.shape import a_list, a_text, an_object

ROLES = ("user", "assistant", "system")
REASONING = frozenset({"thinking", "redacted_thinking"})


def decode_messages(wire: Sequence[Mapping[str, Any]], *, model: str | None = None) -> list[Message]:
    """Core messages; `model` is the one whose reasoning the assistant's messages hold, where that is known."""
    decoded: list[Message] = []
    for index, message in enumerate(a_list(wire, "messages")):
        decoded += decode_message(message, f"messages[{index}]", model=model)
    return decoded


def decode_message(message: Any, where: str, *, model: str | None = None) -> list[Message]:
    """One wire message; more than one core message only where it carries tool results."""
    message = an_object(message, where)
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise WireError(f"{where}.role must be one of {', '.join(ROLES)}, not {role!r}")
    author = model if role == "assistant" else None
    if isinstance(content, str):
        return [with_native({"role": role, "content": content}, API, message, model=author)]
    blocks = objects(content, f"{where}.content")
    if role == "user":
        return _user(message, blocks, where)
    core = _assistant(blocks, where) if role == "assistant" else _said(role, blocks)
    return [with_native(core, API, message, model=author)]


def objects(value: Any, where: str) -> list[Mapping[str, Any]]:
    """A list of objects, or a sentence that says which one is none."""
    return [an_object(item, f"{where}[{at}]") for at, item in enumerate(a_list(value, where))]


def _said(role: str, blocks: Sequence[Mapping[str, Any]]) -> Message:
    return {"role": role, "content": [part_from(block) for block in blocks]}


def _assistant(blocks: Sequence[Mapping[str, Any]], where: str) -> Message:
    parts = [part_from(block) for block in blocks if kind_of(block) not in REASONING | {"tool_use"}]
    message: Message = {"role": "assistant", "content": simplest(parts)}
    calls = [_call(block, f"{where}.content[{at}]") for at, block in enumerate(blocks) if kind_of(block) == "tool_use"]
    if calls:
        message["tool_calls"] = calls
    thoughts = [thought for block in blocks if isinstance(thought := block.get("thinking"), str) and thought]
    if thoughts:
        message["reasoning_content"] = "\n\n".join(thoughts)
    return message


def _call(block: Mapping[str, Any], where: str) -> ToolCall:
    return {
        "id": a_text(block.get("id"), f"{where}.id"),
        "type": "function",
        "function": {
            "name": a_text(block.get("name"), f"{where}.name"),
            "arguments": arguments_text(block.get("input", {})),
        },
    }


def _user(message: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], where: str) -> list[Message]:
    pieces = list(_runs(blocks))
    if len(pieces) <= 1 and not _is_result(blocks[:1]):
        return [with_native(_said("user", blocks), API, message)]
    decoded: list[Message] = []
    for at, run in pieces:
        core = _result(run[0], f"{where}.content[{at}]") if _is_result(run) else _said("user", run)
        value = {**message, "content": list(run)} if len(pieces) > 1 else message
        decoded.append(with_native(core, API, value, joined=bool(decoded)))
    return decoded


def _runs(blocks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Sequence[Mapping[str, Any]]]]:
    """Each tool result alone, everything between two of them together; each run with the place it starts at."""
    start = 0
    for at, block in enumerate(blocks):
        if _is_result([block]):
            if start < at:
                yield start, blocks[start:at]
            yield at, [block]
            start = at + 1
    if start < len(blocks):
        yield start, blocks[start:]


def _is_result(run: Sequence[Mapping[str, Any]]) -> bool:
    return bool(run) and kind_of(run[0]) == "tool_result"


def _result(block: Mapping[str, Any], where: str) -> Message:
    call_id = a_text(block.get("tool_use_id"), f"{where}.tool_use_id")
    content = block.get("content")
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content = [part_from(inner) for inner in objects(content, f"{where}.content")]
    result: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
    return {**result, "is_error": True} if block.get("is_error") is True else result
