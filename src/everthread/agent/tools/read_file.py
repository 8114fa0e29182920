"""Read a file with line numbers, list the names in a folder, or read a stored tool output."""

from __future__ import annotations

import asyncio
import difflib
import io
import stat
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from everthread.agent.tool_interface import PreapprovedTool, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.agent.workspace import Workspace, explain_os_errors, quote_name
from everthread.core.tool_schemas import build_schema
from everthread.errors import EverthreadError, InputError

MAX_ANSWER_CHARS = 50_000
"""Characters of one answer; longer ones would be stored outside the conversation."""
MAX_LINE_CHARS = 5_000
"""Characters shown of one line."""
DEFAULT_LINE_COUNT = 2_000
MAX_COUNTED_BYTES = 20_000_000
"""Maximum bytes to read for counting the lines after the shown part."""
_OUTPUT_PREFIX = "output:"
_BLOCK_BYTES = 1 << 20
READ_SCHEMA = build_schema(
    "read_file",
    "Read a text file, with line numbers; of a folder, the names in it. For long files give offset and limit; the "
    "answer says where it goes on. A path such as output:1f2e… reads a stored tool output: there offset (from 0) and "
    "limit count characters.",
    {
        "path": {
            "type": "string",
            "description": "A file or folder, relative to the workspace, or output:<id>.",
        },
        "offset": {
            "type": "integer",
            "minimum": 0,
            "description": "The first line (from 1; default: the first).",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "description": f"How many lines at most (default {DEFAULT_LINE_COUNT:,}); "
            f"at most {MAX_ANSWER_CHARS:,} characters come at once.",
        },
    },
    ["path"],
)


class ReadFile(PreapprovedTool):
    """The tool `read_file`."""

    name = "read_file"
    schema = READ_SCHEMA

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        args.check_names(arguments, READ_SCHEMA)
        path = args.read_text(arguments, "path")
        offset = args.read_int(arguments, "offset", default=0)
        if path.strip().startswith(_OUTPUT_PREFIX):
            limit = args.read_int(arguments, "limit", default=MAX_ANSWER_CHARS, minimum=1)
            return await _read_stored_output(context, path.strip(), offset, limit)
        limit = args.read_int(arguments, "limit", default=DEFAULT_LINE_COUNT, minimum=1)
        return await asyncio.to_thread(
            _read_path, Workspace(context.workspace), path, max(1, offset), limit
        )


async def _read_stored_output(
    context: ToolContext, output_id: str, offset: int, limit: int
) -> ToolReply:
    try:
        return ToolReply(
            await context.conversation.read_output(output_id, offset=offset, limit=limit)
        )
    except InputError as error:
        raise InputError(f"{quote_name(output_id)} cannot be read: {error}") from error
    except EverthreadError as error:
        return ToolReply(f"{quote_name(output_id)} could not be read: {error}", failed=True)


def _read_path(workspace: Workspace, name: str, first_line: int, limit: int) -> ToolReply:
    with explain_os_errors(name):
        path = workspace.resolve(name)
        status = workspace.find_status(path)
        if status is None:
            return ToolReply(_describe_missing(workspace, path, name), failed=True)
        if stat.S_ISDIR(status.st_mode):
            names = "\n".join(map(quote_name, workspace.list_entries(path)))
            if not names:
                return ToolReply(f"[{quote_name(name)} is an empty folder]")
            listing = io.BytesIO(names.encode())
            text = _format_lines(listing, quote_name(name), first_line, limit, with_numbers=False)
            return ToolReply(text)
        with workspace.open_file(path) as file:
            if b"\0" in file.peek(8_192)[:8_192]:  # type: ignore[attr-defined]  # a buffered reader has it
                message = f"{quote_name(name)} is a binary file of {status.st_size:,} bytes; it cannot be read as text"
                return ToolReply(message, failed=True)
            return ToolReply(_format_lines(file, quote_name(name), first_line, limit))


def _format_lines(
    file: BinaryIO, name: str, first_line: int, limit: int, *, with_numbers: bool = True
) -> str:
    """Return some lines of a file, with a note about the rest."""
    lines = _read_lines(file)
    skipped = sum(1 for _ in islice(lines, first_line - 1))
    entries: list[str] = []
    free_chars = MAX_ANSWER_CHARS
    note = ""
    for start, size in lines:
        number = first_line + len(entries)
        line = _decode_line(start, size)
        entry = f"{number}\t{line}" if with_numbers else line
        if len(entries) == limit or len(entry) >= free_chars:
            more_lines = _count_lines(lines)
            total = f"of {number + more_lines:,}" if more_lines is not None else "and more follow"
            note = f"\n[lines {first_line:,}-{number - 1:,} {total}; go on with offset {number}]"
            break
        entries.append(entry)
        free_chars -= len(entry) + 1
    if not entries and skipped:
        return f"[{name} has {skipped:,} lines; there is nothing at line {first_line:,}]"
    if not entries:
        return f"[{name} is empty]"
    if not note and first_line > 1:
        note = f"\n[lines {first_line:,}-{first_line + len(entries) - 1:,}, the last of {name}]"
    return "\n".join(entries) + note


def _read_lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the start of each line and its size in bytes, because a line may be too long for memory."""
    while start := file.readline(MAX_LINE_CHARS * 4 + 1):
        size = len(start)
        piece = start
        while piece and not piece.endswith(b"\n"):
            piece = file.readline(_BLOCK_BYTES)
            size += len(piece)
        yield start, size


def _decode_line(start: bytes, size: int) -> str:
    text = start.decode("utf-8", "replace").rstrip("\r\n")
    if size == len(start) and len(text) <= MAX_LINE_CHARS:
        return text
    return f"{text[:MAX_LINE_CHARS]} [cut: the line has {size:,} bytes]"


def _count_lines(lines: Iterator[tuple[bytes, int]]) -> int | None:
    """Count the lines that follow, or None if that would take too long."""
    count = bytes_read = 0
    for _, size in lines:
        count += 1
        bytes_read += size
        if bytes_read > MAX_COUNTED_BYTES:
            return None
    return count


def _describe_missing(workspace: Workspace, path: Path, name: str) -> str:
    """Return the message for a missing file, with similar names."""
    parent = path.parent
    while parent != workspace.root and workspace.find_status(parent) is None:
        parent = parent.parent
    try:
        names = workspace.list_entries(parent)
    except OSError:
        names = []
    similar_names = difflib.get_close_matches(
        path.name, [name.rstrip("/") for name in names], n=3, cutoff=0.6
    )
    message = f"{quote_name(name)} does not exist"
    if similar_names:
        return f"{message}; near by name: {', '.join(map(quote_name, similar_names))}"
    folder_name = quote_name(workspace.make_relative_name(parent))
    return f"{message} (the folder {folder_name} does, with {len(names):,} entries)"
