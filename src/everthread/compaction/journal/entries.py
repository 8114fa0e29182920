"""An entry of the journal: a turn, a part of one, or a range of turns."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property

from everthread.compaction.history.tool_calls import REFUSED
from everthread.compaction.journal.one_line_text import ERROR_START, split_note
from everthread.core.text import clip, count_noun

_MAX_RANGE_FILES = 3
"""Maximum changed files to name in the entry of a range; the section Relevant Files lists more."""


_RAN_COMMANDS_PATTERN = re.compile(
    rf"(?<![\w`])ran (`[^`\n]{{1,200}}`(?:, `[^`\n]{{1,200}}`){{0,99}})(?! → {REFUSED})"
)
_LAST_RUN_PATTERN = re.compile(
    r"(?<![\w`])ran `([^`\n]{1,200})` → "
    r"((?:exit -?\d|failed|timed out|\d{1,7} (?:packages? )?(?:passed|failed|tests?))[^;\n]{0,200})"
)
_MAX_OUTCOME_CHARS = 60
"""Maximum characters of the last command of a reduced entry, and of its outcome."""
REPEAT_COUNT_PATTERN = re.compile(r" ×\d{1,4}$")
_CHANGED_NAMES_PATTERN = re.compile(r"(?:^|— )changed ([^;\n]{1,400})")
ENTRY_HEADER_PATTERN = re.compile(
    r"\[(?P<first>\d{1,9})(?:–(?P<last>\d{1,9}))?(?P<continued>, continued)?\] (?P<messages>[\d,]{1,12}) messages?"
    r"(?::(?P<figures> [^;—\n]{1,60}(?:; [^;—\n]{1,60}){0,4};?))?(?: — (?P<closing>.*))?$"
)
ENTRY_COUNTS = {
    "changed_file_count": re.compile(r"changed ([\d,]{1,12}) files?"),
    "file_change_count": re.compile(r"([\d,]{1,12}) file changes?"),
    "command_count": re.compile(r"ran ([\d,]{1,12}) commands?"),
    "failed_count": re.compile(r"\(([\d,]{1,12}) failed\)"),
    "other_call_count": re.compile(r"([\d,]{1,12}) other calls?"),
    "look_count": re.compile(r"looked ([\d,]{1,12}) times?"),
}


@dataclass(frozen=True)
class JournalEntry:
    """A turn, a part of one, or a range of turns, with counts of the work in it."""

    first_turn: int
    last_turn: int
    message_count: int
    changed_file_count: int = 0
    command_count: int = 0
    failed_count: int = 0
    other_call_count: int = 0
    look_count: int = 0
    lines: tuple[str, ...] = ()
    closing_words: str = ""
    is_continued: bool = False
    """Whether the entry continues the turn of the entry before."""
    file_change_count: int = 0
    """For a range, instead of `changed_file_count`: a file counts once for each joined entry that changed it."""
    last_outcome: str = field(default="", compare=False)
    """For a reduced entry, the line that a range shows of its last command."""

    @property
    def is_silent(self) -> bool:
        """Whether the entry has neither an action nor a conclusion."""
        return not (
            self.lines
            or self.closing_words
            or self.changed_file_count
            or self.file_change_count
            or self.command_count
            or self.other_call_count
        )

    def render_header(self) -> str:
        """Return the first line: the turns, and the counts of the work."""
        span = str(self.first_turn)
        if self.last_turn > self.first_turn:
            span = f"{self.first_turn}–{self.last_turn}"
        figures: list[str] = []
        if self.changed_file_count:
            figures.append(f"changed {count_noun(self.changed_file_count, 'file')}")
        if self.file_change_count:
            figures.append(count_noun(self.file_change_count, "file change"))
        if self.command_count:
            failed = f" ({self.failed_count} failed)" if self.failed_count else ""
            figures.append(f"ran {count_noun(self.command_count, 'command')}{failed}")
        if self.other_call_count:
            figures.append(count_noun(self.other_call_count, "other call"))
        if self.look_count:
            figures.append(f"looked {count_noun(self.look_count, 'time')}")
        figures_text = f": {'; '.join(figures)}" if figures else ""
        continued = ", continued" if self.is_continued else ""
        return f"[{span}{continued}] {count_noun(self.message_count, 'message')}{figures_text}"

    @cached_property
    def body(self) -> str:
        """The entry's text without its closing words."""
        return "\n- ".join((self.render_header(), *self.lines))

    @cached_property
    def text(self) -> str:
        if not self.closing_words:
            return self.body
        if self.lines:
            return f"{self.body}\n- ended: {self.closing_words}"
        return f"{self.render_header()} — {self.closing_words}"

    @cached_property
    def commands(self) -> tuple[str, ...]:
        """The commands of the entry, as its lines show them."""
        command_lists = (
            names
            for line in self.lines
            if "ran `" in line
            for names in _RAN_COMMANDS_PATTERN.findall(line)
        )
        return tuple(command for names in command_lists for command in names[1:-1].split("`, `"))

    def join_with(self, other: JournalEntry) -> JournalEntry:
        """Join both entries into one for a range.

        Counts are added; changed files, the last outcome, error lines and the last closing words stay.
        """
        file_lines = list_changed_files(self, other)
        last_outcome = find_last_outcome(other) or find_last_outcome(self)
        return JournalEntry(
            first_turn=min(self.first_turn, other.first_turn),
            last_turn=max(self.last_turn, other.last_turn),
            message_count=self.message_count + other.message_count,
            command_count=self.command_count + other.command_count,
            failed_count=self.failed_count + other.failed_count,
            other_call_count=self.other_call_count + other.other_call_count,
            look_count=self.look_count + other.look_count,
            lines=(
                *file_lines,
                *filter(None, [last_outcome]),
                *self.errors,
                *other.errors,
            ),
            closing_words=other.closing_words or self.closing_words,
            is_continued=self.is_continued,
            file_change_count=self.changed_file_count
            + self.file_change_count
            + other.changed_file_count
            + other.file_change_count,
            last_outcome=last_outcome,
        )

    def without_prefix(self, prefix: str) -> JournalEntry:
        """Return the entry with this prefix removed from paths, except in error texts."""
        if not prefix or prefix not in self.text:
            return self
        lines = (
            line if line.startswith(ERROR_START) else line.replace(prefix, "")
            for line in self.lines
        )
        return replace(
            self,
            lines=tuple(lines),
            closing_words=self.closing_words.replace(prefix, ""),
        )

    @cached_property
    def changed_files(self) -> tuple[str, ...]:
        """The changed files that the entry's lines name, each once."""
        name_lists = (
            names for line in self.lines for names in _CHANGED_NAMES_PATTERN.findall(line)
        )
        names = (
            REPEAT_COUNT_PATTERN.sub("", name) for names in name_lists for name in names.split(", ")
        )
        return tuple(dict.fromkeys(name for name in names if not name.endswith("…")))

    @cached_property
    def prose(self) -> str:
        """The notes and closing words of the entry."""
        notes = (split_note(line)[0] for line in self.lines)
        return "\n".join(filter(None, (*notes, self.closing_words)))

    @cached_property
    def errors(self) -> tuple[str, ...]:
        """The lines that state an error."""
        return tuple(line for line in self.lines if line.startswith(ERROR_START))


def find_last_outcome(entry: JournalEntry) -> str:
    """Describe the last command of an entry with an exit code or test result; return an empty string without one."""
    for line in reversed(entry.lines):
        if " → " in line and (runs := _LAST_RUN_PATTERN.findall(line)):
            command, outcome = runs[-1]
            return (
                f"ran `{clip(command, _MAX_OUTCOME_CHARS)}` → {clip(outcome, _MAX_OUTCOME_CHARS)}"
            )
    return entry.last_outcome


def list_changed_files(
    *entries: JournalEntry, max_files: int = _MAX_RANGE_FILES
) -> tuple[str, ...]:
    """Return a line that names the latest files that entries changed; no line if no file was changed."""
    names = list(
        dict.fromkeys(name for entry in reversed(entries) for name in reversed(entry.changed_files))
    )
    return (f"changed {', '.join(reversed(names[:max_files]))}",) if names else ()
