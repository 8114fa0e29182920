"""From a history as it is to one every provider accepts.

Real histories have aborted turns, calls without results, results without calls, and begin with the assistant.
Repair removes what answers nothing, answers what was left open with a stub, puts results where they belong and says
what it did. A message that needs no change stays the same object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from everthread.core.messages import (
    CALL_BLOCKS,
    RESULT_BLOCKS,
    SYSTEM_ROLES,
    Message,
    Part,
    calls_of,
    content_text,
    json_text,
    off_the_wire,
    parts_of,
    results_of,
    with_content,
)
from everthread.core.validity import BLOCK_ROLES, CHAT_CALLS, ROLES, is_chat_call, is_empty

STUB_RESULT = "[No result: the call was interrupted or its output was removed]"
OPENING = "<system-reminder>The conversation begins with the assistant.</system-reminder>"
_ROLE_NAMES = {"human": "user", "ai": "assistant", "model": "assistant", "bot": "assistant"}


@dataclass(frozen=True, slots=True)
class Repair:
    """The repaired list and what was done, one sentence an action."""

    messages: list[Message]
    actions: list[str]


def repair_messages(messages: Sequence[Mapping[str, Any]], *, in_flight: bool = False) -> list[Message]:
    """A list every provider accepts. `in_flight`: calls still open at the end are left open."""
    return repair(messages, in_flight=in_flight).messages


def repair(messages: Sequence[Mapping[str, Any]], *, in_flight: bool = False) -> Repair:
    """Like `repair_messages`, with an account of what was done."""
    work = _Work()
    shaped = list(work.shaped(messages))
    answers = work.answers(shaped)
    tail = _trailing_group(shaped) if in_flight else None
    for index, (source, message) in enumerate(shaped):
        if calls_of(message):
            work.emit_group(source, message, answers.get(index, {}), leave_open=index == tail)
        elif results_of(message):
            work.emit_rest(source, message)
        elif is_empty(message):
            work.did(source, "removed: it says nothing")
        else:
            work.out.append(message)
    work.open_with_user()
    return Repair(work.out, work.actions)


@dataclass(slots=True)
class _Work:
    out: list[Message] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    taken: dict[str, int] = field(default_factory=dict)

    def did(self, source: int, what: str) -> None:
        self.actions.append(f"message {source}: {what}")

    def shaped(self, messages: Sequence[Any]) -> Iterator[tuple[int, Message]]:
        """Messages of a readable shape, each with its place in the source."""
        for source, message in enumerate(messages):
            role = message.get("role") if isinstance(message, Mapping) else None
            role = _ROLE_NAMES.get(role, role) if isinstance(role, str) else None
            if role not in ROLES:
                self.did(source, "removed: it is no message of a known role")
                continue
            fixed = _well_formed(message, role)
            if fixed is not message:
                self.did(source, "its shape was corrected")
            yield source, fixed

    def answers(self, shaped: list[tuple[int, Message]]) -> dict[int, dict[int, Part]]:
        """For each message with calls: position of the call -> the first result for it, in the results' order."""
        found: dict[int, dict[int, Part]] = {}
        waiting: dict[str, list[tuple[int, int]]] = {}
        last_other = -1
        for index, (source, message) in enumerate(shaped):
            blocks = _result_blocks(message)
            for block in blocks:
                owners = waiting.get(block["tool_use_id"])
                if not owners:
                    self.did(source, f"result of {block['tool_use_id']!r} removed: no open call has that id")
                    continue
                owner, position = owners.pop(0)
                found.setdefault(owner, {})[position] = block
                if last_other > owner:
                    self.did(source, f"result of {block['tool_use_id']!r} moved to its call")
            last_other = last_other if blocks else index
            calls = calls_of(message)
            waiting |= {call.id: [] for call in calls}
            for position, call in enumerate(calls):
                waiting[call.id].append((index, position))
        return found

    def emit_group(self, source: int, message: Message, answers: Mapping[int, Part], *, leave_open: bool) -> None:
        """The message with its calls, then one result per call."""
        old = [call.id for call in calls_of(message)]
        in_blocks = any(part["type"] in CALL_BLOCKS for part in parts_of(message))
        ids = [self.unique_id(_block_id(call_id) if in_blocks else call_id) for call_id in old]
        if ids != old:
            self.did(source, "call ids made unique and valid")
            message = _with_call_ids(message, ids)
        self.out.append(message)
        blocks = [{**block, "tool_use_id": ids[at]} if ids[at] != old[at] else block for at, block in answers.items()]
        for position, call_id in enumerate(ids):
            if position not in answers and not leave_open:
                self.did(source, f"call {call_id!r} got a stub result: it has none")
                blocks.append({"type": "tool_result", "tool_use_id": call_id, "content": STUB_RESULT})
        if not in_blocks:
            self.out.extend(_tool_message(block) for block in blocks)
        elif blocks:
            self.out.append({"role": "user", "content": [_bare(block) for block in blocks]})

    def unique_id(self, call_id: str) -> str:
        """The id itself, or a new one where it is empty or taken. Depends on earlier messages only."""
        candidate = call_id
        while not candidate or candidate in self.taken:
            self.taken[call_id] = self.taken.get(call_id, 0) + 1
            candidate = f"{call_id or 'call'}_{self.taken[call_id]}"
        self.taken[candidate] = 1
        return candidate

    def emit_rest(self, source: int, message: Message) -> None:
        """What a message with results holds besides them; the results stand with their calls."""
        if message["role"] == "tool":
            return
        content = parts_of(message)
        rest = [part for part in content if part["type"] not in RESULT_BLOCKS]
        if is_empty({"role": "user", "content": rest}):
            rest = []
        if any(part["type"] in RESULT_BLOCKS for part in content[-len(rest) :]) and rest:
            self.did(source, "its results were put before its words")
        last = self.out[-1] if self.out else None
        if last is not None and last["role"] == "user" and results_of(last):
            joined = [*parts_of(last), *rest]
            self.out[-1] = message if joined == content else with_content(last, joined)
        elif rest:
            self.out.append(with_content(message, rest))

    def open_with_user(self) -> None:
        """Anthropic wants the user first; the opening says nothing and is no user message."""
        first = next((i for i, m in enumerate(self.out) if m["role"] not in SYSTEM_ROLES), None)
        if first is not None and self.out[first]["role"] != "user":
            self.out.insert(first, {"role": "user", "content": OPENING})
            self.actions.append("an opening user message was put before the assistant's first")


def _well_formed(message: Mapping[str, Any], role: str) -> Message:
    """The message itself when its shape is right, else a corrected copy."""
    changes: dict[str, Any] = {}
    content, calls = message.get("content"), message.get("tool_calls")
    if role != message["role"]:
        changes["role"] = role
    if isinstance(content, list):
        parts = [part for each in content if (part := _well_formed_part(each, role)) is not None]
        if not _same(parts, content) or not (parts or role == "assistant"):
            changes["content"] = parts or ""
    elif not isinstance(content, str) and (content is not None or role != "assistant"):
        changes["content"] = "" if content is None else str(content)
    if "tool_calls" in message:
        proper = [call for each in _listed(calls) if (call := _well_formed_call(each)) is not None]
        if not proper or not _same(proper, calls):
            changes["tool_calls"] = proper
    if not changes:
        return cast("Message", message)
    copy = dict(off_the_wire(message)) | changes
    if copy.get("tool_calls") == []:
        del copy["tool_calls"]
    if role == "assistant" and copy.get("content") is None and "tool_calls" not in copy:
        copy["content"] = ""
    return cast("Message", copy)


def _same(new: Sequence[Any], old: Any) -> bool:
    return len(new) == len(old) and all(one is other for one, other in zip(new, old, strict=True))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _well_formed_call(call: Any) -> Any:
    """The call with a type and text for arguments; None where it names no tool."""
    for kind, given in CHAT_CALLS.items():
        inner = call.get(kind) if isinstance(call, dict) else None
        if isinstance(inner, dict) and _is_name(inner.get("name")):
            if is_chat_call(call):
                return call
            return {**call, "type": kind, kind: {**inner, given: json_text(inner.get(given)) or "{}"}}
    return None


def _well_formed_part(part: Any, role: str) -> Part | None:
    """The part with a type; None for no part at all, and for a block that nobody of this role can say."""
    if not isinstance(part, dict):
        return None if part is None else {"type": "text", "text": str(part)}
    if not isinstance(part.get("type"), str):
        return {**part, "type": "text", "text": str(part.get("text", ""))}
    if BLOCK_ROLES.get(part["type"], role) != role:
        return None
    if part["type"] in CALL_BLOCKS and not _is_name(part.get("name")):
        return {"type": "text", "text": "[a tool call without a name was here]"}
    return part


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _block_id(call_id: str) -> str:
    """Only what Anthropic accepts in the id of a call block."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id)


def _result_blocks(message: Message) -> list[Part]:
    """The results of a message as `tool_result` blocks; a tool message remembers itself in `_message`."""
    if message["role"] == "tool":
        call_id = message.get("tool_call_id")
        return [{"tool_use_id": call_id if isinstance(call_id, str) else "", "_message": message}]
    return [
        part if isinstance(part.get("tool_use_id"), str) else {**part, "tool_use_id": ""}
        for part in parts_of(message)
        if part["type"] in RESULT_BLOCKS
    ]


def _bare(block: Part) -> Part:
    """A result as a `tool_result` block."""
    source = block.get("_message")
    if source is None:
        return block
    failed = {"is_error": True} if source.get("is_error") is True else {}
    return {"type": "tool_result", "tool_use_id": block["tool_use_id"], "content": source.get("content"), **failed}


def _tool_message(block: Part) -> Message:
    """A result as a `tool` message; the original object where it is one already."""
    source = cast("Message | None", block.get("_message"))
    if source is None:
        content = block.get("content")
        said = content if isinstance(content, list) and content else content_text(content)
        message: Message = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": said}
        return {**message, "is_error": True} if block.get("is_error") is True else message
    if source.get("tool_call_id") == block["tool_use_id"]:
        return source
    copy = off_the_wire(source)
    copy["tool_call_id"] = block["tool_use_id"]
    return copy


def _with_call_ids(message: Message, ids: Sequence[str]) -> Message:
    """A copy whose calls carry these ids: blocks first, then `tool_calls`, the order of `calls_of`."""
    remaining = iter(ids)
    copy = dict(off_the_wire(message))
    if isinstance(message.get("content"), list):
        copy["content"] = [
            {**part, "id": next(remaining)} if part.get("type") in CALL_BLOCKS else part for part in parts_of(message)
        ]
    if "tool_calls" in message:
        copy["tool_calls"] = [{**call, "id": next(remaining)} for call in message["tool_calls"]]
    return cast("Message", copy)


def _trailing_group(shaped: Sequence[tuple[int, Message]]) -> int | None:
    """The index of the last message with calls, if nothing but results comes after it."""
    for index in range(len(shaped) - 1, -1, -1):
        message = shaped[index][1]
        if calls_of(message):
            return index
        if message["role"] != "tool" and not (_result_blocks(message) and _result_blocks(message) == parts_of(message)):
            return None
    return None
