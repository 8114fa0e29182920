"""The base of tools that write one file, and the diff that the user approves."""

from __future__ import annotations

import asyncio
import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.agent.workspace import WRITE_LOCK, Workspace, explain_os_errors, quote_name
from everthread.errors import InputError

MAX_DIFF_BYTES = 200_000
"""Maximum file size in bytes for a diff; for a larger file only the sizes are shown."""
MAX_DIFF_LINES = 200
"""Maximum lines of a diff."""


def make_diff(old: bytes | None, new: bytes, name: str) -> str:
    """Return a unified diff, or a sentence if it is too large or binary."""
    if old is not None and old == new:
        return "nothing changes"
    if max(len(old or b""), len(new)) > MAX_DIFF_BYTES or b"\0" in (old or b"") + new:
        return f"{len(new):,} bytes" + ("" if old is None else " in place of what it holds")
    old_lines, new_lines = (
        (text or b"").decode("utf-8", "replace").splitlines() for text in (old, new)
    )
    label = quote_name(name)
    lines = list(
        islice(
            difflib.unified_diff(old_lines, new_lines, label, label, lineterm="", n=2),
            MAX_DIFF_LINES + 1,
        )
    )
    if len(lines) > MAX_DIFF_LINES:
        lines[MAX_DIFF_LINES:] = ["[more lines follow]"]
    return "\n".join(lines)


class FileWriter(ABC):
    """A tool that writes one file. The user approves the change and the resolved path."""

    schema: ClassVar[dict[str, Any]]

    @abstractmethod
    def _compute_change(
        self, workspace: Workspace, path: Path, arguments: Mapping[str, Any]
    ) -> tuple[bytes | None, bytes, str]:
        """Return the old content, the new content, and a report for the model.

        The old content is None for a new file, and may be cut after the bytes that a diff shows.
        """

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission:
        """Return the permission to write the resolved path. An impossible change fails before the user is asked."""
        workspace, path = self._resolve(arguments, context)
        name = workspace.make_relative_name(path)
        with explain_os_errors(name):
            old, new, _ = self._compute_change(workspace, path, arguments)
        return Permission("write", name, make_diff(old, new, name))

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        workspace, path = self._resolve(arguments, context)
        name = workspace.make_relative_name(path)
        # A link may have been put there meanwhile.
        if context.allowed is not None and context.allowed.target != name:
            raise InputError(
                f"the user allowed to write {quote_name(context.allowed.target)}, but the path now names "
                f"{quote_name(name)}; nothing was written"
            )
        return await asyncio.to_thread(self._write, workspace, path, arguments)

    def _write(self, workspace: Workspace, path: Path, arguments: Mapping[str, Any]) -> ToolReply:
        with explain_os_errors(workspace.make_relative_name(path)), WRITE_LOCK:
            _, new, report = self._compute_change(workspace, path, arguments)
            workspace.replace(path, new)
        return ToolReply(report)

    def _resolve(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> tuple[Workspace, Path]:
        args.check_names(arguments, self.schema)
        workspace = Workspace(context.workspace)
        path = workspace.resolve(args.read_text(arguments, "path"))
        workspace.check_writable(path, context.home)
        return workspace, path
