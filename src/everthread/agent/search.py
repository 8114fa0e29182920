"""`python -m everthread.agent.search QUERY`: a query as JSON in, files and lines of a workspace as JSON out.

It runs as a process of its own, so that an endless pattern can be killed. Files come in the order of their paths,
without what .gitignore files and tools' folders hide; links, pipes and devices are skipped.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pathspec import GitIgnoreSpec

from everthread.agent.workspace import path_glob

ALWAYS = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
_MOST_LINES, _LONGEST_LINE = 2_000, 500


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """A .gitignore file. `folder`: where it is, empty or a path that ends in `/`."""

    folder: str
    spec: GitIgnoreSpec

    @classmethod
    def parse(cls, text: str, folder: str) -> IgnoreFile:
        lines = [line for line in text.splitlines()[:_MOST_LINES] if len(line) <= _LONGEST_LINE and "\0" not in line]
        try:
            return cls(folder, GitIgnoreSpec.from_lines(lines))
        except ValueError:  # a bad line; git skips that line alone
            return cls(folder, GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(line)))

    def verdict(self, path: str) -> bool | None:
        """Whether it ignores a path below its folder (a folder's ends in `/`); None where no rule matches."""
        return self.spec.check_file(path[len(self.folder) :]).include if path.startswith(self.folder) else None


def _is_pattern(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def is_ignored(path: str, files: list[IgnoreFile], *, is_folder: bool) -> bool:
    """The innermost .gitignore with a matching rule decides."""
    if is_folder and path.rpartition("/")[2] in ALWAYS:
        return True
    name = f"{path}/" if is_folder else path
    return next((verdict for file in reversed(files) if (verdict := file.verdict(name)) is not None), False)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RULES = ".gitignore"
_DEEPEST = 100


@dataclass(slots=True)
class Walk:
    """A walk through a workspace from a folder in it."""

    root: int
    """The opened workspace."""
    unreadable: int = 0
    """Folders and files that could not be opened."""
    ignores: list[IgnoreFile] = field(default_factory=list)

    def files(self, start: str) -> Iterator[tuple[str, int]]:
        """Every file: its path and the descriptor of its folder. `start` is `` or a path without links."""
        folder = self.open(start)
        yield from self._below(folder, f"{start}/" if start else "", 0)

    def open(self, start: str) -> int:
        """Open a folder; load the .gitignore files of the folders above it on the way."""
        folder, below = os.dup(self.root), ""
        self._load_ignores(folder, "")
        for part in [part for part in start.split("/") if part]:
            below += part
            if is_ignored(below, self.ignores, is_folder=True):
                self.ignores.clear()  # an ignored folder that is named is searched
            outer = folder
            try:
                folder = os.open(part, _FOLDER, dir_fd=outer)
            finally:
                os.close(outer)
            below += "/"
            self._load_ignores(folder, below)
        return folder

    def _below(self, folder: int, path: str, depth: int) -> Iterator[tuple[str, int]]:
        """Yield the files below an open folder, then close it."""
        count = len(self.ignores)
        try:
            if depth:
                self._load_ignores(folder, path)
            with os.scandir(folder) as scan:
                entries = sorted(
                    (entry.name, entry.is_dir(follow_symlinks=False))
                    for entry in scan
                    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
                )
            for name, is_folder in entries:
                if is_ignored(path + name, self.ignores, is_folder=is_folder):
                    continue
                if not is_folder:
                    yield path + name, folder
                elif depth < _DEEPEST:
                    yield from self._enter(folder, path + name, depth + 1)
        except OSError:
            self.unreadable += 1
        finally:
            del self.ignores[count:]
            os.close(folder)

    def _enter(self, folder: int, path: str, depth: int) -> Iterator[tuple[str, int]]:
        try:
            inner = os.open(path.rpartition("/")[2], _FOLDER, dir_fd=folder)
        except OSError:
            self.unreadable += 1
            return
        yield from self._below(inner, f"{path}/", depth)

    def _load_ignores(self, folder: int, path: str) -> None:
        data = read(_RULES, folder, 200_000)
        if data:
            self.ignores.append(IgnoreFile.parse(data.decode("utf-8", "replace"), path))


def read(name: str, folder: int, limit: int) -> bytes | None:
    """The content of an ordinary file; None where it is no such file, over the limit, or not readable."""
    try:
        number = os.open(name, _FILE, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(number, "rb") as file:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            return None
        try:
            return file.read(limit)
        except OSError:
            return None


MAX_FILE_BYTES = 10_000_000
"""Largest file that is searched, in bytes."""
MAX_MATCHES = 5_000
"""Matches after which a search ends."""
MAX_LINE_CHARS = 300
"""Characters shown of a line."""


@dataclass(frozen=True, slots=True)
class FileQuery:
    """`root` is the workspace; `start` a folder or file in it, resolved, relative to it."""

    root: str
    start: str
    pattern: str | None
    name: str | None
    ignore_case: bool
    offset: int
    limit: int
    seconds: float


@dataclass(slots=True)
class MatchPage:
    """A page of matches, `[path, line, text]` or `[path]`, and counts of what was skipped."""

    matches: list[list[str | int]]
    total: int = 0
    files: int = 0
    skipped: int = 0
    """Files skipped: too large, or not readable."""
    ended: str = ""
    """Why the search ended early."""


class Search:
    """One search."""

    def __init__(self, query: FileQuery) -> None:
        self.query = query
        self.page = MatchPage([])
        self._deadline = time.monotonic() + query.seconds
        self._pattern = None if query.pattern is None else re.compile(query.pattern, re.I if query.ignore_case else 0)
        self._name = None if query.name is None else path_glob(query.name)

    def run(self) -> MatchPage:
        root = os.open(self.query.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if Path(self.query.root, self.query.start).is_dir():
                self._search_folder(root)
            else:
                self._search_file(root)
        finally:
            os.close(root)
        return self.page

    def _search_file(self, root: int) -> None:
        folder = Walk(root).open(self.query.start.rpartition("/")[0])
        try:
            self._match_file(self.query.start, folder, is_named_directly=True)
        finally:
            os.close(folder)

    def _search_folder(self, root: int) -> None:
        walk = Walk(root)
        for path, folder in walk.files(self.query.start):
            if time.monotonic() > self._deadline:
                self.page.ended = "it took too long; search in a smaller folder"
            if self.page.ended:
                break
            self._match_file(path, folder)
        self.page.skipped += walk.unreadable

    def _match_file(self, path: str, folder: int, *, is_named_directly: bool = False) -> None:
        if self._name is not None and not is_named_directly and not self._name_matches(path):
            return
        if self._pattern is None:
            self._add([path])
            self.page.files += 1
            return
        data = read(path.rpartition("/")[2], folder, MAX_FILE_BYTES)
        if data is None:
            self.page.skipped += 1
        elif b"\0" not in data[:8_192]:
            before = self.page.total
            self._match_lines(path, data.decode("utf-8", "replace"), self._pattern)
            self.page.files += self.page.total > before

    def _match_lines(self, path: str, text: str, pattern: re.Pattern[str]) -> None:
        for number, line in enumerate(text.split("\n"), 1):
            match = pattern.search(line)
            if match:
                self._add([path, number, _cut_line(line.rstrip("\r"), match.start())])
            if self.page.ended:
                return

    def _name_matches(self, path: str) -> bool:
        """A pattern with a slash matches the path from the start of the search, any other the name alone."""
        assert self._name is not None  # noqa: S101 - asked only where a name is looked for
        start = f"{self.query.start}/" if self.query.start else ""
        part = path.removeprefix(start) if "/" in (self.query.name or "") else path.rpartition("/")[2]
        return self._name.fullmatch(part) is not None

    def _add(self, match: list[str | int]) -> None:
        if self.query.offset <= self.page.total < self.query.offset + self.query.limit:
            self.page.matches.append(match)
        self.page.total += 1
        if self.page.total >= MAX_MATCHES:
            self.page.ended = f"there are more than {MAX_MATCHES:,}; make the search narrower"


def _cut_line(line: str, at: int) -> str:
    """The line; of a long one the part around the match."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    start = max(0, min(at - MAX_LINE_CHARS // 3, len(line) - MAX_LINE_CHARS))
    end = start + MAX_LINE_CHARS
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(Search(FileQuery(**json.loads(sys.argv[1]))).run())))
