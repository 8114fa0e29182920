"""The default engine: it compacts when the prompt reaches the threshold, and keeps from doing so in vain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from everthread.core.exchange import System
from everthread.core.facts import rank
from everthread.core.ladder import Strength
from everthread.core.messages import Messages
from everthread.core.pruning import prune
from everthread.core.summary import Compaction, Phase, SummaryRequest, TemplateName
from everthread.core.usage import CanonicalUsage
from everthread.engines.base import ContextEngine, Services
from everthread.engines.compressor.assemble import assemble
from everthread.engines.compressor.cutting import Plan, plan
from everthread.engines.compressor.reading import Reader
from everthread.engines.compressor.state import ThreadState
from everthread.engines.compressor.texts import text as text_file
from everthread.engines.compressor.writing import frame, write

EFFECTIVE = 0.90
"""A compaction is effective if the next reported prompt has at most this share of the one before."""
PAUSE_SECONDS = 300.0
PAUSE_GROWTH = 1.10
STRIKES = 2


@dataclass(frozen=True, slots=True)
class CompressorState:
    """What another process needs to continue."""

    compactions: int = 0
    strikes: int = 0
    prompt_tokens: int = 0
    awaiting: int = 0
    """The prompt's size before the last automatic compaction, until the next report tells what it brought."""
    paused_at: float | None = None
    paused_tokens: int = 0


class ContextCompressor(ContextEngine):
    """Prune, cut, summarise, verify, assemble."""

    name = "compressor"

    def __init__(self, services: Services, *, template: TemplateName = "handoff") -> None:
        self._services = services
        self._template: TemplateName = template
        self._state = CompressorState()
        self._thread = ThreadState()
        self._reader = Reader()

    # When

    def update_from_response(self, usage: CanonicalUsage) -> None:
        """Output and reasoning never count: they do not fill the next prompt as such."""
        tokens = usage.prompt_tokens
        if tokens <= 0:
            return
        state = self._state
        if state.awaiting:
            strikes = 0 if tokens <= EFFECTIVE * state.awaiting else state.strikes + 1
            state = replace(state, strikes=strikes, awaiting=0)
            if strikes == STRIKES:
                state = replace(state, paused_at=self._services.clock(), paused_tokens=tokens)
                self._services.events(
                    "notice",
                    text="Automatic compaction is paused: two in a row made the prompt hardly smaller "
                    f"({tokens:,} tokens). It resumes when the history has grown by a tenth or after five minutes; "
                    "/compress works at any time.",
                )
        self._state = replace(state, prompt_tokens=tokens)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        tokens = self._state.prompt_tokens if prompt_tokens is None else prompt_tokens
        if tokens < self._services.budget.threshold:
            return False
        return not self._paused(tokens)

    def _paused(self, tokens: int) -> bool:
        state = self._state
        if state.paused_at is None:
            return False
        grown = tokens >= PAUSE_GROWTH * state.paused_tokens
        if grown or self._services.clock() - state.paused_at >= PAUSE_SECONDS:
            self._state = replace(state, paused_at=None, paused_tokens=0, strikes=0)
            return False
        return True

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
        reason = "manual" if manual else "overflow" if strength > Strength.NORMAL else "automatic"
        has_middle = made.descent.boundaries.has_middle
        if not has_middle and not _only_cites(made):
            return self._unchanged(made, "there is nothing between what is kept at the start and at the end", started)
        if dry_run:
            return self._preview(made, started)
        if has_middle:
            result = await self._compact(made, ids or range(len(made.messages)), focus_topic, manual=manual)
        else:
            result = replace(
                self._unchanged(made, "", started), messages=made.descent.messages, changed=True, author="none",
                to_store=made.descent.to_store, steps=made.descent.steps,
            )  # fmt: skip
        after = self._services.counter.request(result.messages, system=system, tools=list(tools or ()))
        if after >= made.tokens_before:
            why = f"the result would not be smaller ({made.tokens_before:,} -> {after:,} tokens)"
            return replace(self._unchanged(made, why, started), warnings=result.warnings, usage=result.usage)
        return replace(
            result,
            tokens_before=round(made.tokens_before * made.scale),
            tokens_after=round(after * made.scale),
            reason=reason,
            duration=self._services.clock() - started,
        )

    async def _compact(self, made: Plan, ids: Sequence[int], focus: str | None, *, manual: bool) -> Compaction:
        services, budget = self._services, self._services.budget
        count = services.counter.text
        ranked = rank(made.read[index].facts for index in made.covered)
        known = self._thread.after(made, ranked)
        around = frame(made, known, ranked, ids, count, important=budget.important, small=budget.small)
        request = SummaryRequest(
            messages=made.middle, pruned=made.pruned, budget=around.draft,
            previous=made.previous, task=around.task, focus=focus, ids=[ids[index] for index in made.covered],
            manual=manual, facts=[made.read[index].facts for index in made.covered], ranked=ranked, rules=known.rules,
        )  # fmt: skip
        draft = await services.summarizer.summarize(request)
        written = write(made, around, draft, count, template=self._template, small=budget.small)
        note = "" if made.previous else text_file("system_note")
        result, kept = assemble(made, written.text, note)
        return Compaction(
            messages=result, summary=written.text, tokens_before=made.tokens_before, tokens_after=0,
            covered=made.covered, kept=kept, author=draft.author,
            phases=_phases(made, count(written.text)), verification=written.verification,
            to_store=made.descent.to_store, steps=made.descent.steps,
            warnings=(*draft.warnings, *written.warnings), system_note=note, usage=draft.usage,
            state=known.dump(),
        )  # fmt: skip

    def _unchanged(self, made: Plan, why: str, started: float) -> Compaction:
        return Compaction(
            messages=made.messages, summary="", tokens_before=made.tokens_before, tokens_after=made.tokens_before,
            kept=tuple(range(len(made.messages))), changed=False, reason=why, duration=self._services.clock() - started,
        )  # fmt: skip

    def _preview(self, made: Plan, started: float) -> Compaction:
        """What would be kept, cut and summarised, and the figures; the summary's size is its budget."""
        expected = made.tokens_before - made.middle_tokens + made.budget
        return replace(
            self._unchanged(made, "preview", started), tokens_after=expected, covered=made.covered,
            phases=_phases(made, made.budget), to_store=made.descent.to_store,
            steps=(*made.descent.boundaries.reasons, *made.descent.steps),
        )  # fmt: skip

    # Life

    def on_compacted(self, compaction: Compaction) -> None:
        if not compaction.changed:
            return
        state = replace(self._state, compactions=self._state.compactions + 1, prompt_tokens=0)
        if compaction.reason == "automatic":
            state = replace(state, awaiting=self._state.prompt_tokens or compaction.tokens_before)
        self._state = state
        if compaction.state:  # one that summarised nothing knows nothing new
            self._thread = ThreadState.load(compaction.state)

    def update_model(self, services: Services) -> None:
        """Another window, another tokenizer: what was reported before no longer counts."""
        self._services = services
        self._state = replace(self._state, prompt_tokens=0, awaiting=0)

    @property
    def compactions(self) -> int:
        return self._state.compactions

    def dump_state(self) -> dict[str, Any]:
        return asdict(self._state) | {"thread": self._thread.dump()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        known = {field.name for field in fields(CompressorState)}
        self._state = CompressorState(**{key: value for key, value in state.items() if key in known})
        self._thread = ThreadState.load(state.get("thread", {}))


def _only_cites(made: Plan) -> bool:
    """Whether nothing can be summarised, and what is kept is too large by itself: it is stored and cited then."""
    return bool(made.descent.to_store) and not made.previous


def _phases(made: Plan, summary: int) -> tuple[Phase, ...]:
    kept = made.tokens_before - made.fixed - made.middle_tokens
    cut = made.descent.boundaries
    return (
        Phase(
            "prune", made.middle_tokens, made.pruned_tokens, f"{len(made.covered)} messages as a model is given them"
        ),
        Phase("boundaries", made.tokens_before, made.fixed + kept, f"head {cut.head_end}, tail from {cut.tail_start}"),
        Phase("summarise", made.middle_tokens, summary, f"within {made.budget:,} tokens"),
    )
