"""Claude Code's session files: `~/.claude/projects/<project>/<session>.jsonl`.

One object a line. A model's answer is spread over several lines with the same message id, one block each, and each
repeats the answer's usage. Subagents (`isSidechain`), the client's own summaries and its notices of errors were not
part of the conversation with the model as it is replayed: they are left out, and that is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.pricing import normalize_usage
from everthread.errors import WireError
from everthread.lab.importers.log import Log, LoggedMessage, model_of, moment, numbered, text_in
from everthread.wire import anthropic

_SYNTHETIC = "<synthetic>"
"""The model that the client names for what it wrote itself."""


def is_entry(value: Mapping[str, Any]) -> bool:
    message = value.get("message")
    return kind_of(value) in ("user", "assistant") and isinstance(message, Mapping) and "role" in message


def read(lines: list[tuple[int, dict[str, Any]]], source: str, warnings: list[str]) -> Log:
    """The conversation as the last branch of it has it."""
    left_out: Counter[str] = Counter()
    entries: list[tuple[int, dict[str, Any]]] = []
    dropped = _rewritten([value for _, value in lines])
    for number, value in lines:
        reason = _not_spoken(value, dropped)
        if reason:
            left_out[reason] += 1
        elif is_entry(value):
            entries.append((number, value))
    said, bad = _decoded(entries)
    told = [*warnings, *([f"{numbered(bad)}: no message that can be read; passed over"] if bad else [])]
    told += [f"{count:,} lines left out: {reason}" for reason, count in left_out.items()]
    session = next((found for _, value in lines if (found := text_in(value, "sessionId"))), "")
    title = next((found for _, value in lines if (found := text_in(value, "summary"))), "")
    return Log(source, "claude-code", said, model=model_of(said), warnings=told, session=session, title=title)


def _not_spoken(value: Mapping[str, Any], dropped: set[str]) -> str:
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


def _rewritten(values: list[dict[str, Any]]) -> set[str]:
    """The lines of branches that were given up: of several prompts after the same line the last one counts."""
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


def _decoded(entries: list[tuple[int, dict[str, Any]]]) -> tuple[list[LoggedMessage], list[int]]:
    said: list[LoggedMessage] = []
    bad: list[int] = []
    for numbers, message, at in _joined(entries):
        name = text_in(message, "model")
        try:
            decoded = anthropic.decode_messages([{key: message.get(key) for key in ("role", "content")}], model=name)
        except WireError:
            bad += numbers
            continue
        usage = normalize_usage(message["usage"]) if isinstance(message.get("usage"), Mapping) else None
        said += [LoggedMessage(core, at, usage, None, name) for core in decoded]
    return said, bad


def _joined(
    entries: list[tuple[int, dict[str, Any]]],
) -> list[tuple[list[int], dict[str, Any], float | None]]:
    """The lines of one answer as one message; the results of parallel calls that came between stand after it."""
    found: list[tuple[list[int], dict[str, Any], float | None]] = []
    answers: dict[str, int] = {}
    for number, value in entries:
        message = dict(value["message"])
        message_id = message.get("id")
        known = answers.get(message_id) if isinstance(message_id, str) and value["type"] == "assistant" else None
        if known is not None:
            numbers, before, at = found[known]
            content = [*_blocks(before), *(block for block in _blocks(message) if block not in _blocks(before))]
            found[known] = [*numbers, number], {**before, **message, "content": content}, at
            continue
        if isinstance(message_id, str) and value["type"] == "assistant":
            answers[message_id] = len(found)
        found.append(([number], message, moment(value.get("timestamp"))))
    return found


def _blocks(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []
