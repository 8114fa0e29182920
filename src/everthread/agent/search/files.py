"""The files below a folder, in the order of their paths, without what .gitignore files and tools' folders hide.

Links, pipes and devices are no files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from pathspec import GitIgnoreSpec

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
