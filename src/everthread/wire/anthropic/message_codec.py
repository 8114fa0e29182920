"""Anthropic's messages <-> core.

Decoded messages keep their native value, which is written back verbatim. Other messages are translated.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.caching.claude_cache_marks import find_markable_block
from everthread.core.message_repair import OPENING_TEXT
from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    Messages,
    Part,
    ToolCall,
    as_text,
    content_text,
    kind_of,
    parts_of,
    simplify_parts,
)
from everthread.core.types import System
from everthread.errors import WireError
from everthread.wire.anthropic.content_blocks import (
    decode_arguments,
    decode_part,
    encode_arguments,
    encode_part,
    make_text_block,
)
from everthread.wire.common import (
    can_use_reasoning,
    group_by_role,
    native_record,
    require_list,
    require_object,
    require_objects,
    require_text,
    with_native,
)

API = "anthropic"
ROLES = ("user", "assistant", "system")
REASONING_BLOCK_KINDS = frozenset({"thinking", "redacted_thinking"})


def decode_messages(
    wire: Sequence[Mapping[str, Any]], *, model: str | None = None
) -> list[Message]:
    """Return core messages. `model` is the author of the assistant's reasoning, if known."""
    decoded: list[Message] = []
    for index, message in enumerate(require_list(wire, "messages")):
        decoded += decode_message(message, f"messages[{index}]", model=model)
    return decoded


def decode_message(
    message: Any, path: str, *, model: str | None = None
) -> list[Message]:
    """Decode one wire message: one core message, or several if it carries tool results."""
    message = require_object(message, path)
    role = message.get("role")
    content = message.get("content")
    if role not in ROLES:
        raise WireError(f"{path}.role must be one of {', '.join(ROLES)}, not {role!r}")
    author = model if role == "assistant" else None
    if isinstance(content, str):
        return [
            with_native({"role": role, "content": content}, API, message, model=author)
        ]
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
        if kind_of(block) not in REASONING_BLOCK_KINDS | {"tool_use"}
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
        text
        for block in blocks
        if isinstance(text := block.get("thinking"), str) and text
    ]
    if reasoning_texts:
        message["reasoning_content"] = "\n\n".join(reasoning_texts)
    return message


def _decode_call(block: Mapping[str, Any], path: str) -> ToolCall:
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
        decoded.append(
            with_native(core_message, API, value, continues_previous=bool(decoded))
        )
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
        content = [
            decode_part(inner) for inner in require_objects(content, f"{path}.content")
        ]
    result: Message = {"role": "tool", "tool_call_id": call_id, "content": content}
    return {**result, "is_error": True} if block.get("is_error") is True else result


def encode_messages(
    messages: Messages,
    *,
    model: str | None = None,
    encoded_history: EncodedHistory | None = None,
) -> list[dict[str, Any]]:
    """Return wire messages for `model`; without a model, keep the reasoning of every model.

    `encoded_history`: the encoding of an earlier, shorter list; the shared beginning is not encoded again.
    """
    reusable_history = (
        encoded_history
        if encoded_history and encoded_history.is_start_of(messages, model)
        else EncodedHistory()
    )
    wire = reusable_history.wire_messages[:]
    call_ids = reusable_history.call_ids.copy()
    start = len(reusable_history.messages)
    settled_count = (
        _count_settled_messages(messages, start) if encoded_history else start
    )
    if encoded_history and settled_count > start:
        wire += _encode_new_messages(
            messages[start:settled_count], model, call_ids, is_start=not start
        )
        encoded_history.messages = messages[:settled_count]
        encoded_history.model = model
        encoded_history.call_ids = call_ids.copy()
        encoded_history.wire_messages = wire[:]
        start = settled_count
    wire += _encode_new_messages(messages[start:], model, call_ids, is_start=not start)
    return wire


def _encode_new_messages(
    messages: Messages, model: str | None, call_ids: _CallIds, *, is_start: bool
) -> list[dict[str, Any]]:
    encoded_messages = [
        encoded_message
        for message in messages
        if (encoded_message := _encode_message(message, model, call_ids)) is not None
    ]
    wire = [
        _join_neighbours(neighbours) for neighbours in group_by_role(encoded_messages)
    ]
    if (
        is_start
        and messages
        and (
            not encoded_messages
            or (
                encoded_messages[0].role == "assistant"
                and encoded_messages[0].native is None
            )
        )
    ):
        wire.insert(0, {"role": "user", "content": OPENING_TEXT})
    return wire


def _count_settled_messages(messages: Messages, start: int) -> int:
    """Return how many first messages will hardly change any more. The last of them is never joined with the next."""
    if len(messages) - start < _NEAR_END_MESSAGES + _MIN_SETTLED_BATCH:
        return start
    for cut in range(len(messages) - _NEAR_END_MESSAGES, start, -1):
        role_before = _find_certain_wire_role(messages[cut - 1])
        role_after = _find_certain_wire_role(messages[cut])
        if role_before and role_after and role_before != role_after:
            return cut
    return start


def _find_certain_wire_role(message: Message) -> str:
    """Return the wire role of a message if it certainly adds a block; empty if that is not certain."""
    if message["role"] == "tool":
        return "user"
    calls: Any = message.get("tool_calls")
    has_calls = (
        isinstance(calls, list)
        and len(message) == 3
        and calls
        and isinstance(calls[0], dict)
    )
    if message["role"] == "assistant" and has_calls and "function" in calls[0]:
        return "assistant"
    encoded_message = _encode_text_message(message)
    return encoded_message.role if encoded_message else ""


def encode_assistant_blocks(message: Message) -> list[Part]:
    """Return the content of a reply: the blocks of one assistant message, whichever model wrote it."""
    encoded_message = _encode_message(message, None, _CallIds())
    return [] if encoded_message is None else encoded_message.blocks


def encode_system(system: System, leading_messages: Messages) -> System:
    """Return the system prompt, with the instructions a list of messages begins with."""
    if not leading_messages:
        return system
    blocks = parts_of({"content": system})
    for message in leading_messages:
        encoded_message = _EncodedMessage(
            "system",
            [
                _replace_media(block)
                for block in map(encode_part, parts_of(message))
                if block
            ],
        )
        marker = _find_cache_marker(message, is_native=False)
        blocks += (
            _move_cache_marker(encoded_message, marker) if marker else encoded_message
        ).blocks
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


@dataclass(frozen=True, slots=True)
class _EncodedMessage:
    """Blocks that one core message adds to the wire."""

    role: str
    blocks: list[Part]
    native: Mapping[str, Any] | None = None
    """Original wire message, if it came from Anthropic."""
    continues_previous: bool = False


@dataclass(slots=True)
class _CallIds:
    """Assign call ids of the alphabet that Anthropic accepts, each used once. A result names the latest call of its id.

    A new id depends on earlier messages only, so a longer history never changes the ids of a shorter one.
    """

    use_counts: dict[str, int] = field(default_factory=dict)
    latest_wire_ids: dict[str, str] = field(default_factory=dict)

    def copy(self) -> _CallIds:
        return _CallIds(dict(self.use_counts), dict(self.latest_wire_ids))

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


_NEAR_END_MESSAGES = 32
"""Cache marks are expected on the last N messages. A mark further back forces a full encoding."""
_MIN_SETTLED_BATCH = 16


@dataclass(slots=True)
class EncodedHistory:
    """The encoded start of a growing history.

    Its wire messages are returned again with every request, in a new list: they are treated as immutable, as all
    messages are. Checking each of them would dominate the cost of a turn (`benchmarks session`).
    """

    messages: Messages = ()
    model: str | None = None
    wire_messages: list[dict[str, Any]] = field(default_factory=list)
    call_ids: _CallIds = field(default_factory=_CallIds)

    def is_start_of(self, messages: Messages, model: str | None) -> bool:
        """Return whether the list begins with the very same messages."""
        is_same = model == self.model and len(messages) >= len(self.messages)
        return is_same and all(map(operator.is_, self.messages, messages))


def _clean_call_id(call_id: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id) or "call"


def _join_neighbours(neighbours: list[_EncodedMessage]) -> dict[str, Any]:
    """Return one native message with the blocks of neighbouring messages of one role, results first."""
    first = neighbours[0]
    if len(neighbours) == 1 and first.native is not None:
        return dict(first.native)
    blocks = (
        [block for neighbour in neighbours for block in neighbour.blocks]
        if len(neighbours) > 1
        else first.blocks
    )
    if len(blocks) == 1:
        return {"role": first.role, "content": blocks}
    if first.native is not None and all(
        neighbour.native is not None for neighbour in neighbours
    ):
        return {**first.native, "content": blocks}
    return {
        "role": first.role,
        "content": sorted(blocks, key=lambda block: kind_of(block) != "tool_result"),
    }


def _encode_message(
    message: Message, model: str | None, call_ids: _CallIds
) -> _EncodedMessage | None:
    """Return the blocks a message adds; None if there are none."""
    if (text_message := _encode_text_message(message)) is not None:
        return text_message
    encoded_message = _encode_native_message(
        message, model, call_ids
    ) or _encode_foreign_message(message, call_ids)
    marker = _find_cache_marker(message, is_native=encoded_message.native is not None)
    if marker and encoded_message.blocks:
        encoded_message = _move_cache_marker(encoded_message, marker)
    return (
        encoded_message
        if encoded_message.blocks or encoded_message.native is not None
        else None
    )


def _encode_text_message(message: Message) -> _EncodedMessage | None:
    """Return the blocks of a message that is only a role and a text, the most frequent form; None for others."""
    if len(message) != 2:
        return None
    role = message["role"]
    content = message.get("content")
    if role in ROLES and isinstance(content, str) and content and not content.isspace():
        return _EncodedMessage(role, [{"type": "text", "text": content}])
    return None


def _encode_native_message(
    message: Message, model: str | None, call_ids: _CallIds
) -> _EncodedMessage | None:
    record = native_record(message, API)
    value = record["value"] if record else None
    if record is None or not isinstance(value, dict) or value.get("role") not in ROLES:
        return None
    blocks = parts_of(value)
    for block in blocks:
        if kind_of(block) == "tool_use":
            call_ids.keep_id(as_text(block.get("id")))
    continues_previous = bool(record.get("joined"))
    if can_use_reasoning(message, API, model):
        return _EncodedMessage(value["role"], blocks, value, continues_previous)
    without_reasoning = [
        block for block in blocks if kind_of(block) not in REASONING_BLOCK_KINDS
    ]
    if len(without_reasoning) == len(blocks):
        return _EncodedMessage(value["role"], blocks, value, continues_previous)
    native = {**value, "content": without_reasoning} if without_reasoning else None
    return _EncodedMessage(value["role"], without_reasoning, native, continues_previous)


def _encode_foreign_message(message: Message, call_ids: _CallIds) -> _EncodedMessage:
    role = message.get("role")
    if role == "tool":
        result_fields = {
            "tool_use_id": message.get("tool_call_id"),
            "content": message.get("content"),
        }
        error_field = {"is_error": True} if message.get("is_error") is True else {}
        return _EncodedMessage(
            "user",
            [
                _encode_result(
                    {"type": "tool_result", **result_fields, **error_field}, call_ids
                )
            ],
        )
    if role in SYSTEM_ROLES:
        block = make_text_block(content_text(message.get("content")))
        return _EncodedMessage(
            "user",
            [{"type": "text", "text": _INSTRUCTION_TEMPLATE.format(block["text"])}]
            if block
            else [],
        )
    is_from_other_api = "_native" in message
    parts = [
        part
        for part in parts_of(message)
        if not (is_from_other_api and kind_of(part) in REASONING_BLOCK_KINDS)
    ]
    blocks = [block for part in parts if (block := _encode_block(part, call_ids))]
    if role != "assistant":
        return _EncodedMessage("user", blocks)
    refusal = make_text_block(message.get("refusal"))
    blocks = [_replace_media(block) for block in blocks] + (
        [refusal] if refusal else []
    )
    return _EncodedMessage("assistant", blocks + list(_encode_calls(message, call_ids)))


def _encode_block(part: Part, call_ids: _CallIds) -> Part | None:
    kind = kind_of(part)
    if kind == "tool_use":
        return _encode_call(
            part,
            part.get("id"),
            part.get("name"),
            encode_arguments(part.get("input")),
            call_ids,
        )
    return (
        _encode_result(part, call_ids) if kind == "tool_result" else encode_part(part)
    )


def _encode_calls(message: Mapping[str, Any], call_ids: _CallIds) -> Iterator[Part]:
    tool_calls = message.get("tool_calls")
    for item in tool_calls if isinstance(tool_calls, list) else []:
        call: Mapping[str, Any] = item if isinstance(item, dict) else {}
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
            yield _encode_call(
                {}, call.get("id"), function.get("name"), arguments, call_ids
            )


def _encode_call(
    other_fields: Part,
    call_id: Any,
    name: Any,
    arguments: dict[str, Any],
    call_ids: _CallIds,
) -> Part:
    call_fields = {
        "type": "tool_use",
        "id": call_ids.assign_id(as_text(call_id)),
        "name": as_text(name) or "unknown",
    }
    return {**other_fields, **call_fields, "input": arguments}


def _encode_result(part: Part, call_ids: _CallIds) -> Part:
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
    """Replace an image or a file by a placeholder: Anthropic accepts them from the user only."""
    kind = kind_of(block)
    return (
        {"type": "text", "text": f"[{kind} omitted]"}
        if kind in ("image", "document")
        else block
    )


def _find_cache_marker(
    message: Message, *, is_native: bool
) -> Mapping[str, Any] | None:
    """Return the cache marker of a message, or None.

    A native message is sent in its native form; its core content is searched too, because a marker may be only there.
    """
    parts = parts_of(message) if is_native else []
    markers = (block.get("cache_control") for block in (message, *reversed(parts)))
    return next((marker for marker in markers if isinstance(marker, dict)), None)


def _move_cache_marker(
    encoded_message: _EncodedMessage, marker: Mapping[str, Any]
) -> _EncodedMessage:
    """Move a message's cache marker to its last block that can carry one."""
    blocks = list(encoded_message.blocks)
    index = find_markable_block(blocks)
    if index is not None:
        blocks[index] = {**blocks[index], "cache_control": dict(marker)}
    native = (
        None
        if encoded_message.native is None
        else {**encoded_message.native, "content": blocks}
    )
    return _EncodedMessage(
        encoded_message.role, blocks, native, encoded_message.continues_previous
    )


_INSTRUCTION_TEMPLATE = "<system-reminder>\n{}\n</system-reminder>"
"""Wraps an instruction in mid-conversation, so that it is not mistaken for the user's words."""
