"""Repair a list of messages so that every provider accepts it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from everthread.core.json_values import as_text
from everthread.core.message_correction import ROLE_NAMES, correct_message
from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    Message,
    Part,
    ToolCall,
    calls_of,
    content_text,
    count_leading_system_messages,
    parts_of,
    results_of,
    with_content,
    without_native_value,
)
from everthread.core.validation import (
    ROLES,
    is_empty,
    is_provider_compaction,
)

STUB_RESULT = "[No result: the call was interrupted or its output was removed]"
OPENING_TEXT = "<system-reminder>The conversation begins with the assistant.</system-reminder>"


@dataclass(frozen=True, slots=True)
class Repair:
    """A repaired list and the actions taken, one sentence each."""

    messages: list[Message]
    actions: list[str]
    original_indexes: list[int | None]
    """For each message its index in the original list, or None if it is new or changed."""


def repair_messages(
    messages: Sequence[Mapping[str, Any]], *, in_flight: bool = False
) -> list[Message]:
    """Return a list every provider accepts. `in_flight`: calls still open at the end are left open."""
    return repair(messages, in_flight=in_flight).messages


def repair(messages: Sequence[Mapping[str, Any]], *, in_flight: bool = False) -> Repair:
    """Like `repair_messages`, and report the actions taken."""
    builder = _RepairBuilder()
    entries = list(builder.read_entries(messages))
    results_by_source = builder.pair_results(entries)
    open_group = _find_open_group(entries) if in_flight else None
    for entry in entries:
        if entry.calls:
            builder.append_call_group(
                entry,
                results_by_source.get(entry.source, {}),
                leave_open=entry is open_group,
            )
        elif entry.result_blocks:
            builder.append_other_parts(entry)
        elif is_empty(entry.message):
            builder.record_action(entry.source, "removed: it is empty")
        else:
            builder.append(entry.message, entry.source)
    builder.insert_opening()
    pairs = zip(builder.messages, builder.sources, strict=True)
    original_indexes = [
        source if source is not None and message is messages[source] else None
        for message, source in pairs
    ]
    return Repair(builder.messages, builder.actions, original_indexes)


class _Entry(NamedTuple):
    """A readable message, its index in the source list, its calls and its results."""

    source: int
    message: Message
    calls: list[ToolCall]
    result_blocks: list[Part]


class _RepairBuilder:
    """The repaired list under construction."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.sources: list[int | None] = []
        """For each message, the index of the original message that it is, or that it was made from."""
        self.actions: list[str] = []
        self.used_ids: dict[str, int] = {}

    def append(self, message: Message, source: int | None) -> None:
        self.messages.append(message)
        self.sources.append(source)

    def record_action(self, source: int, action: str) -> None:
        self.actions.append(f"message {source}: {action}")

    def read_entries(self, messages: Sequence[Any]) -> Iterator[_Entry]:
        for source, message in enumerate(messages):
            role = message.get("role") if isinstance(message, Mapping) else None
            role = ROLE_NAMES.get(role, role) if isinstance(role, str) else None
            if role not in ROLES:
                self.record_action(source, "removed: it is not a message with a known role")
                continue
            corrected = correct_message(message, role)
            if corrected is not message:
                self.record_action(source, "its shape was corrected")
            yield _Entry(
                source,
                corrected,
                calls_of(corrected),
                _collect_result_blocks(corrected),
            )

    def pair_results(self, entries: Sequence[_Entry]) -> dict[int, dict[int, tuple[Part, int]]]:
        """Return, for each message with calls (by its index), the first result of each call (by the call's position).

        Results keep their order, each with the index of its own message.
        """
        results_by_source: dict[int, dict[int, tuple[Part, int]]] = {}
        open_calls: dict[str, list[tuple[int, int]]] = {}
        last_other_source = -1
        for entry in entries:
            for block in entry.result_blocks:
                open_positions = open_calls.get(block["tool_use_id"])
                if not open_positions:
                    self.record_action(
                        entry.source,
                        f"result of {block['tool_use_id']!r} removed: no open call has that id",
                    )
                    continue
                call_source, position = open_positions.pop(0)
                results_by_source.setdefault(call_source, {})[position] = (
                    block,
                    entry.source,
                )
                if last_other_source > call_source:
                    self.record_action(
                        entry.source,
                        f"result of {block['tool_use_id']!r} moved to its call",
                    )
            last_other_source = last_other_source if entry.result_blocks else entry.source
            open_calls |= {call.id: [] for call in entry.calls}
            for position, call in enumerate(entry.calls):
                open_calls[call.id].append((entry.source, position))
        return results_by_source

    def append_call_group(
        self,
        entry: _Entry,
        results_by_position: Mapping[int, tuple[Part, int]],
        *,
        leave_open: bool,
    ) -> None:
        """Append the message with its calls, then one result per call."""
        source = entry.source
        message = entry.message
        old_ids = [call.id for call in entry.calls]
        has_call_blocks = any(part["type"] in CALL_BLOCK_KINDS for part in parts_of(message))
        ids = [
            self.make_unique_id(_clean_block_id(call_id) if has_call_blocks else call_id)
            for call_id in old_ids
        ]
        if ids != old_ids:
            self.record_action(source, "call ids made unique and valid")
            message = with_call_ids(message, ids)
        self.append(message, source)
        blocks: list[tuple[Part, int | None]] = []
        for position, (result, index) in results_by_position.items():
            is_renamed = ids[position] != old_ids[position]
            block = {**result, "tool_use_id": ids[position]} if is_renamed else result
            blocks.append((block, index))
        for call_index, call_id in enumerate(ids):
            if call_index not in results_by_position and not leave_open:
                self.record_action(source, f"call {call_id!r} got a stub result: it has none")
                stub = {"type": "tool_result", "tool_use_id": call_id, "content": STUB_RESULT}
                blocks.append((stub, None))
        if not has_call_blocks:
            for block, result_source in blocks:
                self.append(_as_tool_message(block), result_source)
        elif blocks:
            self.append(
                {
                    "role": "user",
                    "content": [_as_result_block(block) for block, _ in blocks],
                },
                None,
            )

    def make_unique_id(self, call_id: str) -> str:
        """Return the id, or a new one if it is empty or taken. Depends on earlier messages only."""
        candidate = call_id
        while not candidate or candidate in self.used_ids:
            self.used_ids[call_id] = self.used_ids.get(call_id, 0) + 1
            candidate = f"{call_id or 'call'}_{self.used_ids[call_id]}"
        self.used_ids[candidate] = 1
        return candidate

    def append_other_parts(self, entry: _Entry) -> None:
        """Keep the rest of a message with results; the results follow their calls."""
        if entry.message["role"] == "tool":
            return
        content = parts_of(entry.message)
        other_parts = [part for part in content if part["type"] not in RESULT_BLOCK_KINDS]
        if is_empty({"role": "user", "content": other_parts}):
            other_parts = []
        if (
            any(part["type"] in RESULT_BLOCK_KINDS for part in content[-len(other_parts) :])
            and other_parts
        ):
            self.record_action(entry.source, "its results were put before its words")
        previous = self.messages[-1] if self.messages else None
        if previous is not None and previous["role"] == "user" and results_of(previous):
            joined_parts = [*parts_of(previous), *other_parts]
            self.messages[-1] = (
                entry.message if joined_parts == content else with_content(previous, joined_parts)
            )
            self.sources[-1] = entry.source
        elif other_parts:
            self.append(with_content(entry.message, other_parts), entry.source)

    def insert_opening(self) -> None:
        """Insert an opening user message if the list begins with the assistant, which Anthropic refuses."""
        first_index = count_leading_system_messages(self.messages)
        if (
            first_index < len(self.messages)
            and self.messages[first_index]["role"] != "user"
            and not is_provider_compaction(self.messages[first_index])
        ):
            self.messages.insert(first_index, {"role": "user", "content": OPENING_TEXT})
            self.sources.insert(first_index, None)
            self.actions.append("an opening user message was put before the assistant's first")


def _find_open_group(entries: Sequence[_Entry]) -> _Entry | None:
    """Return the last message with calls, if nothing but results comes after it."""
    for entry in entries[::-1]:
        if entry.calls:
            return entry
        if entry.message["role"] != "tool" and not (
            entry.result_blocks and entry.result_blocks == parts_of(entry.message)
        ):
            return None
    return None


def _clean_block_id(call_id: str) -> str:
    """Return the id with only the characters that Anthropic accepts in the id of a call block."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)


def _collect_result_blocks(message: Message) -> list[Part]:
    """Return the results of a message as `tool_result` blocks. The block of a tool message keeps it in `_message`."""
    if message["role"] == "tool":
        return [{"tool_use_id": as_text(message.get("tool_call_id")), "_message": message}]
    if not isinstance(message.get("content"), list):
        return []
    return [
        part if isinstance(part.get("tool_use_id"), str) else {**part, "tool_use_id": ""}
        for part in parts_of(message)
        if part["type"] in RESULT_BLOCK_KINDS
    ]


def _as_result_block(block: Part) -> Part:
    """Return a result as a `tool_result` block."""
    source = block.get("_message")
    if source is None:
        return block
    error_field = {"is_error": True} if source.get("is_error") is True else {}
    return {
        "type": "tool_result",
        "tool_use_id": block["tool_use_id"],
        "content": source.get("content"),
        **error_field,
    }


def _as_tool_message(block: Part) -> Message:
    """Return a result as a `tool` message; the original object if the result is such a message already."""
    source = cast("Message | None", block.get("_message"))
    if source is None:
        content = block.get("content")
        tool_content = content if isinstance(content, list) and content else content_text(content)
        message: Message = {
            "role": "tool",
            "tool_call_id": block["tool_use_id"],
            "content": tool_content,
        }
        return {**message, "is_error": True} if block.get("is_error") is True else message
    if source.get("tool_call_id") == block["tool_use_id"]:
        return source
    copy = without_native_value(source)
    copy["tool_call_id"] = block["tool_use_id"]
    return copy


def with_call_ids(message: Message, ids: Sequence[str]) -> Message:
    """Return a copy whose calls carry these ids: blocks first, then `tool_calls`, the order of `calls_of`."""
    remaining_ids = iter(ids)
    copy: dict[str, Any] = dict(without_native_value(message))
    if isinstance(message.get("content"), list):
        copy["content"] = [
            {**part, "id": next(remaining_ids)} if part.get("type") in CALL_BLOCK_KINDS else part
            for part in parts_of(message)
        ]
    if "tool_calls" in message:
        calls: list[Any] = copy["tool_calls"]
        copy["tool_calls"] = [
            {**call, "id": next(remaining_ids)} if isinstance(call, dict) else call
            for call in calls
        ]
    return cast("Message", copy)
