"""What a search looks for, and what it finds."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from everthread.agent.globs import path_glob
from everthread.agent.search.files import Walk, read

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
