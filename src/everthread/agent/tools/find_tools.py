"""Find a tool that is left out, and have it shown again: after the next compaction, or at once if the user allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.agent.base import Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as given
from everthread.conversation.toolbox import FIND, FIND_SCHEMA, QUERY_CHARS


class FindTools:
    """The tool `find_tools`. The conversation offers it, and only where tools are left out."""

    name = FIND
    schema = FIND_SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission | None:
        """Leave to lose the provider's cache, with what that costs, where tools shall be shown at once."""
        query, now = _read(arguments)
        found = context.conversation.toolbox.look(query) if now else None
        if found is None or not found.tools:
            return None
        names = ", ".join(card.name for card in found.tools)
        return Permission("cache", f"show these tools at once: {names}", context.conversation.toolbox.price())

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        query, _ = _read(arguments)
        allowed = context.allowed is not None and context.allowed.kind == "cache"
        return ToolReply((await context.conversation.find_tools(query, now=allowed)).text)

    async def refused(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        """Without leave they come back later."""
        query, _ = _read(arguments)
        return ToolReply((await context.conversation.toolbox.find(query, refused=True)).text)


def _read(arguments: Mapping[str, Any]) -> tuple[str, bool]:
    given.check_names(arguments, FIND_SCHEMA)
    return given.text(arguments, "query", longest=QUERY_CHARS), given.flag(arguments, "now")
