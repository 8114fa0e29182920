"""pi's session files: `~/.pi/agent/sessions/--<path>--/<time>_<id>.jsonl`.

The first line describes the session, the others are a tree by `id` and `parentId`; the branch that ends with the last
line counts. What the client summarised itself is told and not replayed: the messages before it are there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everthread.core.messages import Message, count_noun
from everthread.core.pricing import CanonicalUsage
from everthread.lab.importers.log import (
    Log,
    LoggedMessage,
    count_in,
    dollars_in,
    first_model,
    format_line_numbers,
    parse_time,
    text_in,
)

_ROLES = ("user", "assistant", "toolResult")


def is_line(value: Mapping[str, Any]) -> bool:
    message = value.get("message")
    if value.get("type") == "session":
        return isinstance(value.get("cwd"), str) and "thread" not in value
    return value.get("type") == "message" and isinstance(message, Mapping) and message.get("role") in _ROLES


def read(lines: list[tuple[int, dict[str, Any]]], source: str, warnings: list[str]) -> Log:
    branch = _last_branch([value for _, value in lines])
    messages: list[LoggedMessage] = []
    bad, summaries, skipped = [], 0, 0
    header: dict[str, Any] = {}
    for number, value in lines:
        if value.get("type") == "session":
            header = value
        elif branch is not None and text_in(value, "id") not in branch:
            skipped += 1
        elif value.get("type") == "compaction":
            summaries += 1
        elif is_line(value):
            entry = _read_message(value)
            if entry is None:
                bad.append(number)
            else:
                messages.append(entry)
    notes = [*warnings, *([f"{format_line_numbers(bad)}: no message that can be read; skipped"] if bad else [])]
    notes += [f"{count_noun(skipped, 'line')} left out: branches that were given up"] if skipped else []
    notes += [f"{count_noun(summaries, 'message')} left out: summaries of the client itself"] if summaries else []
    return Log(source, "pi", messages, model=first_model(messages), warnings=notes, session=text_in(header, "id"))


def _last_branch(values: list[dict[str, Any]]) -> set[str] | None:
    """The ids from the last line back to the first; None in a file without a tree (version 1)."""
    parents = {text_in(value, "id"): value.get("parentId") for value in values if text_in(value, "id")}
    at: Any = next(
        (text_in(value, "id") for value in reversed(values) if text_in(value, "id") and "parentId" in value), None
    )
    if at is None:
        return None
    branch: set[str] = set()
    while isinstance(at, str) and at in parents and at not in branch:
        branch.add(at)
        at = parents[at]
    return branch


def _read_message(value: Mapping[str, Any]) -> LoggedMessage | None:
    message_value = value["message"]
    at = parse_time(value.get("timestamp")) or parse_time(message_value.get("timestamp"))
    content = message_value.get("content")
    if not isinstance(content, str | list):
        return None
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else "\n".join(_texts(blocks, "text"))
    if message_value["role"] == "user":
        return LoggedMessage({"role": "user", "content": text}, at)
    if message_value["role"] == "toolResult":
        call, name = message_value.get("toolCallId"), message_value.get("toolName")
        if not isinstance(call, str):
            return None
        result: Message = {"role": "tool", "tool_call_id": call, "content": text}
        return LoggedMessage(result if not isinstance(name, str) else {**result, "name": name}, at)
    message: Message = {"role": "assistant", "content": text or None}
    calls = [block for block in blocks if block.get("type") == "toolCall" and isinstance(block.get("id"), str)]
    if calls:
        message["tool_calls"] = [
            {
                "id": block["id"],
                "type": "function",
                "function": {"name": str(block.get("name", "")), "arguments": json.dumps(block.get("arguments") or {})},
            }
            for block in calls
        ]
    if thoughts := "\n".join(_texts(blocks, "thinking")):
        message["reasoning_content"] = thoughts
    usage, cost = _read_usage(message_value.get("usage"))
    return LoggedMessage(message, at, usage, cost, text_in(message_value, "model"))


def _texts(blocks: list[Mapping[str, Any]], kind: str) -> list[str]:
    return [block[kind] for block in blocks if block.get("type") == kind and isinstance(block.get(kind), str)]


def _read_usage(value: Any) -> tuple[CanonicalUsage | None, float | None]:
    if not isinstance(value, Mapping):
        return None, None
    usage = CanonicalUsage(
        input_tokens=count_in(value, "input"), output_tokens=count_in(value, "output"),
        cache_read_tokens=count_in(value, "cacheRead"), cache_write_tokens=count_in(value, "cacheWrite"),
    )  # fmt: skip
    cost = value.get("cost")
    return usage, dollars_in(cost, "total") if isinstance(cost, Mapping) else None
