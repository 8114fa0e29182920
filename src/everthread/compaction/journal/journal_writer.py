"""The summariser that writes the journal."""

from __future__ import annotations

from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.journal.journal import Journal
from everthread.compaction.journal.journal_builder import build_journal_and_state
from everthread.compaction.summarizers.summarizer import (
    JOURNAL_AUTHOR,
    SummaryDraft,
    SummaryRequest,
)
from everthread.compaction.summary.sections import DONE
from everthread.compaction.summary.state_sections import render_state_sections
from everthread.core.tokens import TokenCounter


class JournalWriter:
    """A summariser that calls no model and never fails."""

    name = JOURNAL_AUTHOR

    def __init__(self, counter: TokenCounter) -> None:
        self._count = counter.text

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the journal and the sections made from the state, within the budget."""
        return self.write(request)

    def write(self, request: SummaryRequest) -> SummaryDraft:
        """Do the work of `summarize` without awaiting anything."""
        state = request.state or ThreadState()
        journal = request.journal or Journal()
        if request.journal is None:
            journal, state = build_journal_and_state(request.messages)
        sections = render_state_sections(state, request.budget // 3, self._count)
        section_tokens = sum(
            self._count(f"## {name}\n{text}\n\n") for name, text in sections.items()
        )
        journal_text = journal.shorten_to(
            request.budget - section_tokens - 12, self._count
        ).render()
        return SummaryDraft({DONE: journal_text, **sections}, JOURNAL_AUTHOR)
