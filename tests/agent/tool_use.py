"""A workspace with tools in it, for tests: real files, a real conversation."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everthread.agent.child_environment import make_child_environment
from everthread.agent.tool_interface import Tool, ToolContext, ToolReply
from everthread.agent.tools import make_file_tools
from tests.conversation.conversation_setup import open_conversations, scripted_model

TOOLS = {tool.name: tool for tool in make_file_tools()}


@asynccontextmanager
async def open_tool_context(folder: Path, **environment: str) -> AsyncIterator[ToolContext]:
    """Open a context for tools: the workspace is `work` in the folder, the home is beside it."""
    (folder / "work").mkdir(exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    async with open_conversations(folder / "home") as conversations:
        conversation = await conversations.open(scripted_model())
        variables = make_child_environment({**os.environ, **environment})
        yield ToolContext(folder / "work", folder / "home", conversation, "call_1", variables)
        await conversation.close()


async def call_tool(context: ToolContext, name: str, /, **arguments: Any) -> ToolReply:
    """Use a tool as the loop does: ask for its permission, then call it."""
    tool: Tool = TOOLS[name]
    tool.needs(arguments, context)
    return await tool.call(arguments, context)


async def closed_tool_context(folder: Path) -> ToolContext:
    """Return a context for tools that do not need the conversation, which is closed."""
    async with open_tool_context(folder) as context:
        return context


async def call_tool_in(folder: Path, name: str, /, **arguments: Any) -> ToolReply:
    """Call a tool in a workspace of its own."""
    async with open_tool_context(folder) as context:
        return await call_tool(context, name, **arguments)


def write_files(folder: Path, contents: Mapping[str, str]) -> Path:
    """Write files, given by their paths, in the workspace of a folder; return the workspace."""
    work = folder / "work"
    for path, text in contents.items():
        file = work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return work
