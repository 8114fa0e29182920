"""The prompt of a client that sends its whole history: a rewrite of its beginning, then the client's own messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everthread.compaction.compaction_result import Compaction
from everthread.core.caching.claude_cache_marks import find_cache_route
from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.types import ModelRequest
from everthread.store.rewrite_records import UNDONE_STATE_KEY, Rewrite
from everthread.thread import events
from everthread.thread.accounting import Accounting
from everthread.thread.caller import recall_rounds
from everthread.thread.caller.caller_setup import CallerSetup
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.caller.prompt_sizes import PromptSizer
from everthread.thread.caller.recall_rounds import RecallRoundsStore
from everthread.thread.caller.rewrite_maker import RewriteDraft, RewriteMaker, RewriteTask
from everthread.thread.caller.rewrite_search import RewriteFinder, rewrite_key
from everthread.thread.engines.engine_jobs import EngineSetup
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.managed_prompt import CompactionOrder
from everthread.thread.model_limits import LearntWindow, ModelLimits
from everthread.thread.policy.call_prices import CallPrices
from everthread.thread.policy.compaction_reason import CompactionReason
from everthread.thread.policy.learnt_usage import LearntUsage
from everthread.thread.policy.notices import (
    MIN_REPEATED_COMPACTIONS,
    make_repeated_compaction_notice,
)
from everthread.thread.policy.prompt_size import PromptSize
from everthread.thread.recovery import ProviderRefusal, RecoveryAttempts, RecoveryStep
from everthread.thread.route import Route
from everthread.thread.thread_setup import SummarizerContext


@dataclass(frozen=True, slots=True)
class CallerServices:
    """Services that the prompts of all requests share."""

    setup: CallerSetup
    accounting: Accounting
    limits: ModelLimits
    rewrite_finder: RewriteFinder
    rewrite_maker: RewriteMaker
    recall_rounds: RecallRoundsStore
    sizer: PromptSizer


class CallerPrompt:
    """The `ManagedPrompt` of one call of a caller."""

    def __init__(
        self, call: PreparedCall, services: CallerServices, answer_tokens: int = 0
    ) -> None:
        self._call = call
        self._services = services
        self._answer_tokens = answer_tokens
        """Tokens of the answer, which the client's next request will hold."""

    @property
    def session_id(self) -> str:
        return self._call.match.thread_id

    @property
    def model(self) -> str:
        return self._call.model

    @property
    def learnt_usage(self) -> LearntUsage:
        return self._call.memory.learnt_usage

    def measure_size(self) -> PromptSize:
        call = self._call
        tokens = self._count_tokens(call.rewrite) + self._answer_tokens
        fixed_tokens = round(
            call.settings.tokens * self.learnt_usage.calibration.factor(call.model)
        )
        return PromptSize(
            tokens,
            fixed_tokens,
            call.compute_budget(self._services.setup.options),
            output_cap=call.settings.output_cap,
            is_mid_turn=call.caller_history.is_mid_turn,
        )

    def make_prices(self) -> CallPrices:
        call = self._call
        has_cache_marks = find_cache_route(call.model, "auto", call.settings.upstream) is not None
        summarizer = self._services.setup.make_summarizer(self._summarizer_context())
        return CallPrices(call.model, "auto", has_cache_marks, summarizer)

    def emit(self, event: events.Event) -> None:
        self._services.setup.listener(event)

    async def load_rewrite_state(self) -> None:
        """Find the longest rewrite of the history, the recall rounds after it, and whether a compaction was undone."""
        call = self._call
        state_keys = [(call.thread_id, UNDONE_STATE_KEY)]
        pending_rounds = None
        if call.match.matched_count:
            source = call.match.source
            pending_rounds = self._services.recall_rounds.find_expected(source)
            state_keys.append((source, recall_rounds.ROUNDS_STATE))
        found = await self._services.rewrite_finder.find(call, state_keys)
        call.rewrite = found.rewrite
        [undone_state, *rounds] = found.states
        if call.rewrite is None:
            self.learnt_usage.forget_compaction()  # none was made, or it was undone
        elif rewrite_key(call.rewrite) != call.memory.last_rewrite_key:
            # Another process made this rewrite: the last failed attempt here says nothing about it.
            self.learnt_usage.forget_failure()
        call.is_compaction_undone = isinstance(
            undone_state, dict
        ) and call.caller_history.size < undone_state.get("until", 0)
        if rounds:
            call.rounds.load(
                pending_rounds or rounds[0] or (), call.caller_history, call.settings.api
            )

    async def can_compact(self, order: CompactionOrder) -> bool:  # noqa: ARG002 - the worker plans
        return not self._call.caller_history.is_single_text

    async def draft(self, order: CompactionOrder, wait: SummaryWait) -> RewriteDraft:
        """Return a rewrite of the history: another process's if it covers more, else a new one."""
        newer_rewrite = None if order.is_manual else await self._find_newer_rewrite()
        if newer_rewrite is not None:
            return RewriteDraft(self._describe_adopted_rewrite(newer_rewrite), newer_rewrite)
        call = self._call
        tokens = order.tokens or self._count_tokens(call.rewrite)
        if order.tokens is None and order.reason is CompactionReason.OVERFLOW:
            tokens = max(tokens, call.limits.window)  # the provider refused the prompt as too long
        task = await self._make_task(order, call.rewrite, tokens)
        context = self._summarizer_context()
        summarizer = self._services.setup.make_summarizer(context)
        return await self._services.rewrite_maker.draft(
            task,
            self._engine_setup(task.budget),
            summarizer,
            wait=wait,
            events=context.report,
        )

    def is_usable(self, draft: RewriteDraft) -> bool:
        return draft.rewrite is not None and self._covers_more(draft.rewrite)

    async def commit(self, draft: RewriteDraft, order: CompactionOrder) -> str:
        call = self._call
        if draft.rewrite is None:
            return draft.compaction.reason
        tokens_before = self._count_tokens(call.rewrite)
        if draft.new_rewrite is None:
            call.rewrite = draft.rewrite
        else:
            draft = await self._refit_if_needed(draft, order)
            call.rewrite = await self._services.rewrite_maker.commit(draft, order)
            if call.rewrite.depth >= MIN_REPEATED_COMPACTIONS:
                notice = make_repeated_compaction_notice(call.rewrite.depth)
                self.emit(events.Notice(self.session_id, notice))
        self.learnt_usage.record_compaction(tokens_before, is_automatic=order.is_automatic)
        return ""

    async def _refit_if_needed(self, draft: RewriteDraft, order: CompactionOrder) -> RewriteDraft:
        """Make the messages since a draft was prepared smaller, if they make the prompt too large."""
        call = self._call
        if draft.history_length == len(call.caller_history):
            return draft
        tokens = self._count_tokens(draft.rewrite)
        budget = call.compute_budget(self._services.setup.options)
        if tokens <= budget.max_compacted_tokens:
            return draft
        task = await self._make_task(order, draft.base_rewrite, tokens)
        return await self._services.rewrite_maker.refit(draft, task, self._engine_setup(budget))

    async def discard(self, draft: RewriteDraft, reason: str) -> None:
        self.emit(events.CompactionVoid(self.session_id, reason or draft.compaction.reason))

    async def account_cancelled(self) -> None:
        await self._services.accounting.record_cancelled(self.session_id)

    async def learn_limit(
        self, verdict: ErrorVerdict, refusal: ProviderRefusal
    ) -> LearntWindow | None:
        call = self._call
        limits = self._services.limits
        key = call.settings.limit_key
        learnt_window = await limits.learn_refusal(
            key,
            verdict,
            refusal,
            assumed_window=call.limits.window,
            tokens=self._count_tokens(call.rewrite),
            output_cap=call.output_cap or call.settings.output_cap,
        )
        call.limits = await limits.load(key, call.limits.window)
        if verdict.kind == "max_tokens_too_large" and verdict.input_tokens:
            # The prompt stays the same, and the provider has counted it.
            self.learnt_usage.calibration.observe(call.model, verdict.input_tokens, call.estimate)
        return learnt_window

    def choose_step(self, attempts: RecoveryAttempts, verdict: ErrorVerdict) -> RecoveryStep:
        call = self._call
        return attempts.next_step(
            verdict,
            output_cap=call.output_cap or call.settings.output_cap,
            enabled=self._services.setup.options.enabled and not call.caller_history.is_single_text,
            thinking_budget=call.settings.thinking_budget,
        )

    async def shrink_payload(self) -> bool:
        """Use a smaller rewrite made earlier. If there is none, drop old images and store large results."""
        call = self._call
        call.memory.is_payload_shrunk = True
        previous_rewrite = call.rewrite
        await self.load_rewrite_state()
        if call.rewrite is not None and call.rewrite != previous_rewrite:
            return True
        tokens = self._count_tokens(call.rewrite)
        task = await self._make_task(
            CompactionOrder(CompactionReason.PAYLOAD), call.rewrite, tokens
        )
        shrunk_rewrite = await self._services.rewrite_maker.shrink_payload(task)
        if shrunk_rewrite is None:
            return False
        call.rewrite = shrunk_rewrite
        return True

    def _engine_setup(self, budget: Budget) -> EngineSetup:
        setup = self._services.setup
        return EngineSetup(
            setup.make_engine,
            self.model,
            budget,
            setup.derive_summary_key(self._call.caller_history.client_scope.tenant),
        )

    async def _find_newer_rewrite(self) -> Rewrite | None:
        """Find a longer rewrite that another request or process made in the meantime."""
        longest = (await self._services.rewrite_finder.find(self._call)).rewrite
        return longest if longest is not None and self._covers_more(longest) else None

    def _covers_more(self, rewrite: Rewrite) -> bool:
        """Return whether a rewrite is of this history and covers more than the one in use."""
        call = self._call
        covered_count = call.rewrite.replaced_count if call.rewrite else 0
        if not covered_count < rewrite.replaced_count <= len(call.caller_history.history):
            return False
        return call.caller_history.history.digest(rewrite.replaced_count) == rewrite.digest

    def _describe_adopted_rewrite(self, rewrite: Rewrite) -> Compaction:
        """Return the figures of a rewrite that another request or process made."""
        return Compaction(
            messages=[],
            summary="",
            tokens_before=self._count_tokens(self._call.rewrite),
            tokens_after=self._count_tokens(rewrite),
        )

    async def _make_task(
        self, order: CompactionOrder, base_rewrite: Rewrite | None, tokens: int
    ) -> RewriteTask:
        call = self._call
        match = await call.recorder.store_request()
        return RewriteTask(
            call.caller_history,
            call.settings,
            thread_id=match.thread_id,
            engine_key=self._services.rewrite_finder.list_engine_keys(call.settings)[0],
            order=order,
            budget=call.compute_budget(self._services.setup.options),
            tokens=tokens,
            base_rewrite=base_rewrite,
        )

    def _count_tokens(self, rewrite: Rewrite | None) -> int:
        return self._services.sizer.count_tokens(self._call, rewrite)

    def _summarizer_context(self) -> SummarizerContext:
        call = self._call
        thread_id = call.match.thread_id
        route = Route(
            call.model,
            call.settings.api,
            call.limits.window,
            base_url=call.settings.upstream,
        )

        def report(kind: str, **details: Any) -> None:
            self.emit(events.make_engine_event(thread_id, kind, details))

        def note_cancelled(request: ModelRequest) -> None:
            self._services.accounting.note_cancelled(thread_id, request, call.settings.charge)

        return SummarizerContext(
            route,
            TokenCounter(call.model),
            lambda: None,
            report=report,
            report_abandoned=note_cancelled,
            check_permission=call.settings.check_permission,
        )
