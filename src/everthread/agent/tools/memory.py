"""Remember beyond this conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.agent.base import Permission, ToolContext, ToolReply
from everthread.agent.memory import FILES, LIMITS, SHELVES, Memory, Shelf
from everthread.agent.tools import arguments as given
from everthread.errors import InputError

ACTIONS = ("list", "add", "replace", "remove")
SCHEMA = given.schema(
    "memory",
    "Keep what must outlast this conversation: short, durable facts and preferences, one an entry. Not for progress of "
    "the current task, and never for credentials. New sessions see the entries in their system prompt.",
    {
        "action": {"type": "string", "enum": list(ACTIONS)},
        "target": {
            "type": "string",
            "enum": list(SHELVES),
            "description": "memory: what you learnt of projects and tools. user: who the user is and wants. "
            "Default: memory.",
        },
        "text": {"type": "string", "description": "For add and replace: the new entry."},
        "old": {"type": "string", "description": "For replace and remove: words of the entry meant, or its number."},
    },
    ["action"],
)


class MemoryTool:
    """The tool `memory`."""

    name = "memory"
    schema = SCHEMA

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission | None:  # noqa: ARG002 - as every tool
        """Nothing: it writes two small files of its own, which the user can read."""
        return None

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:  # noqa: ARG002 - as every tool
        given.check_names(arguments, SCHEMA)
        action, shelf = given.text(arguments, "action"), _shelf(given.text(arguments, "target", default="memory"))
        if action == "list":
            await self._memory.settle()
            return ToolReply(self._listed(shelf))
        if action == "add":
            done = await self._memory.add(shelf, given.text(arguments, "text"))
        elif action == "replace":
            done = await self._memory.replace(shelf, given.text(arguments, "old"), given.text(arguments, "text"))
        elif action == "remove":
            done = await self._memory.remove(shelf, given.text(arguments, "old"))
        else:
            raise InputError(f"there is no action {action!r}; use {', '.join(ACTIONS)}")
        note = "\nA credential in it was left out: secrets are never kept." if done.redacted else ""
        word = "Removed" if action == "remove" else "Kept"
        return ToolReply(f"{word}: {done.entry}{note}\n{self._room(shelf)}")

    def _listed(self, shelf: Shelf) -> str:
        entries = self._memory.entries(shelf)
        lines = [f"{number}. {entry}" for number, entry in enumerate(entries, 1)]
        return "\n".join([*lines, self._room(shelf)]) if lines else f"{FILES[shelf]} has no entries."

    def _room(self, shelf: Shelf) -> str:
        return f"({FILES[shelf]}: {len(self._memory.text(shelf)):,} of {LIMITS[shelf]:,} characters)"


def _shelf(name: str) -> Shelf:
    if name not in SHELVES:
        raise InputError(f"there is no target {name!r}; use {' or '.join(SHELVES)}")
    return name
