"""The summary without a model: a journal of the work, one entry a turn, made from the structure of the transcript.

An entry has the number of the user's message, the actions (files, commands, calls, errors) and the outcome of the turn.
If the journal is too long, its oldest entries are shortened first (`entry_shortening`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.journal.entries import (
    ENTRY_COUNTS,
    ENTRY_HEADER_PATTERN,
    JournalEntry,
)
from everthread.compaction.journal.entry_shortening import (
    fit_entries,
    merge_silent_entries,
)
from everthread.compaction.journal.one_line_text import (
    redact_text,
    shorten_closing_words,
)
from everthread.compaction.summarizers.summarizer import JOURNAL_AUTHOR
from everthread.compaction.summary.sentences import CountTokens
from everthread.core.text import count_noun

_QUIET_NOTE = " that changed nothing left out."
_QUIET_COUNT_PATTERN = re.compile(rf" ([\d,]{{1,12}}) messages?{re.escape(_QUIET_NOTE)}")
INTRO_START = "(Journal of "
"""The beginning of `Journal.render_intro`."""


def describe_author(author: str) -> str:
    """Return an author as text for people: `the journal`, or a model's name."""
    return "the journal" if author == JOURNAL_AUTHOR else author


@dataclass(frozen=True, slots=True)
class Journal:
    """The entries of a thread, oldest first."""

    entries: tuple[JournalEntry, ...] = ()
    quiet_message_count: int = 0
    """The messages of entries that were dropped because they report nothing."""

    @property
    def message_count(self) -> int:
        listed = sum(entry.message_count for entry in self.entries)
        return listed + self.quiet_message_count

    def shorten_to(self, budget: int, count: CountTokens) -> Journal:
        """Return the journal within this many tokens, the oldest entries shortened first."""
        if not self.entries:
            return self
        # The shortened entries may be dropped, and then the line before them says so.
        max_tokens = budget - count(self.render_intro(self.message_count))
        entries = fit_entries(self.entries, max_tokens, count)
        return drop_quiet_entries(entries, self.quiet_message_count)

    def render_intro(self, quiet_message_count: int | None = None) -> str:
        """Return the line before the entries that explains them."""
        messages = count_noun(self.message_count, "message")
        quiet_count = quiet_message_count or self.quiet_message_count
        quiet_messages = (
            f" {count_noun(quiet_count, 'message')}{_QUIET_NOTE}" if quiet_count else ""
        )
        return (
            f"(Journal of {messages}, made without a model. [n] is the user's message n; "
            f"the entries say what was done during it and how it ended.{quiet_messages})"
        )

    def render(self) -> str:
        """Return the journal as text, or an empty string without entries."""
        if self.entries:
            return "\n".join([self.render_intro(), *(entry.text for entry in self.entries)])
        return ""


def drop_quiet_entries(entries: Sequence[JournalEntry], quiet_message_count: int) -> Journal:
    """Return a journal of the entries that report something. If none does, merge them instead.

    `quiet_message_count`: the messages of entries that were dropped before.
    """
    kept_entries = tuple(entry for entry in entries if not entry.is_silent)
    if not kept_entries:
        return Journal(tuple(merge_silent_entries(entries)), quiet_message_count)
    quiet_message_count += sum(entry.message_count for entry in entries if entry.is_silent)
    return Journal(kept_entries, quiet_message_count)


def parse_journal(text: str) -> Journal:
    """Parse the entries of a journal's text. Other text becomes one entry before them."""
    entries: list[JournalEntry] = []
    background: list[str] = []
    quiet_message_count = 0
    for line in text.split("\n"):
        header = ENTRY_HEADER_PATTERN.match(line)
        if header is not None:
            figures = header["figures"] or ""
            counts: dict[str, Any] = {
                name: int(match[1].replace(",", ""))
                for name, pattern in ENTRY_COUNTS.items()
                if (match := pattern.search(figures))
            }
            first = int(header["first"])
            entries.append(
                JournalEntry(
                    first,
                    int(header["last"] or first),
                    int(header["messages"].replace(",", "")),
                    closing_words=header["closing"] or "",
                    is_continued=header["continued"] is not None,
                    **counts,
                )
            )
        elif entries and line.startswith("- ended: "):
            entries[-1] = replace(entries[-1], closing_words=line.removeprefix("- ended: "))
        elif entries and line.startswith("- "):
            entries[-1] = replace(entries[-1], lines=(*entries[-1].lines, line[2:]))
        elif line.startswith(INTRO_START):
            quiet = _QUIET_COUNT_PATTERN.search(line)
            quiet_message_count += int(quiet[1].replace(",", "")) if quiet else 0
        elif line.strip():
            background.append(line.strip())
    if background:
        entries.insert(0, make_background_entry("\n".join(background), 0))
    return Journal(tuple(entries), quiet_message_count)


def make_background_entry(text: str, messages: int) -> JournalEntry:
    """Return an entry for the text of an earlier summary that has no entries."""
    closing = redact_text(shorten_closing_words(f"From an earlier summary: {text}"))
    return JournalEntry(0, 0, messages, closing_words=closing)
