"""The default engine: prune, cut, summarise, verify, assemble. It compacts at the threshold, if it can save tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.compaction.composition import (
    SummaryEngine,
    SummaryOrder,
    asks_model,
    fit_sections,
    pinned_text,
    request_messages,
    section_tokens,
    task_lines,
    write_summary,
)
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.journal import AUTHOR, Journal, JournalFold
from everthread.compaction.plan import Plan
from everthread.compaction.summary import (
    HANDOFF,
    RULES,
    TASK,
    WORDS,
    Compaction,
    Sections,
    SummaryRequest,
    TemplateName,
    render_sections,
)
from everthread.compaction.words import Count, render_words
from everthread.errors import ConfigError


class ContextCompressor(SummaryEngine):
    """The engine that replaces the middle of a history by one summary."""

    name = "compressor"
    marker = "marker"

    def __init__(self, services: Services, *, template: TemplateName = "handoff") -> None:
        super().__init__(services)
        self._template: TemplateName = template
        self._last: tuple[str, JournalFold] | None = None
        """The text of the earlier summary, and the journal that was made after it last."""

    async def write(self, plan: Plan, order: SummaryOrder) -> tuple[str, Compaction]:
        services, count = self._services, self._services.counter.text
        fold = self._fold(plan)
        journal, state = fold.journal(), fold.state
        if plan.earlier.ends:  # what stood between several summaries belongs between their entries
            journal = Journal(tuple(sorted(journal.entries, key=lambda entry: entry.first)))
        task = task_lines(plan)
        pinned, dropped = pinned_text(order.notes, plan.budget // 8, count)
        around = count(order.marker) + count(task) + count(pinned) + 40
        request = SummaryRequest(
            messages=request_messages(plan.middle, services),
            pruned=request_messages(plan.pruned, services) if asks_model(services) else (),
            budget=max(plan.summary_budget - around, plan.summary_budget // 2),
            previous=dict(plan.earlier.sections), task=task, focus=order.focus,
            ids=[order.ids[at] for at in plan.covered] if order.ids else (), manual=order.manual,
            journal=journal, state=state,
        )  # fmt: skip
        written = await write_summary(services, request, plan)
        sections = dict(written.sections)
        sections[TASK] = task
        sections[RULES] = "\n".join(filter(None, (pinned, sections.get(RULES, ""))))
        is_brief = services.budget.small or written.author == AUTHOR
        text = self._render(plan, order.marker, sections, is_brief=is_brief)
        return text, Compaction(
            messages=[], summary="", tokens_before=0, tokens_after=0, author=written.author,
            verification=written.verification, warnings=(*written.warnings, *dropped), usage=written.usage,
            state=state.dump(),
        )  # fmt: skip

    def _render(self, plan: Plan, marker: str, sections: Sections, *, is_brief: bool) -> str:
        """The whole summary message, the user's words in what room is left."""
        count = self._services.counter.text
        around = 36 + (0 if is_brief else 4 * sum(not sections.get(name) for name in HANDOFF))
        # Twice its bytes is more than a text's tokens: where so many leave room for all words, none need be counted.
        texts = "".join([marker, *sections, *sections.values()]).encode("utf-8", "surrogatepass")
        room = plan.words_room(around + 2 * len(texts) + 8 * len(sections))
        if room < plan.word_tokens * 21 // 20 + 60 or any(entry.last for entry in plan.words):
            room = plan.words_room(around + count(marker) + section_tokens(sections, count))
            missing = plan.words_least - room
            if missing > 0:  # the user's words are not pushed out by what was written about them
                sections = _make_room(sections, missing, count)
                room = plan.words_room(around + count(marker) + section_tokens(sections, count))
        words = render_words(plan.words, room, count)
        shown = render_sections({**sections, WORDS: words}, template=self._template, brief=is_brief)
        return f"{marker}\n\n{shown}"

    def _fold(self, plan: Plan) -> JournalFold:
        """The journal and the state up to the cut. They continue the last ones where the history continues."""
        facts, turns = plan.facts, plan.covered_turns
        last = self._last[1] if self._last and self._last[0] == plan.earlier.text else None
        if last is not None and last.goes_on(facts, turns):
            fold = last.copy().extend(facts, turns)
        else:
            fold = JournalFold(plan.earlier.journal, self.state_before(plan)).extend(facts, turns)
        self._last = plan.earlier.text, fold
        return fold

    def on_compacted(self, compaction: Compaction) -> None:
        super().on_compacted(compaction)
        if compaction.changed and compaction.state:
            self._last = None

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self._last = None


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    """The factory for the registry. It has one option, `template`."""
    unknown = ", ".join(sorted(set(options) - {"template"}))
    if unknown:
        raise ConfigError(f"engines.compressor: unknown option(s) {unknown}; known: template")
    template = options.get("template", "handoff")
    if template not in ("handoff", "classic"):
        raise ConfigError(f"engines.compressor.template: {template!r} is not allowed; use handoff or classic")
    return ContextCompressor(services, template=template)


def _make_room(sections: Sections, tokens: int, count: Count) -> Sections:
    """The sections shorter by so many tokens; the task and what was pinned stay."""
    fixed = {name: text for name, text in sections.items() if name in (TASK, RULES)}
    others = {name: text for name, text in sections.items() if name not in fixed}
    return {**fixed, **fit_sections(others, max(sum(map(count, others.values())) - tokens, 0), count)}
