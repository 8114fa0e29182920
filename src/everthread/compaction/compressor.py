"""The default engine: prune, cut, summarise, verify, assemble. It compacts at the threshold, if it can save tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.cutting.cut_plan import CutPlan
from everthread.compaction.draft_requests import PendingDraft, empty_draft
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.history.open_requests import write_task
from everthread.compaction.history.thread_facts import ThreadState
from everthread.compaction.journal.journal import AUTHOR, Journal
from everthread.compaction.journal.journal_builder import GrowingJournal
from everthread.compaction.names.names_section import NamesSection
from everthread.compaction.planning_engine import EngineState
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
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
from everthread.compaction.summary.summary_message import (
    count_section_tokens,
    drop_lines_to_fit,
    write_names_section,
    write_pinned_notes,
)
from everthread.compaction.summary.user_quotes import CountTokens, render_quotes
from everthread.compaction.summary_engine import (
    SummaryEngine,
    SummaryOrder,
    WrittenSummary,
)
from everthread.compaction.verification.draft_checks import (
    check_draft,
    fill_from_journal,
)
from everthread.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CompressorWriting:
    """The `SummaryWriting` of this engine."""

    order: SummaryOrder
    request: SummaryRequest
    facts: ThreadState
    """The thread's state at the cut."""
    names: NamesSection
    pinned: str
    warnings: tuple[str, ...]
    """Warnings about the pinned notes."""
    pending: PendingDraft | None
    """None if the journal writes."""

    @property
    def requests(self) -> Sequence[SummaryRequest]:
        return (self.pending.next_request,) if self.pending is not None else ()


class ContextCompressor(SummaryEngine):
    """The engine that replaces the middle of a history by one summary."""

    name = "compressor"
    marker = "marker"

    def __init__(
        self, services: Services, *, template: TemplateName = "handoff"
    ) -> None:
        super().__init__(services)
        self._template: TemplateName = template
        self._last: tuple[str, GrowingJournal] | None = None
        """The text of the earlier summary, and the journal that was made after it last."""

    def begin_writing(self, order: SummaryOrder) -> CompressorWriting:
        count = self._services.counter.text
        plan = order.cut
        compaction_input = order.given
        fold = self._fold(plan, order.state)
        facts = fold.state.prepare_for_summary(plan.facts)
        state = facts.after_messages(*plan.tail_facts_and_turns)
        journal = fold.build_journal(facts.root_prefix, state)
        if plan.earlier_summary.last_turns:
            # Messages between several summaries belong between their entries.
            entries = sorted(journal.entries, key=lambda entry: entry.first_turn)
            journal = Journal(tuple(entries))
        task = write_task(plan)
        pinned, warnings = write_pinned_notes(
            order.state.notes, plan.full_summary_budget // 8, count
        )
        names = NamesSection.plan(state.names, plan.summary_budget)
        around = count(order.marker) + count(task) + count(pinned) + names.room + 40
        request = SummaryRequest(
            messages=order.hide_secrets(plan.middle_messages),
            pruned=order.hide_secrets(plan.pruned)
            if compaction_input.has_model
            else (),
            budget=max(plan.summary_budget - around, plan.summary_budget // 2),
            previous=_without_names(plan.earlier_summary.sections),
            task=task,
            focus=compaction_input.focus_topic,
            ids=[compaction_input.ids[index] for index in plan.covered]
            if compaction_input.ids
            else (),
            manual=compaction_input.manual,
            journal=journal,
            state=state,
        )
        return CompressorWriting(
            order,
            request,
            facts=facts,
            names=names,
            pinned=pinned,
            warnings=warnings,
            pending=PendingDraft(request) if compaction_input.has_model else None,
        )

    def continue_writing(
        self, writing: CompressorWriting, drafts: Sequence[SummaryDraft]
    ) -> CompressorWriting | WrittenSummary:
        counter = self._services.counter
        request = writing.request
        draft = empty_draft()
        if writing.pending is not None:

            def check(draft: SummaryDraft) -> SummaryDraft | str:
                return check_draft(draft, request, writing.order.cut, counter.text)

            outcome = writing.pending.take(drafts[0], check)
            if isinstance(outcome, PendingDraft):
                return replace(writing, pending=outcome)
            draft = outcome
        if draft.author == AUTHOR:
            draft = fill_from_journal(draft, request, counter)
        return self._compose(writing, draft)

    def _compose(
        self, writing: CompressorWriting, draft: SummaryDraft
    ) -> WrittenSummary:
        """Put the sections of a draft together with the parts that the engine writes itself."""
        rules = filter(None, (writing.pinned, draft.sections.get(RULES, "")))
        sections = {
            **draft.sections,
            TASK: writing.request.task,
            RULES: "\n".join(rules),
        }
        is_brief = self._services.budget.is_small or draft.author == AUTHOR
        result = Compaction(
            messages=[],
            summary="",
            tokens_before=0,
            tokens_after=0,
            author=draft.author,
            verification=draft.verification,
            warnings=(*draft.warnings, *writing.warnings),
            usage=draft.usage,
            state=writing.facts.dump(),
        )
        return WrittenSummary(
            self._render(writing, sections, is_brief=is_brief), result
        )

    def _render(
        self, writing: CompressorWriting, sections: Sections, *, is_brief: bool
    ) -> str:
        """Return the whole summary message: the user's words in the room that is left, then the names in use."""
        count = self._services.counter.text
        plan = writing.order.cut
        marker = writing.order.marker
        names = writing.names
        around = (
            names.room
            + 36
            + (
                0
                if is_brief
                else 4 * sum(not sections.get(name) for name in HANDOFF_SECTIONS)
            )
        )
        # A text has fewer tokens than twice its bytes. If even those leave room for all words, nothing is counted.
        texts = "".join([marker, *sections, *sections.values()]).encode(
            "utf-8", "surrogatepass"
        )
        room = plan.user_words_room(around + 2 * len(texts) + 8 * len(sections))
        if room < plan.user_words_tokens * 21 // 20 + 60 or any(
            entry.range_end for entry in plan.user_words
        ):
            room = plan.user_words_room(
                around + count(marker) + count_section_tokens(sections, count)
            )
            missing_tokens = plan.min_user_words_tokens - room
            if missing_tokens > 0:
                # The summary must not push out the user's own words.
                sections = _make_room(sections, missing_tokens, count)
                room = plan.user_words_room(
                    around + count(marker) + count_section_tokens(sections, count)
                )
        words = render_quotes(plan.user_words, room, count)
        summary_text = "\n".join([marker, *sections, *sections.values(), words])
        names_text = write_names_section(names, plan, summary_text, count)
        sections_text = render_sections(
            {**sections, USER_WORDS: words, NAMES: names_text},
            template=self._template,
            skip_empty=is_brief,
        )
        return f"{marker}\n\n{sections_text}"

    def _fold(self, plan: CutPlan, state: EngineState) -> GrowingJournal:
        """Return journal and facts up to the cut; they continue the last ones if the history continues."""
        facts = plan.facts
        turns = plan.covered_turns
        last_fold = None
        if self._last and self._last[0] == plan.earlier_summary.text:
            last_fold = self._last[1]
        if last_fold is not None and last_fold.can_extend_to(facts, turns):
            fold = last_fold.copy().extend(facts, turns)
        else:
            fold = GrowingJournal(
                plan.earlier_summary.journal,
                self.facts_before(plan.earlier_summary, state),
            ).extend(facts, turns)
        self._last = plan.earlier_summary.text, fold
        return fold

    def on_compacted(self, compaction: Compaction) -> None:
        super().on_compacted(compaction)
        if compaction.changed and compaction.state:
            self._last = None

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._last = None


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    """Create the engine for the registry. The only option is `template`."""
    unknown = ", ".join(sorted(set(options) - {"template"}))
    if unknown:
        raise ConfigError(
            f"engines.compressor: unknown option(s) {unknown}; known: template"
        )
    template = options.get("template", "handoff")
    if template not in ("handoff", "classic"):
        raise ConfigError(
            f"engines.compressor.template: {template!r} is not allowed; use handoff or classic"
        )
    return ContextCompressor(services, template=template)


def _without_names(sections: Mapping[str, str]) -> Sections:
    """Return the sections that a summariser updates: the engine lists the names itself."""
    return {name: text for name, text in sections.items() if name != NAMES}


def _make_room(sections: Sections, tokens: int, count: CountTokens) -> Sections:
    """Shorten the sections by this many tokens, except the task and the pinned notes."""
    fixed_sections = {
        name: text for name, text in sections.items() if name in (TASK, RULES)
    }
    other_sections = {
        name: text for name, text in sections.items() if name not in fixed_sections
    }
    return {
        **fixed_sections,
        **drop_lines_to_fit(
            other_sections,
            max(sum(map(count, other_sections.values())) - tokens, 0),
            count,
        ),
    }
