"""Tools for the files of the workspace: `read_file`, `write_file`, `patch`; and the diff shown for approval."""

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
from everthread.agent.tools import arguments as args
from everthread.agent.workspace import WRITING, Workspace, explain_os_errors, quote_name
from everthread.core.outputs import line_count
from everthread.errors import EverthreadError, InputError

MAX_ANSWER_CHARS = 50_000
"""Characters of one answer: fewer than would be stored outside the conversation."""
LINE = 5_000
"""Characters shown of one line."""
DEFAULT_LINES = 2_000
COUNTED = 20_000_000
"""Bytes; in a larger file the lines after the shown part are not counted."""
_OUTPUT = "output:"
_BLOCK = 1 << 20
READ_SCHEMA = args.build_schema(
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
            "description": f"How many lines at most (default {DEFAULT_LINES:,}); "
            f"at most {MAX_ANSWER_CHARS:,} characters come at once.",
        },
    },
    ["path"],
)


class ReadFile(FreeTool):
    """The tool `read_file`."""

    name = "read_file"
    schema = READ_SCHEMA

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        args.check_names(arguments, READ_SCHEMA)
        path = args.read_text(arguments, "path")
        offset = args.read_int(arguments, "offset", default=0)
        if path.strip().startswith(_OUTPUT):
            limit = args.read_int(arguments, "limit", default=MAX_ANSWER_CHARS, minimum=1)
            return await _read_stored_output(context, path.strip(), offset, limit)
        limit = args.read_int(arguments, "limit", default=DEFAULT_LINES, minimum=1)
        return await asyncio.to_thread(_read_path, Workspace(context.workspace), path, max(1, offset), limit)


async def _read_stored_output(context: ToolContext, cited: str, offset: int, limit: int) -> ToolReply:
    try:
        return ToolReply(await context.conversation.read_output(cited, offset=offset, limit=limit))
    except InputError as error:
        raise InputError(f"{quote_name(cited)} cannot be read: {error}") from error
    except EverthreadError as error:
        return ToolReply(f"{quote_name(cited)} could not be read: {error}", failed=True)


def _read_path(space: Workspace, name: str, first: int, limit: int) -> ToolReply:
    with explain_os_errors(name):
        path = space.resolve(name)
        status = space.status(path)
        if status is None:
            return ToolReply(_describe_missing(space, path, name), failed=True)
        if stat.S_ISDIR(status.st_mode):
            names = "\n".join(map(quote_name, space.entries(path)))
            if not names:
                return ToolReply(f"[{quote_name(name)} is an empty folder]")
            return ToolReply(_format_lines(io.BytesIO(names.encode()), quote_name(name), first, limit, numbered=False))
        with space.open_file(path) as file:
            if b"\0" in file.peek(8_192)[:8_192]:  # type: ignore[attr-defined]  # a buffered reader has it
                message = f"{quote_name(name)} is a binary file of {status.st_size:,} bytes; it cannot be read as text"
                return ToolReply(message, failed=True)
            return ToolReply(_format_lines(file, quote_name(name), first, limit))


def _format_lines(file: BinaryIO, name: str, first: int, limit: int, *, numbered: bool = True) -> str:
    """Some lines of a file, and a note of what else it has."""
    skipped = _skip_lines(file, first - 1)
    if skipped < first - 1 or (chunk := file.readline(LINE * 4 + 1)) == b"":
        return (
            f"[{name} has {skipped:,} lines; there is nothing at line {first:,}]" if skipped else f"[{name} is empty]"
        )
    entries: list[str] = []
    room, number = MAX_ANSWER_CHARS, first
    while chunk:
        line = _read_line(file, chunk)
        entry = f"{number}\t{line}" if numbered else line
        if len(entries) == limit or len(entry) >= room:
            break
        entries.append(entry)
        room -= len(entry) + 1
        number += 1
        chunk = file.readline(LINE * 4 + 1)
    if not chunk:
        rest = "" if first == 1 else f"\n[lines {first:,}-{number - 1:,}, the last of {name}]"
    else:
        more = _count_lines(file)
        total = f"of {number + more:,}" if more is not None else "and more follow"
        rest = f"\n[lines {first:,}-{number - 1:,} {total}; go on with offset {number}]"
    return "\n".join(entries) + rest


def _read_line(file: BinaryIO, chunk: bytes) -> str:
    """Read the rest of the line that begins with the chunk; cut it where it is too long."""
    size, last = len(chunk), chunk
    while last and not last.endswith(b"\n"):
        last = file.readline(_BLOCK)
        size += len(last)
    text = chunk.decode("utf-8", "replace").rstrip("\r\n")
    if size == len(chunk) and len(text) <= LINE:
        return text
    return f"{text[:LINE]} [cut: the line has {size:,} bytes]"


def _skip_lines(file: BinaryIO, lines: int) -> int:
    """Skip so many lines; return how many there were."""
    count = 0
    while count < lines and (chunk := file.readline(_BLOCK)):
        if chunk.endswith(b"\n"):
            count += 1
        elif not (following := file.readline(_BLOCK)):
            return count + 1
        else:
            count += following.endswith(b"\n")
    return count


def _count_lines(file: BinaryIO) -> int | None:
    """Count the lines that follow; None where that would take too long."""
    read = lines = 0
    last = b"\n"
    while chunk := file.read(_BLOCK):
        read += len(chunk)
        if read > COUNTED:
            return None
        lines += chunk.count(b"\n")
        last = chunk
    return lines + (not last.endswith(b"\n"))


def _describe_missing(space: Workspace, path: Path, name: str) -> str:
    """The message for a missing file, with names like it."""
    parent = path.parent
    while parent != space.root and space.status(parent) is None:
        parent = parent.parent
    try:
        names = space.entries(parent)
    except OSError:
        names = []
    near = difflib.get_close_matches(path.name, [name.rstrip("/") for name in names], n=3, cutoff=0.6)
    hint = f"; near by name: {', '.join(map(quote_name, near))}" if near else ""
    where = space.relative(parent)
    missing = f"{quote_name(name)} does not exist{hint}"
    return missing if near else f"{missing} (the folder {quote_name(where)} does, with {len(names):,} entries)"


DIFF_BYTES = 200_000
"""Bytes; for a larger file only the sizes are shown."""
DIFF_LINES = 200
"""Most lines of a diff."""


def read_before(space: Workspace, path: Path) -> bytes | None:
    """The content of a file, up to the limit of a diff; None where there is no file."""
    status = space.status(path)
    if status is None:
        return None
    with space.open_file(path) as file:
        return file.read(DIFF_BYTES + 1)


def diff(old: bytes | None, new: bytes, name: str) -> str:
    """A unified diff, or a sentence where it is too large or binary."""
    if old is not None and old == new:
        return "nothing changes"
    if max(len(old or b""), len(new)) > DIFF_BYTES or b"\0" in (old or b"") + new:
        return f"{len(new):,} bytes" + ("" if old is None else " in place of what it holds")
    old_lines, new_lines = ((text or b"").decode("utf-8", "replace").splitlines() for text in (old, new))
    label = quote_name(name)
    lines = list(islice(difflib.unified_diff(old_lines, new_lines, label, label, lineterm="", n=2), DIFF_LINES + 1))
    if len(lines) > DIFF_LINES:
        lines[DIFF_LINES:] = ["[more lines follow]"]
    return "\n".join(lines)


def check_permission(context: ToolContext, name: str) -> None:
    """Check that the path still names the approved file: a link may have been put there meanwhile."""
    if context.allowed is not None and context.allowed.what != name:
        raise InputError(
            f"the user allowed to write {quote_name(context.allowed.what)}, but the path now names "
            f"{quote_name(name)}; nothing was written"
        )


def read_whole(space: Workspace, path: Path, limit: int) -> bytes:
    """The whole content of a file. `InputError` where it is over the limit."""
    status = space.status(path)
    if status is None:
        raise InputError(f"{quote_name(space.relative(path))} does not exist; write_file makes a new file")
    with space.open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"{quote_name(space.relative(path))} is larger than {limit:,} bytes; change it with a command")
    return data


WRITE_SCHEMA = args.build_schema(
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
        """Permission to write what the path really names, with a diff for the user."""
        space, path, content = _target(arguments, context)
        name = space.relative(path)
        with explain_os_errors(name):
            return Permission("write", name, diff(read_before(space, path), content, name))

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        space, path, content = _target(arguments, context)
        check_permission(context, space.relative(path))
        return await asyncio.to_thread(_write, space, path, content)


def _target(arguments: Mapping[str, Any], context: ToolContext) -> tuple[Workspace, Path, bytes]:
    args.check_names(arguments, WRITE_SCHEMA)
    space = Workspace(context.workspace)
    path = space.resolve(args.read_text(arguments, "path"))
    space.check_writable(path, context.home)
    return space, path, args.encode_text(args.read_text(arguments, "content", allow_empty=True), "content")


def _write(space: Workspace, path: Path, content: bytes) -> ToolReply:
    name = space.relative(path)
    with explain_os_errors(name), WRITING:
        old = space.status(path)
        space.replace(path, content)
    lines = line_count(content.decode("utf-8"))
    previous = "a new file" if old is None else f"it had {old.st_size:,} bytes"
    return ToolReply(f"Wrote {quote_name(name)}: {lines:,} lines, {len(content):,} bytes ({previous}).")


HINT_COMPARED = 1_000
"""Most lines compared letter by letter."""
HINT_LINES = 12


def describe_nearest(text: str, wanted_text: str) -> str:
    """A message that shows the lines most like the wanted ones."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    wanted_lines = [" ".join(line.split()) for line in wanted_text.split("\n")]
    at = _find_same_lines(lines, wanted_lines)
    if at is None:
        at = _find_similar_line(lines, max(wanted_lines, key=len))
    if at is None:
        return "Nothing in it is like it; read the file again."
    end = min(len(lines), at + min(len(wanted_lines), HINT_LINES))
    excerpt = "\n".join(quote_name(line.removesuffix("\r"), 300, keep="\t") for line in text.split("\n")[at:end])
    same = all(wanted_lines) and wanted_lines == lines[at : at + len(wanted_lines)]
    why = "only the white space differs" if same else "the nearest"
    return f"At lines {at + 1}-{end} it has ({why}):\n{excerpt}"


def _find_same_lines(lines: list[str], wanted_lines: list[str]) -> int | None:
    """The position where most of the wanted lines match, white space aside. Short lines do not count."""
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if len(line) > 3:
            places.setdefault(line, []).append(number)
    votes = Counter(
        at - offset for offset, line in enumerate(wanted_lines) for at in places.get(line, ())[:200] if at >= offset
    )
    return min(votes, key=lambda at: (-votes[at], at)) if votes else None


def _find_similar_line(lines: list[str], line: str) -> int | None:
    if len(line) < 4:
        return None
    matches = difflib.get_close_matches(line[:300], [other[:300] for other in lines[:HINT_COMPARED]], n=1, cutoff=0.6)
    return next(number for number, other in enumerate(lines) if other[:300] == matches[0]) if matches else None


LARGEST = 10_000_000
PATCH_SCHEMA = args.build_schema(
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
class _TextChange:
    space: Workspace
    path: Path
    old: str
    new: str
    everywhere: bool

    def compute(self) -> tuple[bytes, bytes, list[int]]:
        """The file before and after, and the numbers of the changed lines.

        Bytes that are not UTF-8 stay unchanged. In a file with Windows line ends the texts get them too.
        """
        name = quote_name(self.space.relative(self.path))
        data = read_whole(self.space, self.path, LARGEST)
        if b"\0" in data[:8_192]:
            raise InputError(f"{name} is a binary file; it is changed with a command, if at all")
        text, old, new = data.decode("utf-8", "surrogateescape"), self.old, self.new
        if old not in text and "\r\n" in text:
            old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
        positions = _find_positions(text, old)
        if not positions:
            raise InputError(f"old_text occurs nowhere in {name}. {describe_nearest(text, self.old)}")
        lines = _line_numbers(text, positions)
        if len(positions) > 1 and not self.everywhere:
            where = ", ".join(map(str, lines[:10]))
            raise InputError(
                f"old_text occurs {len(positions)} times in {name}, at lines {where}; give more lines around the one "
                "that is meant, or set replace_all"
            )
        return data, text.replace(old, new).encode("utf-8", "surrogateescape"), lines


class Patch:
    """The tool `patch`."""

    name = "patch"
    schema = PATCH_SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission:
        """Permission to write what the path really names. An impossible change fails before anyone is asked."""
        change = _read_change(arguments, context)
        name = change.space.relative(change.path)
        with explain_os_errors(name):
            old, new, _ = change.compute()
        return Permission("write", name, diff(old, new, name))

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        change = _read_change(arguments, context)
        check_permission(context, change.space.relative(change.path))
        return await asyncio.to_thread(_apply, change)


def _read_change(arguments: Mapping[str, Any], context: ToolContext) -> _TextChange:
    args.check_names(arguments, PATCH_SCHEMA)
    space = Workspace(context.workspace)
    path = space.resolve(args.read_text(arguments, "path"))
    space.check_writable(path, context.home)
    old = args.read_text(arguments, "old_text", allow_empty=True)
    new = args.read_text(arguments, "new_text", allow_empty=True)
    if not old:
        raise InputError("old_text is empty; to write a whole file use write_file")
    if old == new:
        raise InputError("old_text and new_text are the same; nothing would change")
    for name, value in (("old_text", old), ("new_text", new)):
        args.encode_text(value, name)
    return _TextChange(space, path, old, new, args.read_flag(arguments, "replace_all"))


def _apply(change: _TextChange) -> ToolReply:
    name = change.space.relative(change.path)
    with explain_os_errors(name), WRITING:
        _, new, lines = change.compute()
        change.space.replace(change.path, new)
    where = ", ".join(map(str, lines[:20])) + (", …" if len(lines) > 20 else "")
    times = "1 replacement at line" if len(lines) == 1 else f"{len(lines)} replacements at lines"
    return ToolReply(f"Changed {quote_name(name)}: {times} {where}.")


def _find_positions(text: str, part: str) -> list[int]:
    """The positions of a part, as often as it would be replaced."""
    positions, position = [], text.find(part)
    while position >= 0:
        positions.append(position)
        position = text.find(part, position + len(part))
    return positions


def _line_numbers(text: str, positions: list[int]) -> list[int]:
    lines, line, last = [], 1, 0
    for position in positions:
        line += text.count("\n", last, position)
        last = position
        lines.append(line)
    return lines
