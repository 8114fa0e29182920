"""An entry of the journal: a turn, a part of one, or a range of turns."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

from everthread.compaction.journal.one_line_text import ERROR_START, split_note
from everthread.core.messages import count_noun

_MAX_RANGE_FILES = 3
"""Changed files that a range names; Relevant Files lists more."""


_RAN_COMMANDS = re.compile(
    r"(?<![\w`])ran (`[^`\n]{1,200}`(?:, `[^`\n]{1,200}`){0,99})"
)
REPEAT_COUNT = re.compile(r" ×\d{1,4}$")
_CHANGED_NAMES = re.compile(r"(?:^|— )changed ([^;\n]{1,400})")
ENTRY_HEADER = re.compile(
    r"\[(?P<first>\d{1,9})(?:–(?P<last>\d{1,9}))?(?P<continued>, continued)?\] (?P<messages>[\d,]{1,12}) messages?"
    r"(?::(?P<figures> [^;—\n]{1,60}(?:; [^;—\n]{1,60}){0,4};?))?(?: — (?P<closing>.*))?$"
)
ENTRY_FIGURES = {
    "changed": re.compile(r"changed ([\d,]{1,12}) files?"),
    "changes": re.compile(r"([\d,]{1,12}) file changes?"),
    "ran": re.compile(r"ran ([\d,]{1,12}) commands?"),
    "failed": re.compile(r"\(([\d,]{1,12}) failed\)"),
    "called": re.compile(r"([\d,]{1,12}) other calls?"),
    "looked": re.compile(r"looked ([\d,]{1,12}) times?"),
}


@dataclass(frozen=True)
class Entry:
    """A turn, a part of one, or a range of turns."""

    first: int
    last: int
    messages: int
    changed: int = 0
    ran: int = 0
    failed: int = 0
    called: int = 0
    looked: int = 0
    lines: tuple[str, ...] = ()
    closing: str = ""
    is_continued: bool = False
    changes: int = 0
    """Replaces `changed` for a range: a file counts once for each entry that changed it."""

    @property
    def is_silent(self) -> bool:
        """Whether the entry holds nothing but its number of messages."""
        return not (
            self.lines
            or self.closing
            or self.changed
            or self.changes
            or self.ran
            or self.called
            or self.looked
        )

    def header(self) -> str:
        span = (
            f"{self.first}–{self.last}" if self.last > self.first else str(self.first)
        )
        failed = f" ({self.failed} failed)" if self.failed else ""
        figures = [
            f"changed {count_noun(self.changed, 'file')}" if self.changed else "",
            count_noun(self.changes, "file change") if self.changes else "",
            f"ran {count_noun(self.ran, 'command')}{failed}" if self.ran else "",
            count_noun(self.called, "other call") if self.called else "",
            f"looked {count_noun(self.looked, 'time')}" if self.looked else "",
        ]
        figures_text = "; ".join(figure for figure in figures if figure)
        continued = ", continued" if self.is_continued else ""
        return f"[{span}{continued}] {count_noun(self.messages, 'message')}" + (
            f": {figures_text}" if figures_text else ""
        )

    @cached_property
    def body(self) -> str:
        """The entry's text without its closing words."""
        return "\n- ".join((self.header(), *self.lines))

    @cached_property
    def text(self) -> str:
        if not self.closing:
            return self.body
        return (
            f"{self.body}\n- ended: {self.closing}"
            if self.lines
            else f"{self.header()} — {self.closing}"
        )

    @cached_property
    def commands(self) -> tuple[str, ...]:
        """The commands of the entry, as its lines show them."""
        command_lists = (
            names
            for line in self.lines
            if "ran `" in line
            for names in _RAN_COMMANDS.findall(line)
        )
        return tuple(
            command for names in command_lists for command in names[1:-1].split("`, `")
        )

    def join(self, other: Entry) -> Entry:
        """Join both entries into one for a range: summed counts, changed files, error lines and the last outcome."""
        files_line = changed_line(self, other)
        return Entry(
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            messages=self.messages + other.messages,
            ran=self.ran + other.ran,
            failed=self.failed + other.failed,
            called=self.called + other.called,
            looked=self.looked + other.looked,
            lines=(*files_line, *self.errors, *other.errors),
            closing=other.closing or self.closing,
            is_continued=self.is_continued,
            changes=self.changed + self.changes + other.changed + other.changes,
        )

    def without_prefix(self, prefix: str) -> Entry:
        """Return the entry with this prefix removed from paths, except in error texts."""
        if not prefix or prefix not in self.text:
            return self
        lines = (
            line if line.startswith(ERROR_START) else line.replace(prefix, "")
            for line in self.lines
        )
        return replace(
            self, lines=tuple(lines), closing=self.closing.replace(prefix, "")
        )

    @cached_property
    def changed_files(self) -> tuple[str, ...]:
        """The changed files that its lines name, each once."""
        name_lists = (
            names for line in self.lines for names in _CHANGED_NAMES.findall(line)
        )
        names = (
            REPEAT_COUNT.sub("", name)
            for names in name_lists
            for name in names.split(", ")
        )
        return tuple(dict.fromkeys(name for name in names if not name.endswith("…")))

    @cached_property
    def prose(self) -> str:
        """Its notes and closing words."""
        notes = (split_note(line)[0] for line in self.lines)
        return "\n".join(filter(None, (*notes, self.closing)))

    @cached_property
    def errors(self) -> tuple[str, ...]:
        """The lines that state an error."""
        return tuple(line for line in self.lines if line.startswith(ERROR_START))


def changed_line(*entries: Entry) -> tuple[str, ...]:
    """Return the line that names the files that entries changed, the latest ones if there are many."""
    names = list(
        dict.fromkeys(
            name
            for entry in reversed(entries)
            for name in reversed(entry.changed_files)
        )
    )
    return (
        (f"changed {', '.join(reversed(names[:_MAX_RANGE_FILES]))}",) if names else ()
    )
