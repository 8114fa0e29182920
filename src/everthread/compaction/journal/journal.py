"""The summary without a model: a journal of the work, one entry a turn, made from the structure of the transcript.

An entry has the number of the user's message, the actions (files, commands, calls, errors) and the outcome of the turn.
If the journal is too long, its oldest entries are shortened first (`entry_shortening`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.journal.entries import (
    ENTRY_COUNTS,
    ENTRY_HEADER,
    JournalEntry,
)
from everthread.compaction.journal.entry_shortening import fit_entries
from everthread.compaction.journal.one_line_text import (
    redact_texts,
    write_closing_words,
)
from everthread.compaction.summary.sentences import CountTokens
from everthread.core.messages import count_noun

AUTHOR = "journal"


def describe_author(author: str) -> str:
    """Return an author as text for people: `the journal`, or a model's name."""
    return "the journal" if author == AUTHOR else author


@dataclass(frozen=True, slots=True)
class Journal:
    """The entries of a thread, oldest first."""

    entries: tuple[JournalEntry, ...] = ()

    @property
    def message_count(self) -> int:
        return sum(entry.message_count for entry in self.entries)

    def shorten_to(self, budget: int, count: CountTokens) -> Journal:
        """Return the journal within this many tokens, the oldest entries shortened first."""
        if not self.entries:
            return self
        max_tokens = budget - count(self.intro())
        return Journal(tuple(fit_entries(self.entries, max_tokens, count)))

    def intro(self) -> str:
        """Return the line before the entries that explains them."""
        messages = count_noun(self.message_count, "message")
        return (
            f"(Journal of {messages}, made without a model. [n] is the user's message n; "
            "the entries say what was done during it and how it ended.)"
        )

    def render(self) -> str:
        """Return the journal as text; empty without entries."""
        return (
            "\n".join([self.intro(), *(entry.text for entry in self.entries)])
            if self.entries
            else ""
        )


def parse_journal(text: str) -> Journal:
    """Parse the entries of a journal's text. Other text becomes one entry before them."""
    entries: list[JournalEntry] = []
    background: list[str] = []
    for line in text.split("\n"):
        header = ENTRY_HEADER.match(line)
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
            entries[-1] = replace(
                entries[-1], closing_words=line.removeprefix("- ended: ")
            )
        elif entries and line.startswith("- "):
            entries[-1] = replace(entries[-1], lines=(*entries[-1].lines, line[2:]))
        elif line.strip() and not line.startswith("(Journal of "):
            background.append(line.strip())
    if background:
        entries.insert(0, make_background_entry("\n".join(background), 0))
    return Journal(tuple(entries))


def make_background_entry(text: str, messages: int) -> JournalEntry:
    """Return an entry for the text of an earlier summary that has no entries."""
    (closing,) = redact_texts([write_closing_words(f"From an earlier summary: {text}")])
    return JournalEntry(0, 0, messages, closing_words=closing)


INTRO_START = "(Journal of "
"""The beginning of `Journal.intro`."""
