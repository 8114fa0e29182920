"""Engines that plan and finish: the base of both built-in engines.

    step = engine.start(engine_input, state)
    while isinstance(step, Plan):
        drafts = await request_drafts(summarizer, step.requests)
        step = engine.resume(step, drafts)

`PlanningEngine.run` is this loop. Its caller chooses how drafts are requested, and where each step runs. A worker
process takes the same steps, one for each call. The steps read no store and call no model, and their values can be
pickled, so they can run in a thread or in another process. An engine keeps only what it has read of messages, so that
the next plan reads only new ones. The result replaces the middle of a history with one summary message.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from everthread.compaction.compaction_result import (
    Compaction,
    append_new_messages,
    merge_compactions,
)
from everthread.compaction.cutting.cut_plan import CutPlan
from everthread.compaction.cutting.cut_planner import plan_cut
from everthread.compaction.cutting.cut_results import (
    accept_if_smaller,
    explain_no_work,
    find_trigger,
    list_phases,
    make_pruned_result,
    make_unchanged_result,
)
from everthread.compaction.cutting.pruning import redact_message
from everthread.compaction.draft_requests import request_drafts
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.engine_input import (
    CompactionInput,
    EngineState,
    RefitInput,
    StoredGraph,
)
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.summarizers.summarizer import (
    SummaryDraft,
    SummaryRequest,
    Verification,
    may_call_model,
)
from everthread.compaction.summary.assembly import assemble_messages, make_system_note
from everthread.compaction.summary.earlier_summary import (
    EarlierSummary,
    parse_earlier_summary,
    read_earlier_summary,
    read_state_from_sections,
)
from everthread.compaction.summary.summary_message import render_marker
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message, Messages
from everthread.core.secrets.redaction import redact
from everthread.core.summary_marks import is_summary, seal_summary, without_summary
from everthread.core.types import Node


@dataclass(frozen=True, slots=True)
class SummaryInput:
    """The messages that one summary replaces, the call of `compress` it belongs to, and the engine's state."""

    cut_plan: CutPlan
    compaction_input: CompactionInput
    state: EngineState
    marker: str
    """The first lines of the summary message."""

    def hide_secrets(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages for a summariser, redacted if it is a model. The journal redacts its own text."""
        if not self.compaction_input.has_model:
            return messages
        return [redact_message(message) for message in messages]


class PendingSummary(Protocol):
    """A summary that was begun and waits for drafts. Each engine has its own class."""

    @property
    def requests(self) -> Sequence[SummaryRequest]: ...


@dataclass(frozen=True, slots=True)
class WrittenSummary:
    """A finished summary, who wrote it, and the state to keep. A `Compaction` is made of it."""

    text: str
    """The summary message without its last line."""
    author: str
    verification: Verification
    warnings: tuple[str, ...]
    usage: tuple[Mapping[str, Any], ...]
    state: Mapping[str, Any]
    """The engine's state after the compaction is committed."""
    nodes: tuple[Node, ...] = ()
    """New nodes of the graph, for an engine that makes one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A compaction that has begun."""

    compaction_input: CompactionInput
    cut_plan: CutPlan
    start_time: float
    pending: PendingSummary | None = None
    """None if nothing is summarised."""

    @property
    def requests(self) -> Sequence[SummaryRequest]:
        """The drafts to ask for, in order; empty if the journal writes the summary."""
        return self.pending.requests if self.pending is not None else ()


AskForDrafts = Callable[[Sequence[SummaryRequest]], Awaitable[list[SummaryDraft]]]
"""Returns a draft for each request, in order."""
TakeStep = Callable[[], Compaction | Plan]
CallStep = Callable[[TakeStep], Awaitable[Compaction | Plan]]
"""Calls a step and returns its result, as `asyncio.to_thread` does."""


async def _call(take_step: TakeStep) -> Compaction | Plan:
    return take_step()


class PlanningEngine(ContextEngine):
    """An engine that compacts in two steps, plan and finish, and replaces the middle with one summary message.

    Neither step calls back, reads a store or calls a model.
    """

    marker: str
    """The text file with the first lines of the summary message."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._prompt_tokens = 0
        """The provider's last count of the prompt."""
        self.compaction_count = 0
        self._notes: tuple[str, ...] = ()
        self._thread_state: ThreadState | None = None
        """The state of the thread after the last compaction."""

    @abc.abstractmethod
    def begin_summary(self, summary_input: SummaryInput) -> PendingSummary:
        """Begin a summary, and return it with the drafts to request."""

    @abc.abstractmethod
    def continue_summary(
        self, pending: Any, drafts: Sequence[SummaryDraft]
    ) -> PendingSummary | WrittenSummary:
        """Continue with the requested drafts; return the finished summary, or a pending one with further requests."""

    def read_thread_state(self, earlier_summary: EarlierSummary) -> ThreadState:
        """Read the state of the thread from the earlier summary."""
        return read_state_from_sections(earlier_summary.sections)

    def load_thread_state(self, earlier_summary: EarlierSummary, state: EngineState) -> ThreadState:
        """Return a copy of the thread's state before this compaction; if unknown, read it from the earlier summary."""
        if earlier_summary.state is not None:
            return earlier_summary.state.copy()
        if state.thread is not None and earlier_summary.text:
            return state.thread.copy()
        return self.read_thread_state(earlier_summary)

    def current_state(self, graph: StoredGraph | None = None) -> EngineState:
        """Return the engine's state. `graph`: the graph that was read from the store, if any."""
        return EngineState(self._thread_state, self._notes, graph)

    async def read_state(self, compaction_input: CompactionInput) -> EngineState:  # noqa: ARG002
        """Return the engine's state, with everything from the store that a plan for this input needs."""
        return self.current_state()

    def plan(self, compaction_input: CompactionInput, state: EngineState) -> Plan:
        """Decide what a compaction replaces, and which drafts it needs. `finish` completes it."""
        services = self._services
        if compaction_input.dry_run:
            compaction_input = replace(compaction_input, has_model=False)
        plan = Plan(compaction_input, self._plan_cut(compaction_input), services.clock())
        if not plan.cut_plan.has_work or plan.cut_plan.only_prunes:
            return plan
        marker = render_marker(plan.cut_plan, self.marker, services, compaction_input.tools)
        summary_input = SummaryInput(plan.cut_plan, compaction_input, state, marker)
        return replace(plan, pending=self.begin_summary(summary_input))

    def finish(self, plan: Plan, drafts: Sequence[SummaryDraft]) -> Compaction | Plan:
        """Return the compaction, given a draft for each request; or a plan with further requests."""
        if plan.pending is None:
            compaction = self._finish_without_summary(plan)
        else:
            step = self.continue_summary(plan.pending, drafts)
            if not isinstance(step, WrittenSummary):
                return replace(plan, pending=step)
            compaction = self._accept_if_smaller(plan, self._assemble_result(plan.cut_plan, step))
        duration = self._services.clock() - plan.start_time
        compaction = replace(compaction, duration=duration)
        is_preview = plan.compaction_input.dry_run and compaction.changed
        return (
            _make_preview(compaction, plan.compaction_input.messages) if is_preview else compaction
        )

    def _refit(self, refit_input: RefitInput, state: EngineState) -> Compaction:
        """Do the work of `refit`, with the state that was read for its history.

        Prune and cut the new messages. If that is not enough, let the journal summarise more messages.
        """
        compaction_input = refit_input.to_compaction_input()
        appended = append_new_messages(
            refit_input.prepared_compaction, refit_input.new_messages, refit_input.prepared_count
        )
        # The copy gets the state after the prepared compaction, which is not committed yet.
        engine_copy = copy.copy(self)
        engine_copy.on_compacted(refit_input.prepared_compaction)
        compaction = engine_copy._prune_kept_messages(compaction_input)
        if compaction.tokens_after > self._services.budget.max_compacted_tokens:
            plan = engine_copy.plan(compaction_input, engine_copy.current_state(state.graph))
            second_compaction = engine_copy.finish(plan, ())
            if isinstance(second_compaction, Compaction) and second_compaction.changed:
                compaction = second_compaction
        return merge_compactions(appended, compaction)

    async def compress(self, messages: Messages, **options: Any) -> Compaction:
        """Return a smaller history; return the input, with the reason, if nothing can be saved."""
        summarizer = self._services.summarizer
        has_model = may_call_model(summarizer)
        compaction_input = CompactionInput(messages, **options, has_model=has_model)
        return await self.run(compaction_input, partial(request_drafts, summarizer), _call)

    async def refit(
        self, prepared: Compaction, since: Messages, *, start: int, **options: Any
    ) -> Compaction:
        refit_input = RefitInput(prepared, since, start, **options)
        return await self.run(
            refit_input, partial(request_drafts, self._services.summarizer), _call
        )

    async def run(
        self, engine_input: CompactionInput | RefitInput, ask: AskForDrafts, call: CallStep
    ) -> Compaction:
        """Compact or refit with the drafts of `ask`. `call` runs each step, here or in a thread."""
        state = await self.read_state(engine_input.to_compaction_input())
        step = await call(partial(self.start, engine_input, state))
        while isinstance(step, Plan):
            drafts = await ask(step.requests)
            step = await call(partial(self.resume, step, drafts))
        return step

    def start(
        self, engine_input: CompactionInput | RefitInput, state: EngineState
    ) -> Compaction | Plan:
        """Compact until drafts are needed, and return the plan that asks for them; or else finish, as a refit does."""
        if isinstance(engine_input, RefitInput):
            return self._refit(engine_input, state)
        plan = self.plan(engine_input, state)
        return plan if plan.requests else self.resume(plan, ())

    def resume(self, plan: Plan, drafts: Sequence[SummaryDraft]) -> Compaction | Plan:
        """Continue a plan with its drafts until it needs further ones or is finished."""
        step = self.finish(plan, drafts)
        while isinstance(step, Plan) and not step.requests:
            step = self.finish(step, ())
        return step

    def has_work(self, compaction_input: CompactionInput) -> bool:
        """Return whether a plan would make anything smaller."""
        return self._plan_cut(compaction_input).has_work

    def has_content_to_compress(self, messages: Messages) -> bool:
        return self.has_work(CompactionInput(messages))

    def update_from_response(self, usage: CanonicalUsage) -> None:
        """Remember the size of the prompt. Output and reasoning do not count, as the next prompt may lack them."""
        self._prompt_tokens = usage.prompt_tokens or self._prompt_tokens

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        tokens = self._prompt_tokens if prompt_tokens is None else prompt_tokens
        return tokens >= self._services.budget.threshold

    def pin(self, notes: Sequence[str]) -> None:
        self._notes = tuple(notes)

    def on_compacted(self, compaction: Compaction) -> None:
        if not compaction.changed:
            return
        self._prompt_tokens = 0
        self.compaction_count = self.compaction_count + 1
        if compaction.state:  # empty if nothing was summarised
            self._thread_state = ThreadState.load(compaction.state)

    def update_model(self, services: Services) -> None:
        """Use another window and tokenizer. The reported prompt size no longer applies."""
        self._services = services
        self._prompt_tokens = 0

    def dump_state(self) -> dict[str, Any]:
        state = {
            "prompt_tokens": self._prompt_tokens,
            "compactions": self.compaction_count,
        }
        if self._thread_state is None:
            return state
        return {**state, "thread": self._thread_state.dump()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._prompt_tokens = state.get("prompt_tokens", 0)
        self.compaction_count = state.get("compactions", 0)
        thread = state.get("thread")
        self._thread_state = ThreadState.load(thread) if isinstance(thread, Mapping) else None

    def _plan_cut(self, compaction_input: CompactionInput) -> CutPlan:
        earlier_summary = read_earlier_summary(compaction_input.messages)
        return plan_cut(compaction_input, earlier_summary, self._services)

    def _finish_without_summary(self, plan: Plan) -> Compaction:
        """Finish a plan that summarises nothing: prune, or return the input with a reason."""
        if plan.cut_plan.has_work:
            return self._accept_if_smaller(
                plan, make_pruned_result(plan.cut_plan, self._services.counter)
            )
        reason = explain_no_work(plan.cut_plan, self._services.budget)
        return make_unchanged_result(plan.cut_plan, reason)

    def _accept_if_smaller(self, plan: Plan, result: Compaction) -> Compaction:
        """Return the result with its sizes, or the input if the result is not smaller."""
        reason = find_trigger(
            manual=plan.compaction_input.manual, level=plan.compaction_input.level
        )
        return accept_if_smaller(plan.cut_plan, result, reason)

    def _prune_kept_messages(self, compaction_input: CompactionInput) -> Compaction:
        """Make the kept messages smaller: old results become lines, oversized ones are cut."""
        services = self._services
        started = services.clock()
        earlier_summary = parse_earlier_summary(compaction_input.messages)
        plan = plan_cut(compaction_input, earlier_summary, services)
        plan = plan.with_middle_kept()
        if plan.tokens_before * plan.provider_scale <= services.budget.max_compacted_tokens:
            compaction = make_unchanged_result(plan, "it is small enough")
        else:
            pruned_result = make_pruned_result(plan, services.counter)
            compaction = accept_if_smaller(plan, pruned_result, "background")
        return replace(compaction, duration=services.clock() - started)

    def _assemble_result(self, cut_plan: CutPlan, written_summary: WrittenSummary) -> Compaction:
        """Return the result with the summary put between head and tail."""
        note = make_system_note(cut_plan)
        counter = self._services.counter
        text = seal_summary(redact(written_summary.text), self._services.summary_key)
        messages, origins = assemble_messages(cut_plan, text, note)
        summary = next(message for message in messages if is_summary(message))
        remainder = without_summary(summary)
        tokens = counter.message(summary)
        if remainder is not None:
            tokens -= counter.message(remainder)
        return Compaction(
            messages=messages,
            summary=text,
            tokens_before=cut_plan.tokens_before,
            tokens_after=cut_plan.count_request(messages, origins, counter),
            covered=cut_plan.covered_indices,
            kept=origins,
            author=written_summary.author,
            phases=list_phases(cut_plan, tokens, counter),
            verification=written_summary.verification,
            to_store=cut_plan.cut.to_store,
            boundaries=cut_plan.cut.reasons,
            steps=cut_plan.cut.steps,
            warnings=written_summary.warnings,
            system_note=note,
            usage=written_summary.usage,
            state=written_summary.state,
            nodes=written_summary.nodes,
        )


def _make_preview(compaction: Compaction, messages: Messages) -> Compaction:
    """Return the plan of a compaction as a preview, with unchanged messages."""
    return replace(
        compaction,
        messages=list(messages),
        kept=tuple(range(len(messages))),
        summary="",
        changed=False,
        reason="preview",
        steps=(*compaction.boundaries, *compaction.steps),
        usage=(),
        nodes=(),
        state={},
    )


def as_planning_engine(engine: ContextEngine) -> PlanningEngine | None:
    """Return the engine if it works by `plan` and `finish`; None if it overrides `compress` or `refit`."""
    if not isinstance(engine, PlanningEngine):
        return None
    method_names = ("compress", "refit", "has_content_to_compress")
    overrides_whole_work = any(
        getattr(type(engine), name) is not getattr(PlanningEngine, name) for name in method_names
    )
    return None if overrides_whole_work else engine
