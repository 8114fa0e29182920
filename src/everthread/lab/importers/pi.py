"""pi's session files: `~/.pi/agent/sessions/--<path>--/<time>_<id>.jsonl`.

The first line describes the session, the others are a tree by `id` and `parentId`; the branch that ends with the last
line counts. What the client summarised itself is told and not replayed: the messages before it are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.messages import Message, count_noun
from everthread.lab.importers.log import (
    Lines,
    Log,
    LoggedMessage,
    answer_of,
    describe_gaps,
    dollars_in,
    first_model,
    object_in,
    parse_time,
    text_in,
    texts_of,
    usage_in,
)

_ROLES = ("user", "assistant", "toolResult")


def is_line(value: Mapping[str, Any]) -> bool:
    if value.get("type") == "session":
        return isinstance(value.get("cwd"), str) and "thread" not in value
    return value.get("type") == "message" and object_in(value, "message").get("role") in _ROLES


def read(lines: Lines, source: str, warnings: list[str]) -> Log:
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
    notes = [*warnings, *describe_gaps(bad, {"branches that were given up": skipped})]
    notes += [f"{count_noun(summaries, 'message')} left out: summaries of the client itself"] if summaries else []
    return Log(source, "pi", messages, model=first_model(messages), warnings=notes, session=text_in(header, "id"))


def _last_branch(values: list[dict[str, Any]]) -> set[str] | None:
    """The ids from the last line back to the first; None in a file without a tree (version 1)."""
    parents = {text_in(value, "id"): value.get("parentId") for value in values if text_in(value, "id")}
    ends = (text_in(value, "id") for value in reversed(values) if text_in(value, "id") and "parentId" in value)
    at: Any = next(ends, None)
    if at is None:
        return None
    branch: set[str] = set()
    while isinstance(at, str) and at in parents and at not in branch:
        branch.add(at)
        at = parents[at]
    return branch


def _read_message(value: Mapping[str, Any]) -> LoggedMessage | None:
    logged = value["message"]
    at = parse_time(value.get("timestamp")) or parse_time(logged.get("timestamp"))
    content = logged.get("content")
    if not isinstance(content, str | list):
        return None
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else texts_of(blocks, "text")
    if logged["role"] == "user":
        return LoggedMessage({"role": "user", "content": text}, at)
    if logged["role"] == "toolResult":
        call, name = logged.get("toolCallId"), text_in(logged, "toolName")
        if not isinstance(call, str):
            return None
        result: Message = {"role": "tool", "tool_call_id": call, "content": text}
        return LoggedMessage({**result, "name": name} if name else result, at)
    calls = [
        (block["id"], block.get("name", ""), block.get("arguments"))
        for block in blocks
        if block.get("type") == "toolCall" and isinstance(block.get("id"), str)
    ]
    figures = object_in(logged, "usage")
    usage = usage_in(figures, "input", "output", "cacheRead", "cacheWrite") if figures else None
    cost = dollars_in(object_in(figures, "cost"), "total")
    message = answer_of(text, texts_of(blocks, "thinking", "thinking"), calls)
    return LoggedMessage(message, at, usage, cost, text_in(logged, "model"))
