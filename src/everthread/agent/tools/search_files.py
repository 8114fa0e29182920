"""Find files by name, and lines by what is in them."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from everthread.agent import processes
from everthread.agent.base import FreeTool, ToolContext, ToolReply
from everthread.agent.search import FileQuery, MatchPage
from everthread.agent.tools import arguments as given
from everthread.agent.workspace import Workspace, explained, quoted
from everthread.errors import InputError

LIMIT, MOST = 100, 500
SECONDS = 20
CHARS = 50_000
_PACKAGES = Path(__file__).parents[3]
"""Where the search process finds this package."""
_OPTIONS = ("-P", "-s", "-W", "ignore", "-X", "utf8")
SCHEMA = given.schema(
    "search_files",
    "Search the workspace: lines that match a regular expression, or files by name, or both (lines in files of that "
    "name). Files that .gitignore names, binary files and files over 10 MB are passed over.",
    {
        "pattern": {"type": "string", "description": "A regular expression (Python's), searched line by line."},
        "name": {
            "type": "string",
            "description": "File names, such as *.py; with a slash, paths from the folder searched: src/**/test_*.py.",
        },
        "path": {"type": "string", "description": "The folder or file to search (default: the whole workspace)."},
        "ignore_case": {"type": "boolean", "description": "Upper and lower case are the same (default: they are not)."},
        "offset": {"type": "integer", "minimum": 0, "description": "How many matches to pass over (default 0)."},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST,
            "description": f"How many matches to show at most (default {LIMIT}).",
        },
    },
    [],
)


class SearchFiles(FreeTool):
    """The tool `search_files`."""

    name = "search_files"
    schema = SCHEMA

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        query = _query(arguments, Workspace(context.workspace), self._seconds)
        argv = [sys.executable, *_OPTIONS, "-m", "everthread.agent.search", json.dumps(asdict(query))]
        environment = {"PYTHONPATH": str(_PACKAGES), "PYTHONDONTWRITEBYTECODE": "1"}
        done = await processes.run(argv, folder=Path("/"), environment=environment, seconds=self._seconds * 1.25)
        if done.exit_code is None:
            said = "The search did not come to an end: the pattern takes too long on some line. Make it simpler."
            return ToolReply(said, failed=True)
        if done.exit_code != 0:
            return ToolReply(f"The search failed: {done.output.strip()[-500:]}", failed=True)
        return ToolReply(_told(query, MatchPage(**json.loads(done.output))))


def _query(arguments: Mapping[str, Any], space: Workspace, seconds: float) -> FileQuery:
    given.check_names(arguments, SCHEMA)
    pattern = given.text(arguments, "pattern", default="", longest=2_000, empty=True)
    name = given.text(arguments, "name", default="", longest=1_000, empty=True)
    if not pattern and not name:
        raise InputError("give a pattern (what is in the file), a name (what it is called), or both")
    given.encoded(pattern, "pattern")
    given.encoded(name, "name")
    ignore_case = given.flag(arguments, "ignore_case")
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"the pattern {quoted(pattern)!r} is no regular expression: {error}") from error
    named = given.text(arguments, "path", default=".")
    with explained(named):
        path = space.resolve(named)
        if space.status(path) is None:
            raise InputError(f"{quoted(named)} does not exist, so nothing was searched")
    start = "" if path == space.root else space.shown(path)
    return FileQuery(
        root=os.fspath(space.root),
        start=start,
        pattern=pattern or None,
        name=name.removeprefix("./") or None,
        ignore_case=ignore_case,
        offset=given.number(arguments, "offset", default=0),
        limit=given.number(arguments, "limit", default=LIMIT, least=1, most=MOST),
        seconds=seconds,
    )


def _told(query: FileQuery, found: MatchPage) -> str:
    lines, room = [], CHARS
    for match in found.matches:
        path, *rest = (str(part) for part in match)
        line = ":".join([quoted(path, 400), *(quoted(part, 400, keep="\t") for part in rest)])
        room -= len(line) + 1
        if room < 0:
            break
        lines.append(line)
    return "\n".join([_first(query, found), *lines, *(f"[{note}]" for note in _notes(query, found, len(lines)))])


def _first(query: FileQuery, found: MatchPage) -> str:
    one, many = ("file", "files") if query.pattern is None else ("match", "matches")
    if not found.total:
        return f"no {many}"
    total = f"{'more than ' if found.ended else ''}{found.total:,} {one if found.total == 1 else many}"
    return total if query.pattern is None else f"{total} in {found.files:,} file{'' if found.files == 1 else 's'}"


def _notes(query: FileQuery, found: MatchPage, shown: int) -> list[str]:
    notes = [f"the search ended early: {found.ended}"] if found.ended else []
    if found.skipped:
        passed = "1 file or folder was" if found.skipped == 1 else f"{found.skipped:,} files or folders were"
        notes.append(f"{passed} passed over: too large, or not readable")
    end = query.offset + shown
    if end < found.total and shown:
        notes.append(f"shown are {query.offset + 1:,}-{end:,}; go on with offset {end}")
    elif found.total and not shown:
        notes.append(f"there is nothing at offset {query.offset:,}")
    return notes
