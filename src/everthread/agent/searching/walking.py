"""The files below a folder, in the order of their paths. Links, pipes and devices are none."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from everthread.agent.searching.ignored import Pattern, is_ignored, parse

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
    patterns: list[Pattern] = field(default_factory=list)

    def files(self, start: str) -> Iterator[tuple[str, int]]:
        """Every file with its folder, opened: path, number of the folder. `start` is `` or a path without links."""
        folder = self.open(start)
        yield from self._below(folder, f"{start}/" if start else "", 0)

    def open(self, start: str) -> int:
        """A folder, opened; the patterns of those above it are taken on the way."""
        folder, below = os.dup(self.root), ""
        self._take(folder, "")
        for part in [part for part in start.split("/") if part]:
            below += part
            if is_ignored(below, self.patterns, is_folder=True):
                self.patterns.clear()  # who looks into an ignored folder wants to see it
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
        known = len(self.patterns)
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
                if is_ignored(path + name, self.patterns, is_folder=is_folder):
                    continue
                if not is_folder:
                    yield path + name, folder
                elif depth < _DEEPEST:
                    yield from self._into(folder, path + name, depth + 1)
        except OSError:
            self.unreadable += 1
        finally:
            del self.patterns[known:]
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
            self.patterns += parse(data.decode("utf-8", "replace"), path)


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
