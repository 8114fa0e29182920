"""A workspace with tools in it, for tests: real files, a real conversation."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everthread.agent.processes import child_environment
from everthread.agent.tool_interface import Tool, ToolContext, ToolReply
from everthread.agent.tools import file_tools
from tests.conversation.talk import room, scripted

TOOLS = {tool.name: tool for tool in file_tools()}


@asynccontextmanager
async def at_work(folder: Path, **environment: str) -> AsyncIterator[ToolContext]:
    """Where tools work: `work` in the folder, which is made; beside it is the home."""
    (folder / "work").mkdir(exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    async with room(folder / "home") as place:
        conversation = await place.open(scripted())
        given = child_environment({**os.environ, **environment})
        yield ToolContext(
            folder / "work", folder / "home", conversation, "call_1", given
        )
        await conversation.close()


async def used(context: ToolContext, name: str, /, **arguments: Any) -> ToolReply:
    """As the loop uses a tool: what it needs first, then the call."""
    tool: Tool = TOOLS[name]
    tool.needs(arguments, context)
    return await tool.call(arguments, context)


async def idle(folder: Path) -> ToolContext:
    """A place for tools that do not need the conversation: it is closed."""
    async with at_work(folder) as context:
        return context


async def use(folder: Path, name: str, /, **arguments: Any) -> ToolReply:
    """One call in a workspace of its own."""
    async with at_work(folder) as context:
        return await used(context, name, **arguments)


def files(folder: Path, **contents: str) -> Path:
    """Files in the workspace: `a__b_py="..."` is `a/b.py`."""
    work = folder / "work"
    for name, text in contents.items():
        file = work / (
            name.replace("__", "/").rpartition("_")[0] + "." + name.rpartition("_")[2]
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return work
