"""The default engine: it compacts when the prompt reaches the threshold, and keeps from doing so in vain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from everthread.compaction import reporting
from everthread.compaction.compressor.framing import frame
from everthread.compaction.compressor.state import ThreadState
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.pacing import Pacing
from everthread.compaction.steps.assemble import assemble, note_for
from everthread.compaction.steps.cutting import Plan, plan
from everthread.compaction.steps.pins import without_notes
from everthread.compaction.steps.reading import Reader
from everthread.compaction.steps.writing import write
from everthread.core.exchange import System
from everthread.core.facts import rank
from everthread.core.ladder import Strength
from everthread.core.messages import Messages
from everthread.core.pruning import prune
from everthread.core.summary import RULES, Compaction, SummaryRequest, TemplateName
from everthread.core.usage import CanonicalUsage


class ContextCompressor(ContextEngine):
    """Prune, cut, summarise, verify, assemble."""

    name = "compressor"

    def __init__(self, services: Services, *, template: TemplateName = "handoff") -> None:
        self._services = services
        self._template: TemplateName = template
        self._pacing = Pacing(services)
        self._thread = ThreadState()
        self._notes: tuple[str, ...] = ()
        self._reader = Reader()

    # When

    def update_from_response(self, usage: CanonicalUsage) -> None:
        self._pacing.update_from_response(usage)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return self._pacing.should_compress(prompt_tokens)

    def has_content_to_compress(self, messages: Messages) -> bool:
        made = plan(messages, self._services, self._reader, system=None, tools=None)
        cut = made.descent.boundaries
        return cut.has_middle or bool(prune(messages, protect_from=cut.tail_start, start=cut.head_end).savings)

    # What

    async def compress(
        self,
        messages: Messages,
        *,
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        system: System = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        strength: Strength = Strength.NORMAL,
        manual: bool = False,
        dry_run: bool = False,
        ids: Sequence[int] | None = None,
    ) -> Compaction:
        """A smaller history; the input itself, with the reason, where there is nothing to win."""
        started = self._services.clock()
        made = plan(
            messages,
            self._services,
            self._reader,
            system=system,
            tools=tools,
            strength=strength,
            reported=current_tokens,
        )
        reason = reporting.reason_for(manual=manual, overflow=strength > Strength.NORMAL)
        has_middle = made.descent.boundaries.has_middle
        if not has_middle and not reporting.only_cites(made):
            return reporting.unchanged(made, reporting.NO_MIDDLE, self._since(started))
        if dry_run:
            return reporting.preview(made, self._since(started))
        if has_middle:
            result = await self._compact(made, ids or range(len(made.messages)), focus_topic, manual=manual)
        else:
            result = reporting.cited(made, self._since(started))
        after = self._services.counter.request(result.messages, system=system, tools=list(tools or ()))
        return reporting.settled(result, made, after, reason, self._since(started))

    def _since(self, started: float) -> float:
        return self._services.clock() - started

    async def _compact(self, made: Plan, ids: Sequence[int], focus: str | None, *, manual: bool) -> Compaction:
        services, budget = self._services, self._services.budget
        count = services.counter.text
        if RULES in made.previous:
            made = replace(made, previous={**made.previous, RULES: without_notes(made.previous[RULES])})
        ranked = rank(made.read[index].facts for index in made.covered)
        known = self._thread.after(made, ranked)
        around = frame(
            made, known, ranked, ids, count, important=budget.important, small=budget.small, notes=self._notes,
        )  # fmt: skip
        request = SummaryRequest(
            messages=made.middle, pruned=made.pruned, budget=around.draft,
            previous=made.previous, task=around.task, focus=focus, ids=[ids[index] for index in made.covered],
            manual=manual, facts=[made.read[index].facts for index in made.covered], ranked=ranked, rules=known.rules,
        )  # fmt: skip
        draft = await services.summarizer.summarize(request)
        written = write(made, around, draft, count, template=self._template, small=budget.small)
        note = note_for(made)
        result, kept = assemble(made, written.text, note)
        return Compaction(
            messages=result, summary=written.text, tokens_before=made.tokens_before, tokens_after=0,
            covered=made.covered, kept=kept, author=draft.author,
            phases=reporting.phases(made, count(written.text)), verification=written.verification,
            to_store=made.descent.to_store, steps=made.descent.steps,
            warnings=(*draft.warnings, *written.warnings), system_note=note, usage=draft.usage,
            state=known.dump(),
        )  # fmt: skip

    # Life

    def pin(self, notes: Sequence[str]) -> None:
        self._notes = tuple(notes)

    def on_compacted(self, compaction: Compaction) -> None:
        if not compaction.changed:
            return
        self._pacing.on_compacted(compaction)
        if compaction.state:  # one that summarised nothing knows nothing new
            self._thread = ThreadState.load(compaction.state)

    def update_model(self, services: Services) -> None:
        """Another window, another tokenizer: what was reported before no longer counts."""
        self._services = services
        self._pacing.update_model(services)

    @property
    def compactions(self) -> int:
        return self._pacing.compactions

    def dump_state(self) -> dict[str, Any]:
        return self._pacing.dump() | {"thread": self._thread.dump()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._pacing.load(state)
        self._thread = ThreadState.load(state.get("thread", {}))
