"""Write a whole file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everthread.agent.base import Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as given
from everthread.agent.tools.diff import before, check_leave, diff
from everthread.agent.workspace import WRITING, Workspace, explained, quoted
from everthread.core.outputs import line_count

SCHEMA = given.schema(
    "write_file",
    "Write a file: what it held before is replaced by the content. Folders are made as needed. To change a part of a "
    "file, use patch.",
    {
        "path": {"type": "string", "description": "The file, relative to the workspace."},
        "content": {"type": "string", "description": "All the file shall hold."},
    },
    ["path", "content"],
)


class WriteFile:
    """The tool `write_file`."""

    name = "write_file"
    schema = SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission:
        """Leave to write what the path really names; the person sees what changes."""
        space, path, content = _read(arguments, context)
        shown = space.shown(path)
        with explained(shown):
            return Permission("write", shown, diff(before(space, path), content, shown))

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        space, path, content = _read(arguments, context)
        check_leave(context, space.shown(path))
        return await asyncio.to_thread(_write, space, path, content)


def _read(arguments: Mapping[str, Any], context: ToolContext) -> tuple[Workspace, Path, bytes]:
    given.check_names(arguments, SCHEMA)
    space = Workspace(context.workspace)
    path = space.resolve(given.text(arguments, "path"))
    space.check_writable(path, context.home)
    return space, path, given.encoded(given.text(arguments, "content", empty=True), "content")


def _write(space: Workspace, path: Path, content: bytes) -> ToolReply:
    shown = space.shown(path)
    with explained(shown), WRITING:
        old = space.status(path)
        space.replace(path, content)
    lines = line_count(content.decode("utf-8"))
    was = "a new file" if old is None else f"it had {old.st_size:,} bytes"
    return ToolReply(f"Wrote {quoted(shown)}: {lines:,} lines, {len(content):,} bytes ({was}).")
