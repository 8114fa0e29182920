"""What a search passes over: what .gitignore files name, nearly as git reads them, and folders of tools."""

from __future__ import annotations

import re
from dataclasses import dataclass

from everthread.agent.globs import path_glob

ALWAYS = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
_MOST = 2_000
"""Patterns taken from one file."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of a .gitignore file."""

    folder: str
    """Where the file is: `` or a path that ends in `/`."""
    expression: re.Pattern[str]
    named: bool
    """It is about a name anywhere below, not about a path."""
    folders_only: bool
    back: bool
    """It takes back what an earlier line names (`!`)."""

    def matches(self, path: str, *, is_folder: bool) -> bool:
        if (self.folders_only and not is_folder) or not path.startswith(self.folder):
            return False
        inside = path[len(self.folder) :]
        return self.expression.fullmatch(inside.rpartition("/")[2] if self.named else inside) is not None


def parse(text: str, folder: str) -> list[Pattern]:
    """The patterns of a .gitignore file in a folder."""
    found = []
    for raw in text.splitlines()[:_MOST]:
        line = raw.rstrip()
        if not line or line.startswith("#") or len(line) > 500:
            continue
        back = line.startswith("!")
        line = line[back:]
        folders_only = line.endswith("/")
        line = line.rstrip("/")
        named = "/" not in line
        line = line.removeprefix("/")
        if line:
            found.append(Pattern(folder, path_glob(line), named, folders_only, back))
    return found


def is_ignored(path: str, patterns: list[Pattern], *, is_folder: bool) -> bool:
    """Whether the last pattern that matches says so. What is in an ignored folder is never looked at."""
    if is_folder and path.rpartition("/")[2] in ALWAYS:
        return True
    last = next((one for one in reversed(patterns) if one.matches(path, is_folder=is_folder)), None)
    return last is not None and not last.back
