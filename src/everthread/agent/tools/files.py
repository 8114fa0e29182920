"""Tools for the files of the workspace: `read_file`, `write_file`, `patch`; what a change does, for who allows it."""

from __future__ import annotations

import asyncio
import difflib
import io
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from everthread.agent.base import FreeTool, Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as given
from everthread.agent.workspace import WRITING, Workspace, explained, quoted
from everthread.core.outputs import line_count
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
READ_SCHEMA = given.schema(
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


class ReadFile(FreeTool):
    """The tool `read_file`."""

    name = "read_file"
    schema = READ_SCHEMA

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        given.check_names(arguments, READ_SCHEMA)
        path = given.text(arguments, "path")
        offset = given.number(arguments, "offset", default=0)
        if path.strip().startswith(_OUTPUT):
            limit = given.number(arguments, "limit", default=CHARS, least=1)
            return await _stored(context, path.strip(), offset, limit)
        limit = given.number(arguments, "limit", default=LINES, least=1)
        return await asyncio.to_thread(_read_path, Workspace(context.workspace), path, max(1, offset), limit)


async def _stored(context: ToolContext, cited: str, offset: int, limit: int) -> ToolReply:
    try:
        return ToolReply(await context.conversation.read_output(cited, offset=offset, limit=limit))
    except InputError as error:
        raise InputError(f"{quoted(cited)} cannot be read: {error}") from error
    except EverthreadError as error:
        return ToolReply(f"{quoted(cited)} could not be read: {error}", failed=True)


def _read_path(space: Workspace, named: str, first: int, limit: int) -> ToolReply:
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


DIFF_BYTES = 200_000
"""Bytes; of a larger file only sizes are told."""
DIFF_LINES = 200
"""Lines of a difference."""


def before(space: Workspace, path: Path) -> bytes | None:
    """What a file holds; None where there is none."""
    status = space.status(path)
    if status is None:
        return None
    with space.reading(path) as file:
        return file.read(DIFF_BYTES + 1)


def diff(old: bytes | None, new: bytes, name: str) -> str:
    """The difference as a unified diff, or in words where it is too large or no text."""
    if old is not None and old == new:
        return "nothing changes"
    if max(len(old or b""), len(new)) > DIFF_BYTES or b"\0" in (old or b"") + new:
        return f"{len(new):,} bytes" + ("" if old is None else " in place of what it holds")
    left, right = ((text or b"").decode("utf-8", "replace").splitlines() for text in (old, new))
    named = quoted(name)
    lines = list(islice(difflib.unified_diff(left, right, named, named, lineterm="", n=2), DIFF_LINES + 1))
    if len(lines) > DIFF_LINES:
        lines[DIFF_LINES:] = ["[more lines follow]"]
    return "\n".join(lines)


def check_leave(context: ToolContext, shown: str) -> None:
    """Leave was given for the file that was shown: a link put there meanwhile does not carry it to another."""
    if context.allowed is not None and context.allowed.what != shown:
        raise InputError(
            f"leave was given to write {quoted(context.allowed.what)}, and the path now names {quoted(shown)}; "
            "nothing was written"
        )


def whole(space: Workspace, path: Path, limit: int) -> bytes:
    """All a file holds, up to a limit beyond which nothing is changed in it."""
    status = space.status(path)
    if status is None:
        raise InputError(f"{quoted(space.shown(path))} does not exist; write_file makes a new file")
    with space.reading(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"{quoted(space.shown(path))} is larger than {limit:,} bytes; change it with a command")
    return data


WRITE_SCHEMA = given.schema(
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
    schema = WRITE_SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission:
        """Leave to write what the path really names; the person sees what changes."""
        space, path, content = _target(arguments, context)
        shown = space.shown(path)
        with explained(shown):
            return Permission("write", shown, diff(before(space, path), content, shown))

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        space, path, content = _target(arguments, context)
        check_leave(context, space.shown(path))
        return await asyncio.to_thread(_write, space, path, content)


def _target(arguments: Mapping[str, Any], context: ToolContext) -> tuple[Workspace, Path, bytes]:
    given.check_names(arguments, WRITE_SCHEMA)
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


HINT_COMPARED = 1_000
"""Lines compared letter by letter; more would take too long for a hint."""
HINT_LINES = 12


def nearest(text: str, wanted: str) -> str:
    """A sentence that shows the lines most like those wanted."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    asked = [" ".join(line.split()) for line in wanted.split("\n")]
    at = _same_lines(lines, asked)
    if at is None:
        at = _like(lines, max(asked, key=len))
    if at is None:
        return "Nothing in it is like it; read the file again."
    end = min(len(lines), at + min(len(asked), HINT_LINES))
    shown = "\n".join(quoted(line.removesuffix("\r"), 300, keep="\t") for line in text.split("\n")[at:end])
    same = all(asked) and asked == lines[at : at + len(asked)]
    why = "only the white space differs" if same else "the nearest"
    return f"At lines {at + 1}-{end} it has ({why}):\n{shown}"


def _same_lines(lines: list[str], asked: list[str]) -> int | None:
    """Where most of the wanted lines stand at their places, white space aside. Short lines say nothing."""
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if len(line) > 3:
            places.setdefault(line, []).append(number)
    votes = Counter(
        at - offset for offset, line in enumerate(asked) for at in places.get(line, ())[:200] if at >= offset
    )
    return min(votes, key=lambda at: (-votes[at], at)) if votes else None


def _like(lines: list[str], line: str) -> int | None:
    if len(line) < 4:
        return None
    found = difflib.get_close_matches(line[:300], [other[:300] for other in lines[:HINT_COMPARED]], n=1, cutoff=0.6)
    return next(number for number, other in enumerate(lines) if other[:300] == found[0]) if found else None


LARGEST = 10_000_000
PATCH_SCHEMA = given.schema(
    "patch",
    "Change a file: old_text is replaced by new_text. old_text must occur exactly once, so give enough lines around "
    "it, exactly as they are in the file (without the line numbers of read_file).",
    {
        "path": {"type": "string", "description": "The file, relative to the workspace."},
        "old_text": {"type": "string", "description": "What is there now, word for word."},
        "new_text": {"type": "string", "description": "What shall be there instead; empty to take it out."},
        "replace_all": {
            "type": "boolean",
            "description": "Replace every occurrence (default: there must be just one).",
        },
    },
    ["path", "old_text", "new_text"],
)


@dataclass(frozen=True, slots=True)
class _Change:
    space: Workspace
    path: Path
    old: str
    new: str
    everywhere: bool

    def made(self) -> tuple[bytes, bytes, list[int]]:
        """The file before and after, and the lines where something was replaced.

        Bytes that are no UTF-8 go through unchanged. In a file with Windows line ends the texts are given them.
        """
        shown = quoted(self.space.shown(self.path))
        data = whole(self.space, self.path, LARGEST)
        if b"\0" in data[:8_192]:
            raise InputError(f"{shown} is a binary file; it is changed with a command, if at all")
        text, old, new = data.decode("utf-8", "surrogateescape"), self.old, self.new
        if old not in text and "\r\n" in text:
            old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
        places = _places(text, old)
        if not places:
            raise InputError(f"old_text occurs nowhere in {shown}. {nearest(text, self.old)}")
        lines = _lines(text, places)
        if len(places) > 1 and not self.everywhere:
            where = ", ".join(map(str, lines[:10]))
            raise InputError(
                f"old_text occurs {len(places)} times in {shown}, at lines {where}; give more lines around the one "
                "that is meant, or set replace_all"
            )
        return data, text.replace(old, new).encode("utf-8", "surrogateescape"), lines


class Patch:
    """The tool `patch`."""

    name = "patch"
    schema = PATCH_SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission:
        """Leave to write what the path really names. A change that cannot be made asks nobody."""
        change = _change_of(arguments, context)
        shown = change.space.shown(change.path)
        with explained(shown):
            old, new, _ = change.made()
        return Permission("write", shown, diff(old, new, shown))

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        change = _change_of(arguments, context)
        check_leave(context, change.space.shown(change.path))
        return await asyncio.to_thread(_apply, change)


def _change_of(arguments: Mapping[str, Any], context: ToolContext) -> _Change:
    given.check_names(arguments, PATCH_SCHEMA)
    space = Workspace(context.workspace)
    path = space.resolve(given.text(arguments, "path"))
    space.check_writable(path, context.home)
    old, new = given.text(arguments, "old_text", empty=True), given.text(arguments, "new_text", empty=True)
    if not old:
        raise InputError("old_text is empty; to write a whole file use write_file")
    if old == new:
        raise InputError("old_text and new_text are the same; nothing would change")
    for name, value in (("old_text", old), ("new_text", new)):
        given.encoded(value, name)
    return _Change(space, path, old, new, given.flag(arguments, "replace_all"))


def _apply(change: _Change) -> ToolReply:
    shown = change.space.shown(change.path)
    with explained(shown), WRITING:
        _, new, lines = change.made()
        change.space.replace(change.path, new)
    where = ", ".join(map(str, lines[:20])) + (", …" if len(lines) > 20 else "")
    times = "1 replacement at line" if len(lines) == 1 else f"{len(lines)} replacements at lines"
    return ToolReply(f"Changed {quoted(shown)}: {times} {where}.")


def _places(text: str, part: str) -> list[int]:
    """Where a part begins, as often as it would be replaced."""
    found, place = [], text.find(part)
    while place >= 0:
        found.append(place)
        place = text.find(part, place + len(part))
    return found


def _lines(text: str, places: list[int]) -> list[int]:
    lines, line, last = [], 1, 0
    for place in places:
        line += text.count("\n", last, place)
        last = place
        lines.append(line)
    return lines
