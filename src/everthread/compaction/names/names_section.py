"""The section Names in Use: the highest-ranked names that fit, written and read back.

A file is shown with its last folder only. Full folders would take half of the section, and the end of a path is enough
to find the file again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from everthread.compaction.names.name_shapes import (
    file_name_of,
    is_path,
    read_names_by_line,
)
from everthread.compaction.names.names_in_use import NamesInUse
from everthread.compaction.summary.sentences import CountTokens

SECTION_SHARE = 5
"""The section takes at most this share (1/n) of the summary's budget."""
MAX_TOO_LONG_NAMES = 12
"""After this many names that do not fit, stop trying shorter ones."""
MIN_SECTION_TOKENS = 24
"""With less room than this the section is left out."""
FILES_LABEL = "- files (ends of paths): "
USED_LABEL = "- used: "
COMMANDS_LABEL = "- commands: "

_FOLDER_OR_PATH = re.compile(r"([^\s{}]+)/\{([^{}]*)\}|(\S+)")
_COMMAND = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class NamesSection:
    """The input of the section: the ranked names, and the tokens it may take."""

    names: Sequence[str]
    room: int

    @classmethod
    def plan(cls, names: NamesInUse, budget: int) -> NamesSection:
        """Return the section for a summary of `budget` tokens."""
        ranked_names = names.ranked_names()
        needed_tokens = sum(map(len, ranked_names)) // 3 + 3 * len(ranked_names)
        room = min(budget // SECTION_SHARE, needed_tokens)
        return cls(ranked_names, room if room >= MIN_SECTION_TOKENS else 0)

    def write(
        self, summary_text: str, shown_names: Set[str], count: CountTokens
    ) -> str:
        """Return the names that neither the summary's text nor the messages beside it show, as many as fit."""
        visible_names = shown_names | read_names_by_line(summary_text)
        listing = _Listing()
        remaining = self.room
        too_long_count = 0
        for name in self.names:
            if name in visible_names or (
                is_path(name) and file_name_of(name) in visible_names
            ):
                continue
            if name in listing or (" " in name and name in summary_text):
                continue
            cost = listing.count_added_tokens(name, count)
            if cost <= remaining:
                remaining -= cost
                listing.add(name)
            else:
                too_long_count += 1
                if (
                    remaining < MIN_SECTION_TOKENS // 3
                    or too_long_count > MAX_TOO_LONG_NAMES
                ):
                    break
        return listing.write()


@dataclass(slots=True)
class _Listing:
    """The names chosen for the section so far."""

    folders: dict[str, list[str]] = field(default_factory=dict)
    """Names of files, by the folder that is shown with them."""
    used: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    listed_text: str = ""
    """All names listed so far, as one text."""

    def __contains__(self, name: str) -> bool:
        return name in self.listed_text

    def count_added_tokens(self, name: str, count: CountTokens) -> int:
        """Return the tokens that a name adds."""
        if " " in name:
            label_tokens = 0 if self.commands else count(COMMANDS_LABEL) + 2
            return label_tokens + count(f" `{name}`")
        if not is_path(name):
            return (0 if self.used else count(USED_LABEL) + 2) + count(f" {name}")
        folder, _, base = name.rpartition("/")
        label_tokens = 0 if self.folders else count(FILES_LABEL) + 2
        listed_names = self.folders.get(folder)
        if listed_names is None:
            return label_tokens + count(f" {name}")
        return count(f" {base}") + (2 if len(listed_names) == 1 else 0)

    def add(self, name: str) -> None:
        self.listed_text += f"{name} "
        if " " in name:
            self.commands.append(f"`{name}`")
        elif is_path(name):
            folder, _, base = name.rpartition("/")
            self.folders.setdefault(folder, []).append(base)
        else:
            self.used.append(name)

    def write(self) -> str:
        """Return the lines of the section."""
        files = [
            f"{folder}/{{{' '.join(bases)}}}" if bases[1:] else f"{folder}/{bases[0]}"
            for folder, bases in self.folders.items()
        ]
        lines = (
            (FILES_LABEL, files),
            (USED_LABEL, self.used),
            (COMMANDS_LABEL, self.commands),
        )
        return "\n".join(f"{label}{' '.join(names)}" for label, names in lines if names)


def is_names_line(line: str) -> bool:
    """Return whether a line belongs to this section."""
    return line.startswith((FILES_LABEL, USED_LABEL, COMMANDS_LABEL))


def parse_names(text: str) -> list[str]:
    """Return the names that a section lists, most used first within each of its lines."""
    names: list[str] = []
    for line in text.split("\n"):
        if line.startswith(COMMANDS_LABEL):
            names += _COMMAND.findall(line)
        elif line.startswith(FILES_LABEL):
            names += _parse_files(line.removeprefix(FILES_LABEL))
        elif line.startswith(USED_LABEL):
            names += line.removeprefix(USED_LABEL).split()
    return names


def _parse_files(line: str) -> Iterator[str]:
    """Yield the paths in a line of files."""
    for folder, bases, path in _FOLDER_OR_PATH.findall(line):
        if path:
            yield path
        yield from (f"{folder}/{base}" for base in bases.split())
