"""What a change does to a file, for the person who allows it."""

from __future__ import annotations

import difflib
from itertools import islice
from pathlib import Path

from everthread.agent.base import ToolContext
from everthread.agent.workspace import Workspace, quoted
from everthread.errors import InputError

COMPARED = 200_000
"""Bytes; of a larger file only sizes are told."""
SHOWN = 200
"""Lines of a difference."""


def before(space: Workspace, path: Path) -> bytes | None:
    """What a file holds; None where there is none."""
    status = space.status(path)
    if status is None:
        return None
    with space.reading(path) as file:
        return file.read(COMPARED + 1)


def diff(old: bytes | None, new: bytes, name: str) -> str:
    """The difference as a unified diff, or in words where it is too large or no text."""
    if old is not None and old == new:
        return "nothing changes"
    if max(len(old or b""), len(new)) > COMPARED or b"\0" in (old or b"") + new:
        return f"{len(new):,} bytes" + ("" if old is None else " in place of what it holds")
    left, right = ((text or b"").decode("utf-8", "replace").splitlines() for text in (old, new))
    named = quoted(name)
    lines = list(islice(difflib.unified_diff(left, right, named, named, lineterm="", n=2), SHOWN + 1))
    if len(lines) > SHOWN:
        lines[SHOWN:] = ["[more lines follow]"]
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
