"""Claude Code's session files: `~/.claude/projects/<project>/<session>.jsonl`.

One object a line. A model's answer is spread over several lines with the same message id, one block each, and each
repeats the answer's usage. Subagents (`isSidechain`), the client's own summaries and its error notices are left out,
with a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.pricing import normalize_usage
from everthread.errors import WireError
from everthread.lab.importers.log import Lines, Log, LoggedMessage, describe_gaps, first_model, parse_time, text_in
from everthread.wire import anthropic

_SYNTHETIC = "<synthetic>"
"""The model's name in messages that the client wrote itself."""


def is_entry(value: Mapping[str, Any]) -> bool:
    message = value.get("message")
    return kind_of(value) in ("user", "assistant") and isinstance(message, Mapping) and "role" in message


def read(lines: Lines, source: str, warnings: list[str]) -> Log:
    """Read the last branch of the conversation."""
    left_out: Counter[str] = Counter()
    entries: Lines = []
    dropped = _abandoned_lines([value for _, value in lines])
    for number, value in lines:
        reason = _reason_to_skip(value, dropped)
        if reason:
            left_out[reason] += 1
        elif is_entry(value):
            entries.append((number, value))
    messages, bad = _decode_entries(entries)
    notes = [*warnings, *describe_gaps(bad, left_out)]
    session = next((text for _, value in lines if (text := text_in(value, "sessionId"))), "")
    title = next((text for _, value in lines if (text := text_in(value, "summary"))), "")
    return Log(
        source, "claude-code", messages, model=first_model(messages), warnings=notes, session=session, title=title
    )


def _reason_to_skip(value: Mapping[str, Any], dropped: set[str]) -> str:
    if not is_entry(value):
        return ""
    if value.get("isSidechain") is True:
        return "a subagent's own conversation"
    if value.get("isCompactSummary") is True:
        return "the client's own summary of what came before"
    if value.get("isApiErrorMessage") is True or value["message"].get("model") == _SYNTHETIC:
        return "a notice of the client, not of the model"
    if text_in(value, "uuid") in dropped:
        return "a branch that was given up"
    return ""


def _abandoned_lines(values: list[dict[str, Any]]) -> set[str]:
    """The lines of abandoned branches: of several prompts after the same line the last one counts."""
    parents = {text_in(value, "uuid"): text_in(value, "parentUuid") for value in values if text_in(value, "uuid")}
    prompts: dict[str, str] = {}
    dropped: set[str] = set()
    for value in values:
        parent = text_in(value, "parentUuid")
        if parent and _is_prompt(value):
            if parent in prompts:
                dropped.add(prompts[parent])
            prompts[parent] = text_in(value, "uuid")
    for uuid, parent in parents.items():  # a line comes after the one it continues
        if parent in dropped:
            dropped.add(uuid)
    return dropped


def _is_prompt(value: Mapping[str, Any]) -> bool:
    if not is_entry(value) or value["type"] != "user" or value.get("isMeta") is True or value.get("isSidechain"):
        return False
    content = value["message"].get("content")
    blocks = content if isinstance(content, list) else []
    return not any(kind_of(block) == "tool_result" for block in blocks)


def _decode_entries(entries: Lines) -> tuple[list[LoggedMessage], list[int]]:
    """The messages, and the numbers of the lines that hold none."""
    messages: list[LoggedMessage] = []
    bad: list[int] = []
    for numbers, message, at in _join_answers(entries):
        name = text_in(message, "model")
        try:
            decoded = anthropic.decode_messages([{key: message.get(key) for key in ("role", "content")}], model=name)
        except WireError:
            bad += numbers
            continue
        usage = normalize_usage(message["usage"]) if isinstance(message.get("usage"), Mapping) else None
        messages += [LoggedMessage(core, at, usage, None, name) for core in decoded]
    return messages, bad


def _join_answers(entries: Lines) -> list[tuple[list[int], dict[str, Any], float | None]]:
    """Join the lines of one answer into one message; results of parallel calls between them come after it."""
    joined: dict[object, tuple[list[int], dict[str, Any], float | None]] = {}
    for number, value in entries:
        message = dict(value["message"])
        is_answer = value["type"] == "assistant" and isinstance(message.get("id"), str)
        key = message["id"] if is_answer else number
        if key in joined:
            numbers, previous, at = joined[key]
            content = [*_blocks(previous), *(block for block in _blocks(message) if block not in _blocks(previous))]
            joined[key] = [*numbers, number], {**previous, **message, "content": content}, at
        else:
            joined[key] = [number], message, parse_time(value.get("timestamp"))
    return list(joined.values())


def _blocks(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []
