"""Tell from a tool call alone, without its output, what effect it may have and which files it concerns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from everthread.compaction.history.call_lines import Action, find_action
from everthread.compaction.history.shell_commands import (
    find_redirect_targets,
    is_read_only_command,
    looks_like_path,
)
from everthread.compaction.history.tool_kinds import (
    PATCHED_FILE_PATTERN,
    find_argument_line,
    find_descriptive_name,
    load_tool_table,
    snake_arguments,
    split_name,
)
from everthread.core.messages import ToolCall

EffectKind = Literal["changed", "ran", "called", "looked"]
"""The effect of a call: it changed files, ran a command, did anything else that may have an effect, or had none."""
_EFFECT_KINDS: Mapping[str, EffectKind] = {"shell": "ran", "patch": "changed", "write": "changed"}
_READING_KINDS = frozenset({"read", "search", "list", "web"})
_ACTING_WORD_PAIRS = (("check", "in"), ("check", "out"), ("count", "down"))
_WRITING_STATEMENT_PATTERN = re.compile(
    r"\s*(?:insert\s+into|update\s+\S+\s+set|delete\s+from|merge\s+into|truncate\s+table|grant\s|revoke\s|mutation\b\s*[\w({]"
    r"|(?:drop|alter|create)\s+(?:or\s+replace\s+)?(?:unique\s+|temp\w{0,6}\s+|materialized\s+)?"
    r"(?:table|index|view|database|schema|user|role|type|function|trigger|column|extension)\b)",
    re.IGNORECASE,
)
"""Starts of a query that changes a database."""
_QUOTE_CHARS_PATTERN = re.compile("[\"']")


def find_effect_kind(call: ToolCall, action: Action, arguments: Mapping[str, Any]) -> EffectKind:
    """Return the kind of effect that a call may have: `looked` only if it clearly changes nothing."""
    if action.kind == "shell":
        return "looked" if is_read_only_command(action.target) else "ran"
    return _EFFECT_KINDS.get(action.kind) or (
        "looked" if _is_read_only_call(call, action, arguments) else "called"
    )


class NamedFiles(NamedTuple):
    """The files that a call reads or changes."""

    paths: tuple[str, ...]
    is_change: bool


def find_named_files(call: ToolCall) -> NamedFiles | None:
    """Return the files that a call names, or None if it names none."""
    arguments = snake_arguments(call)
    action = find_action(call, arguments_by_name=arguments)
    if action is None:
        return None
    kind = find_effect_kind(call, action, arguments)
    paths = find_paths(kind, action, call, arguments)
    if not paths and kind == "looked" and action.kind == "shell":
        paths = tuple(
            word
            for word in _QUOTE_CHARS_PATTERN.sub("", action.target).split()
            if looks_like_path(word)
        )
    return NamedFiles(paths, is_change=kind != "looked") if paths else None


def _is_read_only_call(call: ToolCall, action: Action, arguments: Mapping[str, Any]) -> bool:
    """Return whether a tool's name marks it as read-only, and no argument says otherwise."""
    table = load_tool_table()
    words = split_name(find_descriptive_name(call, arguments))
    has_reading_kind = action.kind in _READING_KINDS and not table.kinds[
        action.kind
    ].name_words.isdisjoint(words)
    if not (
        has_reading_kind or (words and not table.read_only_words.isdisjoint((words[0], words[-1])))
    ):
        return False
    if not table.joining_words.isdisjoint(words) or words[:2] in _ACTING_WORD_PAIRS:
        return False
    if words[0] not in table.read_only_words and not table.acting_words.isdisjoint(words):
        return False
    method = arguments.get("method")
    if isinstance(method, str) and method.upper() not in ("GET", "HEAD"):
        return False
    return not any(
        isinstance(value, str) and _WRITING_STATEMENT_PATTERN.match(value)
        for value in arguments.values()
    )


def find_paths(
    kind: EffectKind, action: Action, call: ToolCall, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the files that a call changed, wrote to or read."""
    if kind == "changed":
        patched_paths = []
        if "File: " in call.arguments:
            patched_paths = PATCHED_FILE_PATTERN.findall(call.arguments.replace("\\n", "\n"))
        path = find_argument_line(arguments, load_tool_table().path_arguments)
        return tuple(dict.fromkeys([*patched_paths, *([path] if path else [])])) or (
            (action.target,) if action.target else ()
        )
    if kind == "ran":
        command = action.target
        if "*** " in call.arguments and " File: " in call.arguments:
            return tuple(
                dict.fromkeys(PATCHED_FILE_PATTERN.findall(call.arguments.replace("\\n", "\n")))
            )
        if "code" in arguments:
            return ()
        return find_redirect_targets(command)
    return (action.target,) if action.kind == "read" and action.target else ()
