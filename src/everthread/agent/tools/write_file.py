"""The tool `write_file`: replace a whole file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everthread.agent.tools import arguments as args
from everthread.agent.tools.file_writer import MAX_DIFF_BYTES, FileWriter
from everthread.agent.workspace import Workspace, quote_name
from everthread.core.text import count_noun
from everthread.core.tool_outputs import count_lines
from everthread.core.tool_schemas import build_schema

WRITE_SCHEMA = build_schema(
    "write_file",
    "Write a file: what it held before is replaced by the content. Folders are made as needed. To change a part of a "
    "file, use patch.",
    {
        "path": {
            "type": "string",
            "description": "The file, relative to the workspace.",
        },
        "content": {"type": "string", "description": "All the file shall hold."},
    },
    ["path", "content"],
)


class WriteFile(FileWriter):
    """The tool `write_file`."""

    name = "write_file"
    schema = WRITE_SCHEMA

    def _compute_change(
        self, workspace: Workspace, path: Path, arguments: Mapping[str, Any]
    ) -> tuple[bytes | None, bytes, str]:
        text = args.read_text(arguments, "content", allow_empty=True)
        content = args.encode_text(text, "content")
        status = workspace.find_status(path)
        old = None
        if status is not None:
            with workspace.open_file(path) as file:
                old = file.read(MAX_DIFF_BYTES + 1)
        size_note = "a new file" if status is None else f"it had {status.st_size:,} bytes"
        name = quote_name(workspace.make_relative_name(path))
        lines = count_lines(text)
        return (
            old,
            content,
            f"Wrote {name}: {count_noun(lines, 'line')}, {count_noun(len(content), 'byte')} ({size_note}).",
        )
