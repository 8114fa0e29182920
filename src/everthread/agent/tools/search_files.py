"""Find files by name, and lines by their text.

Paths in .gitignore files, folders of tools, links, pipes and devices are skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regex
from pathspec import GitIgnoreSpec

from everthread.agent.tool_interface import PreapprovedTool, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.agent.workspace import Workspace, explain_os_errors, match_path, quote_name
from everthread.core.text import count_noun
from everthread.core.tool_schemas import build_schema
from everthread.errors import InputError
from everthread.thread.lookup.pattern_matcher import compile_pattern

DEFAULT_MATCHES = 100
MAX_MATCHES = 500
MAX_SEARCH_SECONDS = 20.0
MAX_RESULT_CHARS = 50_000
MAX_FILE_BYTES = 10_000_000
"""Maximum size of a searched file."""
MAX_COUNTED_MATCHES = 5_000
"""Matches after which a search ends."""
MAX_LINE_CHARS = 300
"""Characters shown of a line."""
TOOL_FOLDERS = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "node_modules",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
    }
)
_MAX_DEPTH = 100
_IGNORE_FILE_NAME = ".gitignore"
_MAX_RULES_BYTES = 200_000
_MAX_RULES = 2_000
_MAX_RULE_CHARS = 500
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
SEARCH_SCHEMA = build_schema(
    "search_files",
    "Search the workspace: lines that match a regular expression, or files by name, or both (lines in files of that "
    "name). Files that .gitignore names, binary files and files over 10 MB are passed over.",
    {
        "pattern": {
            "type": "string",
            "description": "A regular expression (Python's), searched line by line.",
        },
        "name": {
            "type": "string",
            "description": "File names, such as *.py; with a slash, paths from the folder searched: src/**/test_*.py.",
        },
        "path": {
            "type": "string",
            "description": "The folder or file to search (default: the whole workspace).",
        },
        "ignore_case": {
            "type": "boolean",
            "description": "Upper and lower case are the same (default: they are not).",
        },
        "offset": {
            "type": "integer",
            "minimum": 0,
            "description": "How many matches to pass over (default 0).",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_MATCHES,
            "description": f"How many matches to show at most (default {DEFAULT_MATCHES}).",
        },
    },
    [],
)


class SearchFiles(PreapprovedTool):
    """The tool `search_files`."""

    name = "search_files"
    schema = SEARCH_SCHEMA

    def __init__(self, seconds: float = MAX_SEARCH_SECONDS) -> None:
        self._seconds = seconds

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        search = _read_search(arguments, Workspace(context.workspace), self._seconds)
        with explain_os_errors(search.workspace.make_relative_name(search.start)):
            try:
                return ToolReply(await asyncio.to_thread(search.run))
            except TimeoutError:
                message = "The search did not come to an end: the pattern takes too long on some line. Make it simpler."
                return ToolReply(message, failed=True)
            finally:
                search.deadline = 0.0  # the thread of a cancelled call ends with the line it is at


def _read_search(arguments: Mapping[str, Any], workspace: Workspace, seconds: float) -> _Search:
    args.check_names(arguments, SEARCH_SCHEMA)
    pattern = args.read_text(arguments, "pattern", default="", max_chars=2_000, allow_empty=True)
    name = args.read_text(arguments, "name", default="", max_chars=1_000, allow_empty=True)
    if not pattern and not name:
        raise InputError(
            "give a pattern (what is in the file), a name (what it is called), or both"
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(
            f"the pattern {quote_name(pattern)!r} is no regular expression: {error}"
        ) from error
    flags = regex.IGNORECASE if args.read_flag(arguments, "ignore_case") else 0
    folder = args.read_text(arguments, "path", default=".")
    with explain_os_errors(folder):
        start = workspace.resolve(folder)
        if workspace.find_status(start) is None:
            raise InputError(f"{quote_name(folder)} does not exist, so nothing was searched")
    return _Search(
        workspace,
        start,
        pattern=compile_pattern(pattern, flags) if pattern else None,
        name=name.removeprefix("./"),
        offset=args.read_int(arguments, "offset", default=0),
        limit=args.read_int(
            arguments, "limit", default=DEFAULT_MATCHES, minimum=1, maximum=MAX_MATCHES
        ),
        timeout_seconds=seconds,
    )


@dataclass(slots=True)
class _Search:
    """One search, run in a thread. `regex` releases the interpreter lock and limits the time of a pattern."""

    workspace: Workspace
    start: Path
    """The folder or file to search, resolved."""
    pattern: regex.Pattern[str] | None
    name: str
    offset: int
    limit: int
    timeout_seconds: float
    """Time limit of the whole search and of one line, because a pattern may take very long."""
    deadline: float = field(init=False)
    shown_matches: list[str] = field(default_factory=list)
    match_count: int = 0
    matched_files: int = 0
    skipped_count: int = 0
    """Files and folders that are too large or not readable."""
    end_reason: str = ""
    """Why the search ended early."""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.timeout_seconds

    def run(self) -> str:
        status = self.workspace.find_status(self.start)
        if status is not None and stat.S_ISDIR(status.st_mode):
            for path, folder in self._walk_files():
                if self._name_matches(path):
                    self._search_file(path, folder)
                if time.monotonic() > self.deadline:
                    self.end_reason = "it took too long; search in a smaller folder"
                if self.end_reason:
                    break
        else:
            with self.workspace.open_folder(self.start.parent) as folder:
                self._search_file(self.workspace.make_relative_name(self.start), folder)
        return self._format_result()

    def _walk_files(self) -> Iterator[tuple[str, int]]:
        """Yield every file that is not ignored: its path and its open folder. `fwalk` follows no link."""
        ignore_files = self._read_outer_ignores()
        start = self.workspace.make_relative_name(self.start)
        with self.workspace.open_folder(self.start) as top_folder_fd:
            for subpath, folders, names, folder in os.fwalk(
                ".", dir_fd=top_folder_fd, onerror=self._count_unreadable
            ):
                folder_path = os.path.normpath(f"{start}/{subpath}")
                prefix = "" if folder_path == "." else f"{folder_path}/"
                ignore_files = [
                    ignore for ignore in ignore_files if prefix.startswith(ignore.folder)
                ]
                ignore_files += _read_ignores(folder, prefix)
                folders[:] = sorted(
                    name
                    for name in (folders if subpath.count("/") < _MAX_DEPTH else ())
                    if name not in TOOL_FOLDERS
                    and not _is_ignored(f"{prefix}{name}/", ignore_files)
                )
                for name in sorted(names):
                    if _is_regular_file(name, folder) and not _is_ignored(
                        prefix + name, ignore_files
                    ):
                        yield prefix + name, folder

    def _read_outer_ignores(self) -> list[_IgnoreFile]:
        """Return the .gitignore files above the start; none if they ignore the start itself."""
        ignore_files: list[_IgnoreFile] = []
        path = ""
        for part in self.start.relative_to(self.workspace.root).parts:
            with self.workspace.open_folder(self.workspace.root / path) as folder:
                ignore_files += _read_ignores(folder, path)
            path += f"{part}/"
            if part in TOOL_FOLDERS or _is_ignored(path, ignore_files):
                ignore_files.clear()
        return ignore_files

    def _count_unreadable(self, _error: OSError) -> None:
        self.skipped_count += 1

    def _name_matches(self, path: str) -> bool:
        """Return whether the name pattern matches: the path from the start if it has a slash, else the file name."""
        if "/" not in self.name:
            return not self.name or match_path(self.name, path.rpartition("/")[2])
        if self.start != self.workspace.root:
            path = path.removeprefix(f"{self.workspace.make_relative_name(self.start)}/")
        return match_path(self.name, path)

    def _search_file(self, path: str, folder: int) -> None:
        if self.pattern is None:
            self._add_match(quote_name(path, 400))
            self.matched_files += 1
            return
        data = _read_file(path.rpartition("/")[2], folder, MAX_FILE_BYTES)
        if data is None:
            self.skipped_count += 1
        elif b"\0" not in data[:8_192]:
            count_before = self.match_count
            self._search_lines(path, data.decode("utf-8", "replace"), self.pattern)
            self.matched_files += self.match_count > count_before

    def _search_lines(self, path: str, text: str, pattern: regex.Pattern[str]) -> None:
        for number, line in enumerate(text.split("\n"), 1):
            match = pattern.search(line, timeout=self.timeout_seconds, concurrent=True)
            if match:
                excerpt = quote_name(
                    _cut_line(line.rstrip("\r"), match.start()),
                    400,
                    kept_characters="\t",
                )
                self._add_match(f"{quote_name(path, 400)}:{number}:{excerpt}")
            if self.end_reason or time.monotonic() > self.deadline:
                return

    def _add_match(self, match: str) -> None:
        if self.offset <= self.match_count < self.offset + self.limit:
            self.shown_matches.append(match)
        self.match_count += 1
        if self.match_count >= MAX_COUNTED_MATCHES:
            self.end_reason = (
                f"there are more than {MAX_COUNTED_MATCHES:,}; make the search narrower"
            )

    def _format_result(self) -> str:
        free_chars = MAX_RESULT_CHARS
        for count, line in enumerate(self.shown_matches):
            free_chars -= len(line) + 1
            if free_chars < 0:
                del self.shown_matches[count:]
                break
        notes = [f"[{note}]" for note in self._list_notes()]
        return "\n".join([self._describe_total(), *self.shown_matches, *notes])

    def _describe_total(self) -> str:
        singular, plural = ("file", "files") if self.pattern is None else ("match", "matches")
        if not self.match_count:
            return f"no {plural}"
        noun = singular if self.match_count == 1 else plural
        total = f"{'more than ' if self.end_reason else ''}{self.match_count:,} {noun}"
        if self.pattern is None:
            return total
        return f"{total} in {count_noun(self.matched_files, 'file')}"

    def _list_notes(self) -> Iterator[str]:
        if self.end_reason:
            yield f"the search ended early: {self.end_reason}"
        if self.skipped_count:
            skipped_phrase = "1 file or folder was"
            if self.skipped_count > 1:
                skipped_phrase = f"{self.skipped_count:,} files or folders were"
            yield f"{skipped_phrase} passed over: too large, or not readable"
        end = self.offset + len(self.shown_matches)
        if self.shown_matches and end < self.match_count:
            yield f"shown are {self.offset + 1:,}-{end:,}; go on with offset {end}"
        elif self.match_count and not self.shown_matches:
            yield f"there is nothing at offset {self.offset:,}"


@dataclass(frozen=True, slots=True)
class _IgnoreFile:
    """A .gitignore file. `folder`: where it is, empty or a path that ends in `/`."""

    folder: str
    spec: GitIgnoreSpec


def _read_ignores(folder: int, path: str) -> list[_IgnoreFile]:
    """Return the .gitignore file of an open folder, if it has one. Skip only the bad lines in it, as git does."""
    text = (_read_file(_IGNORE_FILE_NAME, folder, _MAX_RULES_BYTES) or b"").decode(
        "utf-8", "replace"
    )
    patterns: list[Any] = []
    for line in text.splitlines()[:_MAX_RULES]:
        if len(line) <= _MAX_RULE_CHARS:
            with contextlib.suppress(ValueError):
                patterns += GitIgnoreSpec.from_lines([line]).patterns
    return [_IgnoreFile(path, GitIgnoreSpec(patterns))] if patterns else []


def _is_ignored(path: str, ignore_files: Sequence[_IgnoreFile]) -> bool:
    """Return whether a path is ignored, by the innermost .gitignore with a matching rule. Folders end in `/`."""
    verdicts = (
        ignore.spec.check_file(path[len(ignore.folder) :]).include
        for ignore in reversed(ignore_files)
    )
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _is_regular_file(name: str, folder: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _read_file(name: str, folder: int, limit: int) -> bytes | None:
    """Return the content of a regular file, or None if it is not one, too large or unreadable."""
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            is_readable = stat.S_ISREG(status.st_mode) and status.st_size <= limit
            return file.read(limit) if is_readable else None
    except OSError:
        return None


def _cut_line(line: str, match_start: int) -> str:
    """Return the line, or the part of a long line around the match."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    start = max(0, min(match_start - MAX_LINE_CHARS // 3, len(line) - MAX_LINE_CHARS))
    end = start + MAX_LINE_CHARS
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")
