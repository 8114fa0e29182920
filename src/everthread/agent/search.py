"""`python -m everthread.agent.search QUERY`: a query as JSON in, files and lines of a workspace as JSON out.

A process of its own, so that a pattern that never ends can be ended. Files come in the order of their paths, without
what .gitignore files and tools' folders hide; links, pipes and devices are no files.
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
        except ValueError:  # a line that is no pattern; git leaves out that line alone
            return cls(folder, GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(line)))

    def verdict(self, path: str) -> bool | None:
        """Whether it ignores a path below its folder (a folder's ends in `/`); None where it says nothing."""
        return self.spec.check_file(path[len(self.folder) :]).include if path.startswith(self.folder) else None


def _is_pattern(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def is_ignored(path: str, files: list[IgnoreFile], *, is_folder: bool) -> bool:
    """The innermost file that says something decides. What is in an ignored folder is never looked at."""
    if is_folder and path.rpartition("/")[2] in ALWAYS:
        return True
    asked = f"{path}/" if is_folder else path
    return next((said for file in reversed(files) if (said := file.verdict(asked)) is not None), False)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RULES = ".gitignore"
_DEEPEST = 100


@dataclass(slots=True)
class Walk:
    """A way through a workspace, beginning at a folder in it."""

    root: int
    """The opened workspace."""
    unreadable: int = 0
    """Folders and files that could not be opened."""
    ignores: list[IgnoreFile] = field(default_factory=list)

    def files(self, start: str) -> Iterator[tuple[str, int]]:
        """Every file with its folder, opened: path, number of the folder. `start` is `` or a path without links."""
        folder = self.open(start)
        yield from self._below(folder, f"{start}/" if start else "", 0)

    def open(self, start: str) -> int:
        """A folder, opened; the ignore files of those above it are taken on the way."""
        folder, below = os.dup(self.root), ""
        self._take(folder, "")
        for part in [part for part in start.split("/") if part]:
            below += part
            if is_ignored(below, self.ignores, is_folder=True):
                self.ignores.clear()  # who looks into an ignored folder wants to see it
            outer = folder
            try:
                folder = os.open(part, _FOLDER, dir_fd=outer)
            finally:
                os.close(outer)
            below += "/"
            self._take(folder, below)
        return folder

    def _below(self, folder: int, path: str, depth: int) -> Iterator[tuple[str, int]]:
        """Closes the folder."""
        known = len(self.ignores)
        try:
            if depth:
                self._take(folder, path)
            with os.scandir(folder) as found:
                entries = sorted(
                    (entry.name, entry.is_dir(follow_symlinks=False))
                    for entry in found
                    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
                )
            for name, is_folder in entries:
                if is_ignored(path + name, self.ignores, is_folder=is_folder):
                    continue
                if not is_folder:
                    yield path + name, folder
                elif depth < _DEEPEST:
                    yield from self._into(folder, path + name, depth + 1)
        except OSError:
            self.unreadable += 1
        finally:
            del self.ignores[known:]
            os.close(folder)

    def _into(self, folder: int, path: str, depth: int) -> Iterator[tuple[str, int]]:
        try:
            inner = os.open(path.rpartition("/")[2], _FOLDER, dir_fd=folder)
        except OSError:
            self.unreadable += 1
            return
        yield from self._below(inner, f"{path}/", depth)

    def _take(self, folder: int, path: str) -> None:
        data = read(_RULES, folder, 200_000)
        if data:
            self.ignores.append(IgnoreFile.parse(data.decode("utf-8", "replace"), path))


def read(name: str, folder: int, limit: int) -> bytes | None:
    """What an ordinary file holds; None where it is none, is larger than the limit, or cannot be read."""
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


LARGEST = 10_000_000
"""Bytes of a file that is searched."""
COUNTED = 5_000
"""Matches after which a search ends."""
SHOWN = 300
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
    """A page of matches, `[path, line, text]` or `[path]`, and what was not looked at."""

    matches: list[list[str | int]]
    total: int = 0
    files: int = 0
    skipped: int = 0
    """Files passed over: larger than what is searched, or unreadable."""
    ended: str = ""
    """Why the search ended early."""


class Search:
    """One search."""

    def __init__(self, query: FileQuery) -> None:
        self.query = query
        self.found = MatchPage([])
        self._ends = time.monotonic() + query.seconds
        self._wanted = None if query.pattern is None else re.compile(query.pattern, re.I if query.ignore_case else 0)
        self._named = None if query.name is None else path_glob(query.name)

    def run(self) -> MatchPage:
        root = os.open(self.query.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if Path(self.query.root, self.query.start).is_dir():
                self._below(root)
            else:
                self._alone(root)
        finally:
            os.close(root)
        return self.found

    def _alone(self, root: int) -> None:
        folder = Walk(root).open(self.query.start.rpartition("/")[0])
        try:
            self._file(self.query.start, folder, asked=True)
        finally:
            os.close(folder)

    def _below(self, root: int) -> None:
        walk = Walk(root)
        for path, folder in walk.files(self.query.start):
            if time.monotonic() > self._ends:
                self.found.ended = "it took too long; search in a smaller folder"
            if self.found.ended:
                break
            self._file(path, folder)
        self.found.skipped += walk.unreadable

    def _file(self, path: str, folder: int, *, asked: bool = False) -> None:
        if self._named is not None and not asked and not self._is_named(path):
            return
        if self._wanted is None:
            self._add([path])
            self.found.files += 1
            return
        data = read(path.rpartition("/")[2], folder, LARGEST)
        if data is None:
            self.found.skipped += 1
        elif b"\0" not in data[:8_192]:
            before = self.found.total
            self._lines(path, data.decode("utf-8", "replace"), self._wanted)
            self.found.files += self.found.total > before

    def _lines(self, path: str, text: str, wanted: re.Pattern[str]) -> None:
        for number, line in enumerate(text.split("\n"), 1):
            match = wanted.search(line)
            if match:
                self._add([path, number, _shown(line.rstrip("\r"), match.start())])
            if self.found.ended:
                return

    def _is_named(self, path: str) -> bool:
        """A pattern with a slash is about the path from where the search begins, any other about the name alone."""
        assert self._named is not None  # noqa: S101 - asked only where a name is looked for
        start = f"{self.query.start}/" if self.query.start else ""
        part = path.removeprefix(start) if "/" in (self.query.name or "") else path.rpartition("/")[2]
        return self._named.fullmatch(part) is not None

    def _add(self, match: list[str | int]) -> None:
        if self.query.offset <= self.found.total < self.query.offset + self.query.limit:
            self.found.matches.append(match)
        self.found.total += 1
        if self.found.total >= COUNTED:
            self.found.ended = f"there are more than {COUNTED:,}; make the search narrower"


def _shown(line: str, at: int) -> str:
    """The line; of a long one what is around the match."""
    if len(line) <= SHOWN:
        return line
    start = max(0, min(at - SHOWN // 3, len(line) - SHOWN))
    end = start + SHOWN
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(Search(FileQuery(**json.loads(sys.argv[1]))).run())))
