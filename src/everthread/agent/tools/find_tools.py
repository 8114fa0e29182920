"""The tool `find_tools`: find tools that were left out of the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.conversation.offered_tools import FIND_TOOLS, FIND_TOOLS_SCHEMA, MAX_QUERY_CHARS


class FindTools:
    """The tool `find_tools`. The conversation offers it if tools are left out."""

    name = FIND_TOOLS
    schema = FIND_TOOLS_SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission | None:
        """Return the permission to lose the provider's cache, with its price, if tools are requested at once."""
        query, should_show_now = _read_query(arguments)
        matches = context.conversation.toolbox.search(query) if should_show_now else None
        if matches is None or not matches.tools:
            return None
        names = ", ".join(card.name for card in matches.tools)
        return Permission(
            "cache",
            f"show these tools at once: {names}",
            context.conversation.describe_cache_loss(),
        )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        query, _ = _read_query(arguments)
        is_allowed = context.allowed is not None and context.allowed.kind == "cache"
        return ToolReply((await context.conversation.find_tools(query, now=is_allowed)).text)

    async def call_refused(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        """Find the tools without approval, so that they are offered again at the next compaction."""
        query, _ = _read_query(arguments)
        found_tools = await context.conversation.find_tools(query)
        return ToolReply(replace(found_tools, was_refused=True).text)


def _read_query(arguments: Mapping[str, Any]) -> tuple[str, bool]:
    args.check_names(arguments, FIND_TOOLS_SCHEMA)
    return args.read_text(arguments, "query", max_chars=MAX_QUERY_CHARS), args.read_flag(
        arguments, "now"
    )
