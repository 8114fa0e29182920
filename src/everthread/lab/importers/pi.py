"""pi's session files: `~/.pi/agent/sessions/--<path>--/<time>_<id>.jsonl`.

The first line describes the session, the others are a tree by `id` and `parentId`; the branch that ends with the last
line counts. What the client summarised itself is told and not replayed: the messages before it are there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everthread.core.messages import Message
from everthread.core.pricing import CanonicalUsage
from everthread.lab.importers.log import Log, LoggedMessage, moment, numbered

_ROLES = ("user", "assistant", "toolResult")


def is_line(value: Mapping[str, Any]) -> bool:
    message = value.get("message")
    if value.get("type") == "session":
        return isinstance(value.get("cwd"), str) and "thread" not in value
    return value.get("type") == "message" and isinstance(message, Mapping) and message.get("role") in _ROLES


def read(lines: list[tuple[int, dict[str, Any]]], source: str, warnings: list[str]) -> Log:
    branch = _last_branch([value for _, value in lines])
    said: list[LoggedMessage] = []
    bad, summaries, left = [], 0, 0
    header: dict[str, Any] = {}
    for number, value in lines:
        if value.get("type") == "session":
            header = value
        elif branch is not None and _id(value) not in branch:
            left += 1
        elif value.get("type") == "compaction":
            summaries += 1
        elif is_line(value):
            entry = _said(value)
            if entry is None:
                bad.append(number)
            else:
                said.append(entry)
    told = [*warnings, *([f"{numbered(bad)}: no message that can be read; passed over"] if bad else [])]
    told += [f"{left:,} lines left out: branches that were given up"] if left else []
    told += [f"{summaries:,} summaries of the client itself left out"] if summaries else []
    model = next((entry.model for entry in said if entry.model), "")
    session = header.get("id")
    return Log(source, "pi", said, model=model, warnings=told, session=session if isinstance(session, str) else "")


def _last_branch(values: list[dict[str, Any]]) -> set[str] | None:
    """The ids from the last line back to the first; None in a file without a tree (version 1)."""
    parents = {_id(value): value.get("parentId") for value in values if _id(value)}
    at: Any = next((_id(value) for value in reversed(values) if _id(value) and "parentId" in value), None)
    if at is None:
        return None
    branch: set[str] = set()
    while isinstance(at, str) and at in parents and at not in branch:
        branch.add(at)
        at = parents[at]
    return branch


def _id(value: Mapping[str, Any]) -> str:
    found = value.get("id")
    return found if isinstance(found, str) else ""


def _said(value: Mapping[str, Any]) -> LoggedMessage | None:
    given = value["message"]
    at = moment(value.get("timestamp")) or moment(given.get("timestamp"))
    content = given.get("content")
    if not isinstance(content, str | list):
        return None
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else "\n".join(_texts(blocks, "text"))
    if given["role"] == "user":
        return LoggedMessage({"role": "user", "content": text}, at)
    if given["role"] == "toolResult":
        call, name = given.get("toolCallId"), given.get("toolName")
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
    model = given.get("model")
    usage, cost = _usage(given.get("usage"))
    return LoggedMessage(message, at, usage, cost, model if isinstance(model, str) else "")


def _texts(blocks: list[Mapping[str, Any]], kind: str) -> list[str]:
    return [block[kind] for block in blocks if block.get("type") == kind and isinstance(block.get(kind), str)]


def _usage(given: Any) -> tuple[CanonicalUsage | None, float | None]:
    if not isinstance(given, Mapping):
        return None, None
    counts = [given.get(key) for key in ("input", "output", "cacheRead", "cacheWrite")]
    fresh, output, read_, written = (count if isinstance(count, int) and count > 0 else 0 for count in counts)
    cost = given.get("cost")
    total = cost.get("total") if isinstance(cost, Mapping) else None
    usage = CanonicalUsage(
        input_tokens=fresh, output_tokens=output, cache_read_tokens=read_, cache_write_tokens=written
    )
    return usage, float(total) if isinstance(total, int | float) and total > 0 else None
