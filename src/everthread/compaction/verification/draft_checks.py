"""Check the draft of a summary against its sources, and complete it; write the journal if no draft is usable."""

from __future__ import annotations

from dataclasses import replace

from everthread.compaction.cutting.cut_plan import CutPlan
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.summarizers.summarizer import (
    JOURNAL_AUTHOR,
    SummaryDraft,
    SummaryRequest,
    Verification,
)
from everthread.compaction.summary.sections import (
    ANSWERED,
    BLOCKED,
    CRITICAL,
    DECISIONS,
    FILES,
    GOAL,
    PENDING_ASKS,
    RULES,
    Sections,
)
from everthread.compaction.summary.sentences import (
    CountTokens,
    keep_newest_lines,
)
from everthread.compaction.summary.state_sections import render_files, render_open_errors
from everthread.compaction.summary.summary_message import (
    count_section_tokens,
    drop_lines_to_fit,
    strip_pinned_notes,
)
from everthread.compaction.verification.unsupported_lines import (
    join_sources,
    mark_sections,
)
from everthread.core.summary_marks import neutralize_summary_marks
from everthread.core.tokens import TokenCounter

TOO_MANY_UNKNOWN_NAMES = "named too much that no source says"
LINES_TOO_LONG = "wrote lines that are far longer than a summary"
_MODEL_ONLY_SECTIONS = (GOAL, RULES, DECISIONS, ANSWERED, PENDING_ASKS, CRITICAL)
"""Sections that only a model can write. The journal copies them from an earlier summary."""
MAX_BUDGET_MULTIPLE = 4
"""A model's summary is cut to this many times its budget before it is checked, to save time."""


def check_draft(
    draft: SummaryDraft, request: SummaryRequest, plan: CutPlan, count: CountTokens
) -> SummaryDraft | str:
    """Mark unverified lines of a model's draft and add missing facts, or return the reason to refuse the draft."""
    sections = {name: neutralize_summary_marks(text) for name, text in draft.sections.items()}
    sections = drop_lines_to_fit(sections, MAX_BUDGET_MULTIPLE * request.budget, count)
    marked = mark_sections(sections, join_sources(plan.history.messages, plan.earlier_summary.text))
    refusal = ""
    if not marked.sections:
        refusal = LINES_TOO_LONG
    elif marked.should_be_refused:
        refusal = TOO_MANY_UNKNOWN_NAMES
    if refusal:
        return f"{draft.author} {refusal}; its summary was not used"
    completed_sections, verification = _add_missing_facts(marked.sections, request, count)
    return SummaryDraft(
        completed_sections,
        draft.author,
        verification=replace(
            verification,
            checked=marked.checked_count,
            unverified=marked.unverified_count,
        ),
    )


def _add_missing_facts(
    sections: Sections, request: SummaryRequest, count: CountTokens
) -> tuple[Sections, Verification]:
    """Add the changed files and open errors that the sections lack, within the budget, and count these facts."""
    budget = request.budget
    state = request.state or ThreadState()
    draft_text = "\n".join(sections.values())
    errors = [
        line
        for line in render_open_errors(state).split("\n")
        if line and line.rpartition("): ")[2][:80] not in draft_text
    ]
    fact_count = len(state.list_changed_files()) + len(state.list_recent_errors())
    missing_paths = [
        path
        for path in state.list_changed_files()
        if path.removeprefix(state.root_prefix) not in draft_text
    ]
    added_count = len(missing_paths) + len(errors)
    errors = keep_newest_lines(errors, budget // 6, count)
    files_section = (
        render_files(state, budget // 8, count, mentioned_text=draft_text) if missing_paths else ""
    )
    file_lines = [line for line in files_section.split("\n") if line.startswith("- changed")]
    completed_sections = drop_lines_to_fit(
        sections,
        budget - sum(count(line) + 2 for line in (*errors, *file_lines)),
        count,
    )
    for name, lines in ((BLOCKED, errors), (FILES, file_lines)):
        if lines:
            completed_sections[name] = "\n".join(
                filter(None, (completed_sections.get(name, ""), *lines))
            )
    return completed_sections, Verification(
        facts=fact_count, present=fact_count - added_count, added=added_count
    )


def fill_from_journal(
    draft: SummaryDraft, request: SummaryRequest, counter: TokenCounter
) -> SummaryDraft:
    """Return the draft, or if it has no sections, the journal with the draft's warnings and usage.

    Sections that the journal cannot write are copied from the earlier summary.
    """
    count = counter.text
    if not draft.sections:
        journal_draft = JournalWriter(counter).write(request)
        draft = replace(journal_draft, warnings=draft.warnings, usage=draft.usage)
    copied_sections = {
        name: text
        for name in _MODEL_ONLY_SECTIONS
        if (text := strip_pinned_notes(request.previous.get(name, "")))
    }
    if copied_sections:
        used_tokens = count_section_tokens(draft.sections, count)
        copied_sections = drop_lines_to_fit(
            copied_sections,
            max(request.budget - used_tokens, request.budget // 4),
            count,
        )
    return replace(draft, sections={**copied_sections, **draft.sections}, author=JOURNAL_AUTHOR)
