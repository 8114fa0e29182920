"""Replace a part of a file, given word for word; where it is not found, the nearest place is told."""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everthread.agent.base import Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as given
from everthread.agent.tools.diff import check_leave, diff, whole
from everthread.agent.workspace import WRITING, Workspace, explained, quoted
from everthread.errors import InputError

COMPARED = 1_000
"""Lines compared letter by letter; more would take too long for a hint."""
SHOWN = 12


def nearest(text: str, wanted: str) -> str:
    """A sentence that shows the lines most like those wanted."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    asked = [" ".join(line.split()) for line in wanted.split("\n")]
    at = _same_lines(lines, asked)
    if at is None:
        at = _like(lines, max(asked, key=len))
    if at is None:
        return "Nothing in it is like it; read the file again."
    end = min(len(lines), at + min(len(asked), SHOWN))
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
    found = difflib.get_close_matches(line[:300], [other[:300] for other in lines[:COMPARED]], n=1, cutoff=0.6)
    return next(number for number, other in enumerate(lines) if other[:300] == found[0]) if found else None


LARGEST = 10_000_000
SCHEMA = given.schema(
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
    schema = SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission:
        """Leave to write what the path really names. A change that cannot be made asks nobody."""
        change = _read(arguments, context)
        shown = change.space.shown(change.path)
        with explained(shown):
            old, new, _ = change.made()
        return Permission("write", shown, diff(old, new, shown))

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        change = _read(arguments, context)
        check_leave(context, change.space.shown(change.path))
        return await asyncio.to_thread(_apply, change)


def _read(arguments: Mapping[str, Any], context: ToolContext) -> _Change:
    given.check_names(arguments, SCHEMA)
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
