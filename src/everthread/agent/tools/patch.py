"""The tool `patch`: replace a text in a file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everthread.agent.tools import arguments as args
from everthread.agent.tools.file_writer import FileWriter
from everthread.agent.workspace import Workspace, quote_name
from everthread.core.tool_schemas import build_schema
from everthread.errors import InputError

MAX_FILE_BYTES = 10_000_000
PATCH_SCHEMA = build_schema(
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


class Patch(FileWriter):
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
        name = quote_name(workspace.make_relative_name(path))
        data = _read_whole(workspace, path)
        text = data.decode("utf-8", "surrogateescape")
        if old not in text and "\r\n" in text:
            old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
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
        line_numbers = ", ".join(map(str, lines[:20])) + (", …" if len(lines) > 20 else "")
        count_phrase = "1 replacement at line"
        if len(lines) > 1:
            count_phrase = f"{len(lines)} replacements at lines"
        new_data = text.replace(old, new).encode("utf-8", "surrogateescape")
        return data, new_data, f"Changed {name}: {count_phrase} {line_numbers}."


def _read_whole(workspace: Workspace, path: Path) -> bytes:
    name = quote_name(workspace.make_relative_name(path))
    if workspace.find_status(path) is None:
        raise InputError(f"{name} does not exist; write_file makes a new file")
    with workspace.open_file(path) as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InputError(
            f"{name} is larger than {MAX_FILE_BYTES:,} bytes; change it with a command"
        )
    if b"\0" in data[:8_192]:
        raise InputError(f"{name} is a binary file; it is changed with a command, if at all")
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
    candidates = [longest] if longest in plain_lines else plain_lines[:MAX_COMPARED_LINES]
    matches = difflib.get_close_matches(longest, candidates, n=1) if len(longest) > 3 else []
    if not matches:
        return "Nothing in it is like it; read the file again."
    start = max(0, plain_lines.index(matches[0]) - wanted_lines.index(longest))
    end = min(len(lines), start + min(len(wanted_lines), MAX_HINT_LINES))
    excerpt = "\n".join(
        quote_name(line.removesuffix("\r"), 300, kept_characters="\t") for line in lines[start:end]
    )
    is_equal = plain_lines[start : start + len(wanted_lines)] == wanted_lines
    reason = "only the white space differs" if is_equal else "the nearest"
    return f"At lines {start + 1}-{end} it has ({reason}):\n{excerpt}"


def _collapse_lines(text: str) -> list[str]:
    return [" ".join(line.split())[:300] for line in text.split("\n")]
