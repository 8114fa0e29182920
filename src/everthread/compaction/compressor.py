"""The default engine: prune, cut, summarise, verify, assemble. It compacts at the threshold, if it can save tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.draft_requests import PendingDraft, empty_draft
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.history.open_requests import render_task
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.journal.journal import Journal
from everthread.compaction.journal.journal_builder import JournalBuilder
from everthread.compaction.names.names_section import NamesSection
from everthread.compaction.planning_engine import (
    PlanningEngine,
    SummaryInput,
    WrittenSummary,
)
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.compaction.summary.earlier_summary import EarlierSummary
from everthread.compaction.summary.sections import (
    HANDOFF_SECTIONS,
    NAMES,
    RULES,
    TASK,
    USER_WORDS,
    Sections,
    TemplateName,
    render_sections,
)
from everthread.compaction.summary.sentences import CountTokens
from everthread.compaction.summary.summary_message import (
    count_section_tokens,
    drop_lines_to_fit,
    render_names_section,
    render_pinned_notes,
)
from everthread.compaction.summary.user_quotes import render_quotes
from everthread.compaction.verification.draft_checks import (
    check_draft,
    fill_from_journal,
)
from everthread.core.messages import Message
from everthread.errors import ConfigError

_DRAFT_RESERVE_TOKENS = 40
"""Tokens of a summary that are kept free while a draft is requested, for the headings that the engine writes."""
_FRAME_TOKENS = 36
"""Tokens of a summary message for the headings of the user's words and names, the last line and the margins."""
_EMPTY_SECTION_TOKENS = 4
"""Estimated tokens of the heading and the placeholder of an empty section."""


@dataclass(frozen=True, slots=True)
class PendingCompressorSummary:
    """A summary that the compressor has begun."""

    summary_input: SummaryInput
    request: SummaryRequest
    thread_state: ThreadState
    """The state of the thread at the end of the covered messages."""
    names: NamesSection
    pinned_notes: str
    warnings: tuple[str, ...]
    """Warnings about the pinned notes."""
    pending_draft: PendingDraft | None
    """None if the journal writes the summary."""

    @property
    def requests(self) -> Sequence[SummaryRequest]:
        return (self.pending_draft.next_request,) if self.pending_draft is not None else ()


class ContextCompressor(PlanningEngine):
    """The engine that replaces the middle of a history with one summary."""

    name = "compressor"
    marker = "marker"

    def __init__(self, services: Services, *, template: TemplateName = "handoff") -> None:
        super().__init__(services)
        self._template: TemplateName = template

    def begin_summary(self, summary_input: SummaryInput) -> PendingCompressorSummary:
        count = self._services.counter.text
        cut_plan = summary_input.cut_plan
        compaction_input = summary_input.compaction_input
        covered_state = self.load_thread_state(cut_plan.earlier_summary, summary_input.state)
        covered_facts = cut_plan.list_covered_facts()
        journal_builder = JournalBuilder.read(
            covered_facts,
            cut_plan.list_covered_turns(),
            covered_state,
            cut_plan.earlier_summary.journal,
        )
        covered_state = covered_state.prepare_for_summary(covered_facts)
        state = cut_plan.add_tail(covered_state)
        journal = journal_builder.build_journal(state, covered_state.root_prefix)
        journal = _sort_joined_entries(journal, cut_plan.earlier_summary)
        task = render_task(cut_plan.history)
        pinned_notes, warnings = render_pinned_notes(
            summary_input.state.notes, cut_plan.budget.full_tokens // 8, count
        )
        names = NamesSection.plan(
            state.names,
            cut_plan.budget.tokens,
            continues=bool(cut_plan.earlier_summary.text),
        )
        other_tokens = (
            count(summary_input.marker)
            + count(task)
            + count(pinned_notes)
            + names.max_tokens
            + _DRAFT_RESERVE_TOKENS
        )
        pruned_messages: Sequence[Message] = ()
        if compaction_input.has_model:
            pruned_messages = summary_input.hide_secrets(cut_plan.prune_covered_messages())
        ids: Sequence[int] = ()
        if compaction_input.ids:
            ids = [compaction_input.ids[index] for index in cut_plan.covered_indices]
        request = SummaryRequest(
            messages=summary_input.hide_secrets(cut_plan.middle_messages),
            pruned=pruned_messages,
            budget=max(cut_plan.budget.tokens - other_tokens, cut_plan.budget.tokens // 2),
            previous=_drop_names_section(cut_plan.earlier_summary.sections),
            task=task,
            focus=compaction_input.focus_topic,
            ids=ids,
            manual=compaction_input.manual,
            journal=journal,
            state=state,
        )
        return PendingCompressorSummary(
            summary_input,
            request,
            thread_state=covered_state,
            names=names,
            pinned_notes=pinned_notes,
            warnings=warnings,
            pending_draft=PendingDraft(request) if compaction_input.has_model else None,
        )

    def continue_summary(
        self, pending: PendingCompressorSummary, drafts: Sequence[SummaryDraft]
    ) -> PendingCompressorSummary | WrittenSummary:
        counter = self._services.counter
        request = pending.request
        draft = empty_draft()
        if pending.pending_draft is not None:

            def check(draft: SummaryDraft) -> SummaryDraft | str:
                return check_draft(draft, request, pending.summary_input.cut_plan, counter.text)

            outcome = pending.pending_draft.receive_draft(drafts[0], check)
            if isinstance(outcome, PendingDraft):
                return replace(pending, pending_draft=outcome)
            draft = outcome
        if not draft.is_from_model:
            draft = fill_from_journal(draft, request, counter)
        return self._compose_summary(pending, draft)

    def _compose_summary(
        self, pending: PendingCompressorSummary, draft: SummaryDraft
    ) -> WrittenSummary:
        """Combine the sections of a draft with the parts that the engine writes itself."""
        rules = filter(None, (pending.pinned_notes, draft.sections.get(RULES, "")))
        sections = {
            **draft.sections,
            TASK: pending.request.task,
            RULES: "\n".join(rules),
        }
        is_brief = self._services.budget.is_small or not draft.is_from_model
        return WrittenSummary(
            text=self._render_summary(pending, sections, is_brief=is_brief),
            author=draft.author,
            verification=draft.verification,
            warnings=(*draft.warnings, *pending.warnings),
            usage=draft.usage,
            state=pending.thread_state.dump(),
        )

    def _render_summary(
        self, pending: PendingCompressorSummary, sections: Sections, *, is_brief: bool
    ) -> str:
        """Return the summary message, with the user's words within the remaining tokens, and the names in use."""
        count = self._services.counter.text
        cut_plan = pending.summary_input.cut_plan
        marker = pending.summary_input.marker
        names = pending.names
        empty_count = sum(not sections.get(name) for name in HANDOFF_SECTIONS)
        other_tokens = names.max_tokens + _FRAME_TOKENS
        if not is_brief:
            other_tokens += _EMPTY_SECTION_TOKENS * empty_count
        sections, words_budget = _fit_user_words(
            pending.summary_input, sections, other_tokens, count=count
        )
        quotes_text = render_quotes(cut_plan.user_words, words_budget, count)
        summary_text = "\n".join([marker, *sections, *sections.values(), quotes_text])
        names_text = render_names_section(names, cut_plan, summary_text, count)
        sections_text = render_sections(
            {**sections, USER_WORDS: quotes_text, NAMES: names_text},
            template=self._template,
            skip_empty=is_brief,
        )
        return f"{marker}\n\n{sections_text}"


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    """Create the engine for the registry. The only option is `template`."""
    unknown = ", ".join(sorted(set(options) - {"template"}))
    if unknown:
        raise ConfigError(f"engines.compressor: unknown option(s) {unknown}; known: template")
    template = options.get("template", "handoff")
    if template not in ("handoff", "classic"):
        raise ConfigError(
            f"engines.compressor.template: {template!r} is not allowed; use handoff or classic"
        )
    return ContextCompressor(services, template=template)


def _sort_joined_entries(journal: Journal, earlier_summary: EarlierSummary) -> Journal:
    """Sort the entries by turn if several summaries were joined: messages between them belong between their entries."""
    if not earlier_summary.last_turns:
        return journal
    entries = sorted(journal.entries, key=lambda entry: entry.first_turn)
    return replace(journal, entries=tuple(entries))


def _drop_names_section(sections: Mapping[str, str]) -> Sections:
    """Return the sections without Names in Use, which the engine writes itself."""
    return {name: text for name, text in sections.items() if name != NAMES}


def _fit_user_words(
    summary_input: SummaryInput,
    sections: Sections,
    other_tokens: int,
    *,
    count: CountTokens,
) -> tuple[Sections, int]:
    """Return the sections and the tokens for the user's words.

    The sections are shortened if they would push out the user's words. `other_tokens`: tokens of the summary message
    besides its marker, these sections and the user's words.
    """
    budget = summary_input.cut_plan.budget
    marker_tokens = count(summary_input.marker)
    words_budget = budget.count_tokens_for_user_words(
        other_tokens + marker_tokens + count_section_tokens(sections, count)
    )
    missing_tokens = budget.min_user_words_tokens - words_budget
    if missing_tokens > 0:
        sections = _shorten_sections(sections, missing_tokens, count)
        words_budget = budget.count_tokens_for_user_words(
            other_tokens + marker_tokens + count_section_tokens(sections, count)
        )
    return sections, words_budget


def _shorten_sections(sections: Sections, tokens: int, count: CountTokens) -> Sections:
    """Shorten the sections by this many tokens, except the task and the pinned notes."""
    fixed_sections = {name: text for name, text in sections.items() if name in (TASK, RULES)}
    other_sections = {name: text for name, text in sections.items() if name not in fixed_sections}
    return {
        **fixed_sections,
        **drop_lines_to_fit(
            other_sections,
            max(sum(map(count, other_sections.values())) - tokens, 0),
            count,
        ),
    }
