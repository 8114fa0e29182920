"""The section Names in Use: the highest-ranked names that fit, written and read back.

A file is shown without its folders if no other file in use has the same name, else with its last folder. Folders would
take a third of the section's files, and the name is enough to find the file again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from everthread.compaction.names.name_shapes import (
    find_file_name,
    is_file,
    is_path,
    read_names_by_line,
)
from everthread.compaction.names.names_in_use import NamesInUse
from everthread.compaction.summary.sentences import CountTokens

MAX_SECTION_SHARE = 5
"""The section takes this share (1/n) of the summary's budget."""
MIN_SECTION_SHARE = 10
MAX_CONTINUED_TOKENS = 500
"""In a later summary the section takes at most this many tokens, unless a share of 1/`MIN_SECTION_SHARE` is more.

The names that are not listed are remembered, but a conclusion that the summary drops is lost for all later ones.
"""
MAX_TOO_LONG_NAMES = 12
"""After this many names that do not fit, stop trying shorter ones."""
MIN_SECTION_TOKENS = 24
"""With fewer tokens than this the section is left out."""
LABEL = "- used: "

_NAME_PATTERN = re.compile(r"`([^`]+)`|([^\s{}]+)/\{([^{}]*)\}|(\S+)")
"""A command, files of one folder, or another name."""


@dataclass(frozen=True, slots=True)
class NamesSection:
    """The input of the section: the ranked names, and the tokens it may take."""

    names: Sequence[str]
    max_tokens: int

    @classmethod
    def plan(cls, names: NamesInUse, budget: int, *, continues: bool = False) -> NamesSection:
        """Return the section for a summary of `budget` tokens. `continues`: it continues an earlier summary."""
        ranked_names = names.rank_names()
        needed_tokens = sum(map(len, ranked_names)) // 3 + 3 * len(ranked_names)
        max_tokens = budget // MAX_SECTION_SHARE
        if continues:
            min_tokens = budget // MIN_SECTION_SHARE
            max_tokens = max(min(max_tokens, MAX_CONTINUED_TOKENS), min_tokens)
        max_tokens = min(max_tokens, needed_tokens)
        return cls(ranked_names, max_tokens if max_tokens >= MIN_SECTION_TOKENS else 0)

    def render(self, summary_text: str, shown_names: Set[str], count: CountTokens) -> str:
        """Return the names that neither the summary's text nor the messages beside it show, as many as fit."""
        visible_names = shown_names | read_names_by_line(summary_text)
        listing = _Listing(
            shared_file_names=_find_shared_file_names(self.names[: self.max_tokens // 3])
        )
        remaining_tokens = self.max_tokens - count(LABEL)
        too_long_count = 0
        for name in self.names:
            if name in visible_names or (is_path(name) and find_file_name(name) in visible_names):
                continue
            if name in listing or (" " in name and name in summary_text):
                continue
            cost = listing.count_added_tokens(name, count)
            if cost <= remaining_tokens:
                remaining_tokens -= cost
                listing.add(name)
            else:
                too_long_count += 1
                if (
                    remaining_tokens < MIN_SECTION_TOKENS // 3
                    or too_long_count > MAX_TOO_LONG_NAMES
                ):
                    break
        return listing.write()


def _find_shared_file_names(names: Sequence[str]) -> set[str]:
    """Return the file names, without folders, that several of these paths end with."""
    file_names: set[str] = set()
    shared_file_names: set[str] = set()
    for name in names:
        if is_path(name):
            file_name = find_file_name(name)
            (shared_file_names if file_name in file_names else file_names).add(file_name)
    return shared_file_names


@dataclass(slots=True)
class _Listing:
    """The names chosen for the section so far."""

    shared_file_names: Set[str]
    """File names that need their folder, because several files have them."""
    names: dict[str, list[str]] = field(default_factory=dict)
    """The names as they are written, in order; under a folder its files."""
    listed_text: str = ""
    """All names listed so far, as one text."""

    def __contains__(self, name: str) -> bool:
        if is_file(name):
            return "".join(self._split_name(name)) in self.names
        return name in self.listed_text

    def count_added_tokens(self, name: str, count: CountTokens) -> int:
        """Return the tokens that a name adds."""
        folder, end = self._split_name(name)
        files = self.names.get(folder)
        if files is None:
            return count(f" {folder}{end}")
        return count(f" {end}") + (2 if len(files) == 1 else 0)

    def add(self, name: str) -> None:
        folder, end = self._split_name(name)
        self.listed_text += f"{folder}{end} "
        if folder:
            self.names.setdefault(folder, []).append(end)
        else:
            self.names[end] = []

    def write(self) -> str:
        """Return the line of the section, or an empty string if there are no names."""
        names = (
            f"{name}{{{' '.join(files)}}}" if files[1:] else f"{name}{''.join(files)}"
            for name, files in self.names.items()
        )
        return LABEL + " ".join(names) if self.names else ""

    def _split_name(self, name: str) -> tuple[str, str]:
        """Return the folder to show with a file, if any, and the rest of the name as it is written."""
        if not is_path(name):
            return "", f"`{name}`" if " " in name else name
        file_name = find_file_name(name)
        is_clear = is_file(file_name) and file_name not in self.shared_file_names
        return "" if is_clear else name.removesuffix(file_name), file_name


def is_names_line(line: str) -> bool:
    """Return whether a line belongs to this section."""
    return line.startswith(LABEL)


def parse_names(text: str) -> list[str]:
    """Return the names that a section lists, most used first."""
    names: list[str] = []
    for line in text.split("\n"):
        if not line.startswith(LABEL):
            continue
        for command, folder, files, name in _NAME_PATTERN.findall(line.removeprefix(LABEL)):
            names += [f"{folder}/{file}" for file in files.split()] or [command or name]
    return names
