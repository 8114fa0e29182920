"""The tool `memory`: change the notes that later conversations see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.agent.memory import CHAR_LIMITS, FILE_NAMES, MEMORY_KINDS, MemoryFiles, MemoryKind
from everthread.agent.tool_interface import PreapprovedTool, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.core.tool_schemas import build_schema
from everthread.errors import InputError

ACTIONS = ("list", "add", "replace", "remove")
MEMORY_SCHEMA = build_schema(
    "memory",
    "Keep what must outlast this conversation: short, durable facts and preferences, one an entry. Not for progress of "
    "the current task, and never for credentials. New sessions see the entries in their system prompt.",
    {
        "action": {"type": "string", "enum": list(ACTIONS)},
        "target": {
            "type": "string",
            "enum": list(MEMORY_KINDS),
            "description": "memory: what you learnt of projects and tools. user: who the user is and wants. "
            "Default: memory.",
        },
        "text": {
            "type": "string",
            "description": "For add and replace: the new entry.",
        },
        "old": {
            "type": "string",
            "description": "For replace and remove: words of the entry meant, or its number.",
        },
    },
    ["action"],
)


class MemoryTool(PreapprovedTool):
    """The tool `memory`."""

    name = "memory"
    schema = MEMORY_SCHEMA

    def __init__(self, memory: MemoryFiles) -> None:
        self._memory = memory

    async def call(
        self,
        arguments: Mapping[str, Any],
        context: ToolContext,  # noqa: ARG002
    ) -> ToolReply:
        args.check_names(arguments, MEMORY_SCHEMA)
        action = args.read_text(arguments, "action")
        kind = _read_kind(args.read_text(arguments, "target", default="memory"))
        if action == "list":
            await self._memory.wait_for_changes()
            return ToolReply(self._list_entries(kind))
        if action == "add":
            change = await self._memory.add(kind, args.read_text(arguments, "text"))
        elif action == "replace":
            old_text = args.read_text(arguments, "old")
            new_text = args.read_text(arguments, "text")
            change = await self._memory.replace(kind, old_text, new_text)
        elif action == "remove":
            change = await self._memory.remove(kind, args.read_text(arguments, "old"))
        else:
            raise InputError(f"there is no action {action!r}; use {', '.join(ACTIONS)}")
        note = ""
        if change.was_redacted:
            note = "\nA credential in it was left out: secrets are never kept."
        verb = "Removed" if action == "remove" else "Kept"
        return ToolReply(f"{verb}: {change.entry}{note}\n{self._describe_space(kind)}")

    def _list_entries(self, kind: MemoryKind) -> str:
        entries = self._memory.read_entries(kind)
        lines = [f"{number}. {entry}" for number, entry in enumerate(entries, 1)]
        if not lines:
            return f"{FILE_NAMES[kind]} has no entries."
        return "\n".join([*lines, self._describe_space(kind)])

    def _describe_space(self, kind: MemoryKind) -> str:
        return f"({FILE_NAMES[kind]}: {len(self._memory.read_text(kind)):,} of {CHAR_LIMITS[kind]:,} characters)"


def _read_kind(name: str) -> MemoryKind:
    if name not in MEMORY_KINDS:
        raise InputError(f"there is no target {name!r}; use {' or '.join(MEMORY_KINDS)}")
    return name
