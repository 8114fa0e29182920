"""Tools for the files of the workspace: `read_file`, `write_file`, `patch`; and the diff shown for approval."""

from __future__ import annotations

import asyncio
import difflib
import io
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from everthread.agent.tool_interface import FreeTool, Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.agent.workspace import (
    WRITE_LOCK,
    Workspace,
    explain_os_errors,
    quote_name,
)
from everthread.core.messages import count_noun
from everthread.core.tool_outputs import count_lines
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
READ_SCHEMA = args.build_schema(
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


class ReadFile(FreeTool):
    """The tool `read_file`."""

    name = "read_file"
    schema = READ_SCHEMA

    async def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolReply:
        args.check_names(arguments, READ_SCHEMA)
        path = args.read_text(arguments, "path")
        offset = args.read_int(arguments, "offset", default=0)
        if path.strip().startswith(_OUTPUT_PREFIX):
            limit = args.read_int(
                arguments, "limit", default=MAX_ANSWER_CHARS, minimum=1
            )
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
            await context.conversation.read_output(
                output_id, offset=offset, limit=limit
            )
        )
    except InputError as error:
        raise InputError(f"{quote_name(output_id)} cannot be read: {error}") from error
    except EverthreadError as error:
        return ToolReply(
            f"{quote_name(output_id)} could not be read: {error}", failed=True
        )


def _read_path(
    workspace: Workspace, name: str, first_line: int, limit: int
) -> ToolReply:
    with explain_os_errors(name):
        path = workspace.resolve(name)
        status = workspace.status(path)
        if status is None:
            return ToolReply(_describe_missing(workspace, path, name), failed=True)
        if stat.S_ISDIR(status.st_mode):
            names = "\n".join(map(quote_name, workspace.list_entries(path)))
            if not names:
                return ToolReply(f"[{quote_name(name)} is an empty folder]")
            return ToolReply(
                _format_lines(
                    io.BytesIO(names.encode()),
                    quote_name(name),
                    first_line,
                    limit,
                    with_numbers=False,
                )
            )
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
            total = (
                f"of {number + more_lines:,}"
                if more_lines is not None
                else "and more follow"
            )
            note = f"\n[lines {first_line:,}-{number - 1:,} {total}; go on with offset {number}]"
            break
        entries.append(entry)
        free_chars -= len(entry) + 1
    if not entries:
        return (
            f"[{name} has {skipped:,} lines; there is nothing at line {first_line:,}]"
            if skipped
            else f"[{name} is empty]"
        )
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
    return (
        text
        if size == len(start) and len(text) <= MAX_LINE_CHARS
        else f"{text[:MAX_LINE_CHARS]} [cut: the line has {size:,} bytes]"
    )


def _count_lines(lines: Iterator[tuple[bytes, int]]) -> int | None:
    """Count the lines that follow; None if that would take too long."""
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
    while parent != workspace.root and workspace.status(parent) is None:
        parent = parent.parent
    try:
        names = workspace.list_entries(parent)
    except OSError:
        names = []
    similar_names = difflib.get_close_matches(
        path.name, [name.rstrip("/") for name in names], n=3, cutoff=0.6
    )
    hint = (
        f"; near by name: {', '.join(map(quote_name, similar_names))}"
        if similar_names
        else ""
    )
    folder_name = workspace.relative_name(parent)
    message = f"{quote_name(name)} does not exist{hint}"
    return (
        message
        if similar_names
        else f"{message} (the folder {quote_name(folder_name)} does, with {len(names):,} entries)"
    )


MAX_DIFF_BYTES = 200_000
"""Maximum file size in bytes for a diff; for a larger file only the sizes are shown."""
MAX_DIFF_LINES = 200
"""Maximum lines of a diff."""


def make_diff(old: bytes | None, new: bytes, name: str) -> str:
    """Return a unified diff, or a sentence if it is too large or binary."""
    if old is not None and old == new:
        return "nothing changes"
    if max(len(old or b""), len(new)) > MAX_DIFF_BYTES or b"\0" in (old or b"") + new:
        return f"{len(new):,} bytes" + (
            "" if old is None else " in place of what it holds"
        )
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


class _FileWriter(ABC):
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
        name = workspace.relative_name(path)
        with explain_os_errors(name):
            old, new, _ = self._compute_change(workspace, path, arguments)
        return Permission("write", name, make_diff(old, new, name))

    async def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolReply:
        workspace, path = self._resolve(arguments, context)
        name = workspace.relative_name(path)
        # A link may have been put there meanwhile.
        if context.allowed is not None and context.allowed.target != name:
            raise InputError(
                f"the user allowed to write {quote_name(context.allowed.target)}, but the path now names "
                f"{quote_name(name)}; nothing was written"
            )
        return await asyncio.to_thread(self._write, workspace, path, arguments)

    def _write(
        self, workspace: Workspace, path: Path, arguments: Mapping[str, Any]
    ) -> ToolReply:
        with explain_os_errors(workspace.relative_name(path)), WRITE_LOCK:
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


WRITE_SCHEMA = args.build_schema(
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


class WriteFile(_FileWriter):
    """The tool `write_file`."""

    name = "write_file"
    schema = WRITE_SCHEMA

    def _compute_change(
        self, workspace: Workspace, path: Path, arguments: Mapping[str, Any]
    ) -> tuple[bytes | None, bytes, str]:
        text = args.read_text(arguments, "content", allow_empty=True)
        content = args.encode_text(text, "content")
        status = workspace.status(path)
        old = None
        if status is not None:
            with workspace.open_file(path) as file:
                old = file.read(MAX_DIFF_BYTES + 1)
        size_note = (
            "a new file" if status is None else f"it had {status.st_size:,} bytes"
        )
        name = quote_name(workspace.relative_name(path))
        lines = count_lines(text)
        return (
            old,
            content,
            f"Wrote {name}: {count_noun(lines, 'line')}, {count_noun(len(content), 'byte')} ({size_note}).",
        )


MAX_FILE_BYTES = 10_000_000
PATCH_SCHEMA = args.build_schema(
    "patch",
    "Change a file: old_text is replaced by new_text. old_text must occur exactly once, so give enough lines around "
    "it, exactly as they are in the file (without the line numbers of read_file).",
    {
        "path": {
            "type": "string",
            "description": "The file, relative to the workspace.",
        },
        "old_text": {
            "type": "string",
            "description": "What is there now, word for word.",
        },
        "new_text": {
            "type": "string",
            "description": "What shall be there instead; empty to take it out.",
        },
        "replace_all": {
            "type": "boolean",
            "description": "Replace every occurrence (default: there must be just one).",
        },
    },
    ["path", "old_text", "new_text"],
)


class Patch(_FileWriter):
    """The tool `patch`."""

    name = "patch"
    schema = PATCH_SCHEMA

    def _compute_change(
        self, workspace: Workspace, path: Path, arguments: Mapping[str, Any]
    ) -> tuple[bytes | None, bytes, str]:
        """Replace the text. Bytes that are not UTF-8 stay; Windows line ends are used if the file has them."""
        requested_text = old = args.read_text(arguments, "old_text", allow_empty=True)
        new = args.read_text(arguments, "new_text", allow_empty=True)
        if not old:
            raise InputError("old_text is empty; to write a whole file use write_file")
        if old == new:
            raise InputError("old_text and new_text are the same; nothing would change")
        args.encode_text(old, "old_text")
        args.encode_text(new, "new_text")
        replace_all = args.read_flag(arguments, "replace_all")
        name = quote_name(workspace.relative_name(path))
        data = _read_whole(workspace, path)
        text = data.decode("utf-8", "surrogateescape")
        if old not in text and "\r\n" in text:
            old, new = (
                part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new)
            )
        lines = _find_lines(text, old)
        if not lines:
            raise InputError(
                f"old_text occurs nowhere in {name}. {describe_nearest(text, requested_text)}"
            )
        if len(lines) > 1 and not replace_all:
            line_numbers = ", ".join(map(str, lines[:10]))
            raise InputError(
                f"old_text occurs {len(lines)} times in {name}, at lines {line_numbers}; "
                "give more lines around the one that is meant, or set replace_all"
            )
        line_numbers = ", ".join(map(str, lines[:20])) + (
            ", …" if len(lines) > 20 else ""
        )
        count_phrase = (
            "1 replacement at line"
            if len(lines) == 1
            else f"{len(lines)} replacements at lines"
        )
        new_data = text.replace(old, new).encode("utf-8", "surrogateescape")
        return data, new_data, f"Changed {name}: {count_phrase} {line_numbers}."


def _read_whole(workspace: Workspace, path: Path) -> bytes:
    name = quote_name(workspace.relative_name(path))
    if workspace.status(path) is None:
        raise InputError(f"{name} does not exist; write_file makes a new file")
    with workspace.open_file(path) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InputError(
            f"{name} is larger than {MAX_FILE_BYTES:,} bytes; change it with a command"
        )
    if b"\0" in data[:8_192]:
        raise InputError(
            f"{name} is a binary file; it is changed with a command, if at all"
        )
    return data


def _find_lines(text: str, part: str) -> list[int]:
    """Return the line number of each occurrence that would be replaced."""
    lines = []
    line = 1
    previous_position = 0
    position = text.find(part)
    while position >= 0:
        line += text.count("\n", previous_position, position)
        lines.append(line)
        previous_position = position
        position = text.find(part, position + len(part))
    return lines


MAX_COMPARED_LINES = 1_000
"""Maximum lines to compare letter by letter."""
MAX_HINT_LINES = 12


def describe_nearest(text: str, wanted_text: str) -> str:
    """Describe the place in `text` that is most similar to `wanted_text`.

    The place is found by the longest wanted line; white space is ignored.
    """
    lines = text.split("\n")
    plain_lines = _collapse_lines(text)
    wanted_lines = _collapse_lines(wanted_text)
    longest = max(wanted_lines, key=len)
    candidates = (
        [longest] if longest in plain_lines else plain_lines[:MAX_COMPARED_LINES]
    )
    matches = (
        difflib.get_close_matches(longest, candidates, n=1) if len(longest) > 3 else []
    )
    if not matches:
        return "Nothing in it is like it; read the file again."
    start = max(0, plain_lines.index(matches[0]) - wanted_lines.index(longest))
    end = min(len(lines), start + min(len(wanted_lines), MAX_HINT_LINES))
    excerpt = "\n".join(
        quote_name(line.removesuffix("\r"), 300, kept_characters="\t")
        for line in lines[start:end]
    )
    reason = (
        "only the white space differs"
        if plain_lines[start : start + len(wanted_lines)] == wanted_lines
        else "the nearest"
    )
    return f"At lines {start + 1}-{end} it has ({reason}):\n{excerpt}"


def _collapse_lines(text: str) -> list[str]:
    return [" ".join(line.split())[:300] for line in text.split("\n")]
