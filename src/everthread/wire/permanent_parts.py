"""Parts of a history that are not conversation: instructions, definitions of tools, items of a provider.

A client loads a tool in mid-conversation with a block or an item (`tool_reference`, `tool_search_output` and others).
Without it the provider refuses later calls of that tool, so these parts outlive the messages around them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from everthread.core.json_values import as_list, as_text, json_text, without_keys
from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    SYSTEM_ROLES,
    Message,
    content_text,
    join_name,
    kind_of,
    parts_of,
    tool_names,
    without_native_value,
)
from everthread.wire import anthropic, openai_responses
from everthread.wire.native_values import native_value

TOOL_LOADING_BLOCK_KINDS = frozenset(
    {"tool_reference", "tool_addition", "tool_removal", "tool_search_tool_result"}
)
"""Blocks of Anthropic's protocol that load or unload tools."""
TOOL_LOADING_ITEM_KINDS = frozenset({"tool_search_output", "additional_tools", "mcp_list_tools"})
"""Items of the Responses protocol that load or unload tools."""
PROVIDER_PART_KINDS = frozenset({"compaction", "compaction_summary"})
"""Blocks and items that only their provider can read."""
_PERMANENT_KINDS = TOOL_LOADING_BLOCK_KINDS | TOOL_LOADING_ITEM_KINDS | PROVIDER_PART_KINDS
_GENERAL_TAGS = frozenset({"system-reminder", "system_reminder", "instructions", "context"})
"""Tags around texts of any kind: a later text in the same tag does not replace an earlier one."""


@dataclass(frozen=True, slots=True)
class PermanentPart:
    """One part of a message that is not conversation."""

    position: int
    """Index of the part in the message, or of the item in a run."""
    keys: frozenset[str]
    """Keys of its contents. A later part with the same keys replaces it; without keys it is never replaced."""
    content: str = ""
    """Full text of the part; parts with the same content are duplicates."""


def find_permanent_parts(message: Message) -> list[PermanentPart]:
    """Return the parts of a message that are not conversation; for a tool result, the result itself."""
    role = message.get("role")
    if role in ("user", "assistant") and _is_plain_chat_message(message):
        return []
    item = native_value(message, openai_responses.API)
    if role == "tool" or (isinstance(item, dict) and kind_of(item) in TOOL_LOADING_ITEM_KINDS):
        keys = _find_loaded_tool_keys(message)
        if keys is None:
            return []
        return [PermanentPart(0, keys, json_text(item or message.get("content")))]
    parts = _list_wire_blocks(message) if role in (*SYSTEM_ROLES, "assistant", "user") else []
    return [
        PermanentPart(position, _find_part_keys(part), content_text([part]) or json_text(part))
        for position, part in enumerate(parts)
        if _is_permanent(role, part)
    ]


def _is_plain_chat_message(message: Message) -> bool:
    """Return whether a message is text and calls alone, as in a list of chat messages."""
    return "_native" not in message and not isinstance(message.get("content"), list)


def loads_tools(message: Message) -> bool:
    """Return whether a message is or contains a tool result that loads tools: cutting it would unload them."""
    if message.get("role") == "tool":
        return _find_loaded_tool_keys(message) is not None
    return any(
        kind_of(block) in RESULT_BLOCK_KINDS and has_tool_reference(block.get("content"))
        for block in as_list(message.get("content"))
    )


def find_answered_call_ids(message: Message, positions: Collection[int]) -> set[str]:
    """Return the ids of the calls that these parts of a message answer."""
    if not positions:
        return set()
    if message.get("role") == "tool":
        return {as_text(message.get("tool_call_id"))}
    blocks = _list_wire_blocks(message) if message.get("role") == "user" else []
    return {
        as_text(blocks[position].get("tool_use_id"))
        for position in positions
        if position < len(blocks)
    } - {""}


def keep_parts(
    message: Message, positions: Collection[int], call_ids: Collection[str] = ()
) -> Message:
    """Return the message with only these parts, and with its calls that have one of these ids.

    Reasoning and cache marks are dropped.
    """
    if message.get("role") == "tool":
        return message
    if message.get("role") in SYSTEM_ROLES:
        return _keep_instructions(message, positions)
    value = native_value(message, openai_responses.API)
    if isinstance(value, list):
        return _keep_items(message, value, positions, call_ids)
    blocks = _list_wire_blocks(message)
    answered_ids = {as_text(blocks[position].get("tool_use_id")) for position in positions}
    ids = {*answered_ids, *call_ids} - {""}
    kept_blocks = [
        _without_cache_mark(block)
        for position, block in enumerate(blocks)
        if position in positions or _has_id(block, ids)
    ]
    calls = [call for call in message.get("tool_calls") or [] if call.get("id") in ids]
    if calls:  # Anthropic's blocks of calls are in `tool_calls` too
        kept_blocks = [block for block in kept_blocks if kind_of(block) not in CALL_BLOCK_KINDS]
    message_without_native = without_native_value(message)
    base_fields = {
        key: value for key, value in message_without_native.items() if key in ("role", "_native")
    }
    kept = {**base_fields, "content": kept_blocks or None}
    if calls:
        kept["tool_calls"] = calls
    return cast("Message", kept)


def has_fixed_position(message: Message) -> bool:
    """Return whether a system message is Anthropic's own, which must come between a user message and an answer."""
    return native_value(message, anthropic.API) is not None


def join_instructions(messages: Sequence[Message]) -> list[Message]:
    """Join neighbouring system messages of Anthropic's protocol, which takes one at a time."""
    result: list[Message] = []
    for message in messages:
        value = native_value(message, anthropic.API)
        previous_value = native_value(result[-1], anthropic.API) if result else None
        if isinstance(value, dict) and isinstance(previous_value, dict):
            wire = {**value, "content": [*parts_of(previous_value), *parts_of(value)]}
            result[-1] = anthropic.decode_messages([wire])[0]
        else:
            result.append(message)
    return result


def _list_wire_blocks(message: Message) -> list[Mapping[str, Any]]:
    """Return the parts in wire form, so that a kept part stays verbatim."""
    items = native_value(message, openai_responses.API)
    if isinstance(items, list):
        return items
    value = native_value(message, anthropic.API)
    source = value if isinstance(value, dict) else message
    return list(parts_of(source))


def _is_permanent(role: object, part: Mapping[str, Any]) -> bool:
    kind = kind_of(part)
    if role in SYSTEM_ROLES:
        return True
    if role == "user":
        return kind in RESULT_BLOCK_KINDS and has_tool_reference(part.get("content"))
    if kind == "tool_search_call":
        return not openai_responses.get_call_id(part)
    return kind in _PERMANENT_KINDS


def has_tool_reference(content: Any) -> bool:
    """Return whether the content of a result loads tools."""
    return isinstance(content, list) and any(kind_of(part) == "tool_reference" for part in content)


def _find_loaded_tool_keys(message: Message) -> frozenset[str] | None:
    """Return the tools that a tool's result loads, or None if it is an ordinary result."""
    item = native_value(message, openai_responses.API)
    if isinstance(item, dict) and kind_of(item) in TOOL_LOADING_ITEM_KINDS:
        return frozenset(_list_tool_keys(item))
    content = message.get("content")
    if not has_tool_reference(content):
        return None
    return frozenset(name for part in cast("list[Any]", content) for name in _list_tool_keys(part))


def _find_part_keys(part: Mapping[str, Any]) -> frozenset[str]:
    if kind_of(part) in RESULT_BLOCK_KINDS:
        return frozenset(
            name for inner in part.get("content") or () for name in _list_tool_keys(inner)
        )
    names = frozenset(_list_tool_keys(part))
    text = content_text([part]).strip()
    return names or (frozenset({_make_text_key(text)}) if text else frozenset())


def _make_text_key(text: str) -> str:
    """Return the tag at the start of an instruction, which a newer version begins with too; else the whole text."""
    tag = text[1:].partition(">")[0] if text.startswith("<") else ""
    has_end_tag = f"</{tag.split(' ')[0]}" in text or f"</{tag}>" in text
    return (
        f"<{tag}>" if tag and has_end_tag and tag not in _GENERAL_TAGS and len(tag) <= 60 else text
    )


def _list_tool_keys(part: Any) -> Iterator[str]:
    """Yield a key for each tool that a block or an item loads or unloads."""
    match part:
        case {"type": "tool_reference", "tool_name": str(name)} | {
            "type": "tool_reference",
            "name": str(name),
        }:
            yield f"tool {name}"
        case {
            "type": "tool_addition" | "tool_removal",
            "tool": {"definition": {"name": str(name)}},
        }:
            yield f"tool {name}"
        case {
            "type": "tool_addition" | "tool_removal",
            "tool": {"server_name": str(server)} as tool,
        }:
            yield f"tool {join_name(server, as_text(tool.get('name')))}"
        case {"type": "tool_addition" | "tool_removal", "tool": {"name": str(name)}}:
            yield f"tool {name}"
        case {
            "type": "tool_search_tool_result",
            "content": {"tool_references": list(references)},
        }:
            for reference in references:
                yield from _list_tool_keys(reference)
        case {"type": "tool_search_output" | "additional_tools", "tools": list(tools)}:
            yield from (
                f"tool {name}"
                for tool in tools
                if isinstance(tool, Mapping)
                for name in tool_names(tool)
            )
        case {"type": "mcp_list_tools", "server_label": str(server)}:
            yield f"tools of {server}"


def _has_id(block: Mapping[str, Any], ids: Collection[str]) -> bool:
    return (
        kind_of(block) in (*CALL_BLOCK_KINDS, "server_tool_use") and as_text(block.get("id")) in ids
    )


def _keep_items(
    message: Message,
    items: list[Any],
    positions: Collection[int],
    call_ids: Collection[str],
) -> Message:
    kept_ids = {*call_ids} - {""}
    kept_items = [
        item
        for position, item in enumerate(items)
        if position in positions or openai_responses.get_call_id(item) in kept_ids
    ]
    native = message.get("_native")
    return openai_responses.decode_assistant_items(
        kept_items, model=native.get("model") if native else None
    )


def _keep_instructions(message: Message, positions: Collection[int]) -> Message:
    """Return a system message with these parts. Only Anthropic's can be split; others are returned unchanged."""
    value = native_value(message, anthropic.API)
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(content, list):
        return message
    kept_blocks = [
        _without_cache_mark(block)
        for position, block in enumerate(content)
        if position in positions
    ]
    if kept_blocks == content:
        return message
    return anthropic.decode_messages([{**value, "content": kept_blocks}])[0]


def _without_cache_mark(block: Mapping[str, Any]) -> dict[str, Any]:
    return without_keys(block, "cache_control")
