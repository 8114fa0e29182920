"""The default engine: prune, cut, summarise, verify, assemble. It compacts at the threshold, and not in vain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.compaction.assembly import assemble, system_note
from everthread.compaction.composition import (
    has_content,
    marker_text,
    pinned_text,
    request_messages,
    write_summary,
)
from everthread.compaction.engine import ContextEngine, PromptReports, Services
from everthread.compaction.journal import AUTHOR
from everthread.compaction.plan import NO_MIDDLE, Plan, make_plan, read_earlier, reason_for, state_from_text
from everthread.compaction.pruning import Memo
from everthread.compaction.state import ThreadState
from everthread.compaction.summary import (
    RULES,
    TASK,
    WORDS,
    Compaction,
    CompactionLevel,
    Sections,
    SummaryRequest,
    TemplateName,
    render_sections,
)
from everthread.compaction.task import task_lines
from everthread.compaction.user_words import render_words
from everthread.core.marks import seal_summary
from everthread.core.messages import Messages
from everthread.core.pricing.usage import CanonicalUsage
from everthread.core.redaction import redact
from everthread.core.types import System
from everthread.errors import ConfigError


class ContextCompressor(ContextEngine):
    """One summary in the place of the middle."""

    name = "compressor"

    def __init__(self, services: Services, *, template: TemplateName = "handoff") -> None:
        self._services = services
        self._template: TemplateName = template
        self._reports = PromptReports()
        self._state: ThreadState | None = None
        self._notes: tuple[str, ...] = ()
        self._memo: Memo = {}

    # When

    def update_from_response(self, usage: CanonicalUsage) -> None:
        self._reports.take(usage)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return self._reports.reach(self._services.budget.threshold, prompt_tokens)

    def has_content_to_compress(self, messages: Messages) -> bool:
        return has_content(messages, self._services, self._memo)

    # What

    async def compress(  # noqa: PLR0913 - as every engine
        self,
        messages: Messages,
        *,
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        system: System = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        level: CompactionLevel = CompactionLevel.NORMAL,
        manual: bool = False,
        dry_run: bool = False,
        ids: Sequence[int] | None = None,
    ) -> Compaction:
        """A smaller history; the input itself, with the reason, where there is nothing to win."""
        services, started = self._services, self._services.clock()
        earlier = await read_earlier(messages, services.archive)
        plan = make_plan(
            messages, services, earlier, self._memo, system=system, tools=tools, level=level, reported=current_tokens
        )
        if not plan.has_work:
            return plan.unchanged(NO_MIDDLE, services.clock() - started)
        if dry_run:
            return plan.preview(services.clock() - started)
        if plan.only_prunes:
            result = plan.pruned_only(services.clock() - started)
        else:
            marker = marker_text(plan, "marker", services, tools)
            result = await self._summarise(plan, marker, ids, focus_topic, manual=manual)
        after = services.counter.request(result.messages, system=system, tools=list(tools or ()))
        return plan.settled(result, after, reason_for(manual=manual, level=level), services.clock() - started)

    async def _summarise(
        self, plan: Plan, marker: str, ids: Sequence[int] | None, focus: str | None, *, manual: bool
    ) -> Compaction:
        services, count = self._services, self._services.counter.text
        state = self._state_before(plan)
        journal = plan.earlier.journal.extend(plan.middle, [plan.turns[at] for at in plan.covered], state)
        task = task_lines(plan)
        pinned, dropped = pinned_text(self._notes, plan.budget // 8, count)
        around = count(marker) + count(task) + count(pinned) + 40
        request = SummaryRequest(
            messages=request_messages(plan.middle, services),
            pruned=request_messages(plan.pruned, services),
            budget=max(plan.summary_budget - around, plan.summary_budget // 2),
            previous=plan.earlier.sections, task=task, focus=focus,
            ids=[ids[at] for at in plan.covered] if ids else (), manual=manual,
            journal=journal, state=state,
        )  # fmt: skip
        written = await write_summary(services, request, plan)
        sections = dict(written.sections)
        sections[TASK] = task
        sections[RULES] = "\n".join(filter(None, (pinned, sections.get(RULES, ""))))
        is_brief = services.budget.small or written.author == AUTHOR
        text = self._render(plan, marker, sections, is_brief=is_brief)
        note = system_note(plan)
        messages, kept = assemble(plan, text, note)
        return Compaction(
            messages=messages, summary=text, tokens_before=plan.tokens_before, tokens_after=0, covered=plan.covered,
            kept=kept, author=written.author, phases=plan.phases(count(text)), verification=written.verification,
            to_store=plan.fit.to_store, steps=plan.fit.steps, warnings=(*written.warnings, *dropped), system_note=note,
            usage=written.usage, state=state.dump(),
        )  # fmt: skip

    def _render(self, plan: Plan, marker: str, sections: Sections, *, is_brief: bool) -> str:
        """The whole summary message, the user's words in what room is left."""
        count = self._services.counter.text
        rest = render_sections(sections, template=self._template, brief=is_brief)
        used = count(marker) + count(rest) + 30
        words = render_words(plan.words, plan.words_room(used), count)
        shown = render_sections({**sections, WORDS: words}, template=self._template, brief=is_brief)
        return seal_summary(redact(f"{marker}\n\n{shown}"), self._services.summary_key)

    def _state_before(self, plan: Plan) -> ThreadState:
        """What was known before this compaction, as a copy."""
        if plan.earlier.state is not None:
            return plan.earlier.state
        if self._state is not None and plan.earlier.text:
            return ThreadState.load(self._state.dump())
        return state_from_text(plan.earlier.sections)

    # Life

    def pin(self, notes: Sequence[str]) -> None:
        self._notes = tuple(notes)

    def on_compacted(self, compaction: Compaction) -> None:
        if not compaction.changed:
            return
        self._reports.on_compacted()
        if compaction.state:  # one that summarised nothing knows nothing new
            self._state = ThreadState.load(compaction.state)

    def update_model(self, services: Services) -> None:
        """Another window, another tokenizer: what was reported before no longer counts."""
        self._services = services
        self._reports.prompt_tokens = 0

    @property
    def compactions(self) -> int:
        return self._reports.compactions

    def dump_state(self) -> dict[str, Any]:
        return self._reports.dump() | ({"thread": self._state.dump()} if self._state is not None else {})

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._reports.load(state)
        thread = state.get("thread")
        # A state of the version before has other fields: it is rebuilt with the summary.
        self._state = ThreadState.load(thread) if isinstance(thread, Mapping) and "todo" in thread else None


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    """The registry's way to make one. It has one option, `template`."""
    unknown = ", ".join(sorted(set(options) - {"template"}))
    if unknown:
        raise ConfigError(f"engines.compressor: unknown option(s) {unknown}; known: template")
    template = options.get("template", "handoff")
    if template not in ("handoff", "classic"):
        raise ConfigError(f"engines.compressor.template: {template!r} is not allowed; use handoff or classic")
    return ContextCompressor(services, template=template)
