"""What the built-in engines share: plan, have the middle written down, and take the result only where it is smaller."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.composition import assemble, marker_text, system_note
from everthread.compaction.engine import ContextEngine, PromptReports, Services
from everthread.compaction.history import Memory
from everthread.compaction.plan import Earlier, Plan, make_plan, read_earlier, reason_for
from everthread.compaction.summary import Compaction, CompactionLevel
from everthread.core.messages import Messages
from everthread.core.pricing import CanonicalUsage
from everthread.core.redaction import LineRedactor
from everthread.core.transcript import is_summary, seal_summary, without_summary
from everthread.core.types import System


@dataclass(frozen=True, slots=True)
class SummaryOrder:
    """What a compaction asks of its engine, besides the plan."""

    marker: str
    """How the summary message begins."""
    notes: tuple[str, ...]
    """Texts somebody pinned."""
    focus: str | None
    ids: Sequence[int] | None
    manual: bool


class SummaryEngine(ContextEngine):
    """An engine that puts one summary message in the place of the middle."""

    marker: str
    """The text file the summary message begins with."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reports = PromptReports()
        self._memory = Memory()
        self._redactor = LineRedactor()
        self._notes: tuple[str, ...] = ()

    @abc.abstractmethod
    async def write(self, plan: Plan, order: SummaryOrder) -> tuple[str, Compaction]:
        """The summary message without its last line, and all else of the result that is the engine's to say."""

    # When

    def update_from_response(self, usage: CanonicalUsage) -> None:
        self._reports.take(usage)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return self._reports.reach(self._services.budget.threshold, prompt_tokens)

    def has_content_to_compress(self, messages: Messages) -> bool:
        return make_plan(messages, self._services, Earlier(), self._memory, system=None, tools=None).has_work

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
            messages, services, earlier, self._memory, system=system, tools=tools, level=level, reported=current_tokens
        )
        if not plan.has_work:
            return plan.unchanged(plan.no_work_reason(services.budget), services.clock() - started)
        if dry_run:
            return plan.preview(services.clock() - started)
        if plan.only_prunes:
            result = plan.pruned_only(services.clock() - started)
        else:
            marker = marker_text(plan, self.marker, services, tools)
            text, result = await self.write(plan, SummaryOrder(marker, self._notes, focus_topic, ids, manual))
            result = self._assemble(plan, seal_summary(self._redactor.redact(text), services.summary_key), result)
        after = plan.fixed + plan.count(result.messages, result.kept, services.counter)
        return plan.settled(result, after, reason_for(manual=manual, level=level), services.clock() - started)

    def _assemble(self, plan: Plan, text: str, result: Compaction) -> Compaction:
        note, counter = system_note(plan), self._services.counter
        messages, origins = assemble(plan, text, note)
        summary = next(message for message in messages if is_summary(message))
        rest = without_summary(summary)
        tokens = counter.message(summary) - (0 if rest is None else counter.message(rest))
        return replace(
            result, messages=messages, summary=text, covered=plan.covered, kept=origins, to_store=plan.fit.to_store,
            phases=plan.phases(tokens), steps=plan.fit.steps, system_note=note,
        )  # fmt: skip

    # Life

    def pin(self, notes: Sequence[str]) -> None:
        self._notes = tuple(notes)

    def on_compacted(self, compaction: Compaction) -> None:
        if compaction.changed:
            self._reports.on_compacted()

    def update_model(self, services: Services) -> None:
        """Another window, another tokenizer: what was reported before no longer counts."""
        self._services = services
        self._reports.prompt_tokens = 0

    @property
    def compactions(self) -> int:
        return self._reports.compactions

    def dump_state(self) -> dict[str, Any]:
        return self._reports.dump()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._reports.load(state)
