"""Read a part of a file, of a folder's listing, or of a stored output."""

from __future__ import annotations

import asyncio
import difflib
import io
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from everthread.agent.base import ToolContext, ToolReply
from everthread.agent.tools import arguments as given
from everthread.agent.workspace import Workspace, explained, quoted
from everthread.errors import EverthreadError, InputError

CHARS = 50_000
"""One reading gives no more: less than what would be stored outside the conversation again."""
LINE = 5_000
"""Characters shown of one line."""
LINES = 2_000
COUNTED = 20_000_000
"""Bytes; in a larger file the lines after the part that is shown are not counted."""
_OUTPUT = "output:"
_BLOCK = 1 << 20
SCHEMA = given.schema(
    "read_file",
    "Read a text file, with line numbers; of a folder, the names in it. For long files give offset and limit; the "
    "answer says where it goes on. A path such as output:1f2e… reads a stored tool output: there offset (from 0) and "
    "limit count characters.",
    {
        "path": {"type": "string", "description": "A file or folder, relative to the workspace, or output:<id>."},
        "offset": {"type": "integer", "minimum": 0, "description": "The first line (from 1; default: the first)."},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "description": f"How many lines at most (default {LINES:,}); at most {CHARS:,} characters come at once.",
        },
    },
    ["path"],
)


class ReadFile:
    """The tool `read_file`."""

    name = "read_file"
    schema = SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> None:
        """Reading inside the workspace needs no leave."""

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        given.check_names(arguments, SCHEMA)
        path = given.text(arguments, "path")
        offset = given.number(arguments, "offset", default=0)
        if path.strip().startswith(_OUTPUT):
            limit = given.number(arguments, "limit", default=CHARS, least=1)
            return await _stored(context, path.strip(), offset, limit)
        limit = given.number(arguments, "limit", default=LINES, least=1)
        return await asyncio.to_thread(_read, Workspace(context.workspace), path, max(1, offset), limit)


async def _stored(context: ToolContext, cited: str, offset: int, limit: int) -> ToolReply:
    try:
        return ToolReply(await context.conversation.read_output(cited, offset=offset, limit=limit))
    except InputError as error:
        raise InputError(f"{quoted(cited)} cannot be read: {error}") from error
    except EverthreadError as error:
        return ToolReply(f"{quoted(cited)} could not be read: {error}", failed=True)


def _read(space: Workspace, named: str, first: int, limit: int) -> ToolReply:
    with explained(named):
        path = space.resolve(named)
        status = space.status(path)
        if status is None:
            return ToolReply(_missing(space, path, named), failed=True)
        if stat.S_ISDIR(status.st_mode):
            names = "\n".join(map(quoted, space.entries(path)))
            if not names:
                return ToolReply(f"[{quoted(named)} is an empty folder]")
            return ToolReply(_part(io.BytesIO(names.encode()), quoted(named), first, limit, numbered=False))
        with space.reading(path) as file:
            if b"\0" in file.peek(8_192)[:8_192]:  # type: ignore[attr-defined]  # a buffered reader has it
                said = f"{quoted(named)} is a binary file of {status.st_size:,} bytes; it cannot be read as text"
                return ToolReply(said, failed=True)
            return ToolReply(_part(file, quoted(named), first, limit))


def _part(file: BinaryIO, named: str, first: int, limit: int, *, numbered: bool = True) -> str:
    """Some lines, and what there is besides them."""
    skipped = _skip(file, first - 1)
    if skipped < first - 1 or (chunk := file.readline(LINE * 4 + 1)) == b"":
        return (
            f"[{named} has {skipped:,} lines; there is nothing at line {first:,}]" if skipped else f"[{named} is empty]"
        )
    shown: list[str] = []
    room, number = CHARS, first
    while chunk:
        line = _line(file, chunk)
        entry = f"{number}\t{line}" if numbered else line
        if len(shown) == limit or len(entry) >= room:
            break
        shown.append(entry)
        room -= len(entry) + 1
        number += 1
        chunk = file.readline(LINE * 4 + 1)
    if not chunk:
        rest = "" if first == 1 else f"\n[lines {first:,}-{number - 1:,}, the last of {named}]"
    else:
        more = _count(file)
        total = f"of {number + more:,}" if more is not None else "and more follow"
        rest = f"\n[lines {first:,}-{number - 1:,} {total}; go on with offset {number}]"
    return "\n".join(shown) + rest


def _line(file: BinaryIO, chunk: bytes) -> str:
    """A line that begins with the chunk, cut where it is too long."""
    size, last = len(chunk), chunk
    while last and not last.endswith(b"\n"):
        last = file.readline(_BLOCK)
        size += len(last)
    text = chunk.decode("utf-8", "replace").rstrip("\r\n")
    if size == len(chunk) and len(text) <= LINE:
        return text
    return f"{text[:LINE]} [cut: the line has {size:,} bytes]"


def _skip(file: BinaryIO, lines: int) -> int:
    """Pass over so many lines; how many there were."""
    passed = 0
    while passed < lines and (chunk := file.readline(_BLOCK)):
        if chunk.endswith(b"\n"):
            passed += 1
        elif not (following := file.readline(_BLOCK)):
            return passed + 1
        else:
            passed += following.endswith(b"\n")
    return passed


def _count(file: BinaryIO) -> int | None:
    """How many lines follow; None where counting them would take too long."""
    read = lines = 0
    last = b"\n"
    while chunk := file.read(_BLOCK):
        read += len(chunk)
        if read > COUNTED:
            return None
        lines += chunk.count(b"\n")
        last = chunk
    return lines + (not last.endswith(b"\n"))


def _missing(space: Workspace, path: Path, named: str) -> str:
    """What is not there, and what is there by a name like it."""
    parent = path.parent
    while parent != space.root and space.status(parent) is None:
        parent = parent.parent
    try:
        names = space.entries(parent)
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, [name.rstrip("/") for name in names], n=3, cutoff=0.6)
    hint = f"; near by name: {', '.join(map(quoted, near))}" if near else ""
    where = space.shown(parent)
    missing = f"{quoted(named)} does not exist{hint}"
    return missing if near else f"{missing} (the folder {quoted(where)} does, with {len(names):,} entries)"
