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
from everthread.agent.tools import arguments as args
from everthread.agent.workspace import Workspace, explain_os_errors, quote_name
from everthread.errors import InputError

DEFAULT_MATCHES, MAX_MATCHES = 100, 500
SEARCH_SECONDS = 20
MAX_RESULT_CHARS = 50_000
_PACKAGES = Path(__file__).parents[3]
"""Where the search process finds this package."""
_OPTIONS = ("-P", "-s", "-W", "ignore", "-X", "utf8")
SCHEMA = args.build_schema(
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
            "maximum": MAX_MATCHES,
            "description": f"How many matches to show at most (default {DEFAULT_MATCHES}).",
        },
    },
    [],
)


class SearchFiles(FreeTool):
    """The tool `search_files`."""

    name = "search_files"
    schema = SCHEMA

    def __init__(self, seconds: float = SEARCH_SECONDS) -> None:
        self._seconds = seconds

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        query = _read_query(arguments, Workspace(context.workspace), self._seconds)
        argv = [sys.executable, *_OPTIONS, "-m", "everthread.agent.search", json.dumps(asdict(query))]
        environment = {"PYTHONPATH": str(_PACKAGES), "PYTHONDONTWRITEBYTECODE": "1"}
        ended = await processes.run(argv, folder=Path("/"), environment=environment, seconds=self._seconds * 1.25)
        if ended.exit_code is None:
            message = "The search did not come to an end: the pattern takes too long on some line. Make it simpler."
            return ToolReply(message, failed=True)
        if ended.exit_code != 0:
            return ToolReply(f"The search failed: {ended.output.strip()[-500:]}", failed=True)
        return ToolReply(_format_page(query, MatchPage(**json.loads(ended.output))))


def _read_query(arguments: Mapping[str, Any], space: Workspace, seconds: float) -> FileQuery:
    args.check_names(arguments, SCHEMA)
    pattern = args.read_text(arguments, "pattern", default="", max_chars=2_000, allow_empty=True)
    name = args.read_text(arguments, "name", default="", max_chars=1_000, allow_empty=True)
    if not pattern and not name:
        raise InputError("give a pattern (what is in the file), a name (what it is called), or both")
    args.encode_text(pattern, "pattern")
    args.encode_text(name, "name")
    ignore_case = args.read_flag(arguments, "ignore_case")
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"the pattern {quote_name(pattern)!r} is no regular expression: {error}") from error
    folder = args.read_text(arguments, "path", default=".")
    with explain_os_errors(folder):
        path = space.resolve(folder)
        if space.status(path) is None:
            raise InputError(f"{quote_name(folder)} does not exist, so nothing was searched")
    start = "" if path == space.root else space.relative(path)
    return FileQuery(
        root=os.fspath(space.root),
        start=start,
        pattern=pattern or None,
        name=name.removeprefix("./") or None,
        ignore_case=ignore_case,
        offset=args.read_int(arguments, "offset", default=0),
        limit=args.read_int(arguments, "limit", default=DEFAULT_MATCHES, minimum=1, maximum=MAX_MATCHES),
        seconds=seconds,
    )


def _format_page(query: FileQuery, page: MatchPage) -> str:
    lines, room = [], MAX_RESULT_CHARS
    for match in page.matches:
        path, *rest = (str(part) for part in match)
        line = ":".join([quote_name(path, 400), *(quote_name(part, 400, keep="\t") for part in rest)])
        room -= len(line) + 1
        if room < 0:
            break
        lines.append(line)
    return "\n".join([_describe_total(query, page), *lines, *(f"[{note}]" for note in _notes(query, page, len(lines)))])


def _describe_total(query: FileQuery, page: MatchPage) -> str:
    one, many = ("file", "files") if query.pattern is None else ("match", "matches")
    if not page.total:
        return f"no {many}"
    total = f"{'more than ' if page.ended else ''}{page.total:,} {one if page.total == 1 else many}"
    return total if query.pattern is None else f"{total} in {page.files:,} file{'' if page.files == 1 else 's'}"


def _notes(query: FileQuery, page: MatchPage, count: int) -> list[str]:
    notes = [f"the search ended early: {page.ended}"] if page.ended else []
    if page.skipped:
        skipped = "1 file or folder was" if page.skipped == 1 else f"{page.skipped:,} files or folders were"
        notes.append(f"{skipped} passed over: too large, or not readable")
    end = query.offset + count
    if end < page.total and count:
        notes.append(f"shown are {query.offset + 1:,}-{end:,}; go on with offset {end}")
    elif page.total and not count:
        notes.append(f"there is nothing at offset {query.offset:,}")
    return notes
