"""One managed thread: keep the next prompt in bounds, recover from refusals, learn from answers.

    await thread.compact_if_needed(reason=CompactionReason.IN_LOOP)   # before a call
    await thread.recover(attempts, refusal)                           # after a refusal
    await thread.prepare_ahead()                                      # after an answer

A conversation, the gateway and the integrations use the same `ManagedThread`. They differ only in its prompt: its
source of messages and its way to commit a compaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Generic

from everthread.compaction.compaction_result import Compaction
from everthread.core.caching.cache_lifetimes import compute_cache_lifetime
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.costs.compaction_economics import MIN_THRESHOLD_SHARE, CompactionTiming
from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.errors import EverthreadError
from everthread.thread import events
from everthread.thread.engines.summary_wait import (
    MAX_SUMMARY_WAIT_SECONDS,
    OPTIONAL_WAIT_SECONDS,
    StartTimer,
    SummaryWait,
)
from everthread.thread.managed_prompt import (
    CompactionOrder,
    DraftT,
    ManagedPrompt,
)
from everthread.thread.policy.compaction_policy import (
    CACHE_LIFETIME_SHARE,
    CompactionPolicy,
    PolicyDecision,
)
from everthread.thread.policy.compaction_reason import CompactionReason
from everthread.thread.policy.notices import make_pause_notice
from everthread.thread.preparation import Preparation
from everthread.thread.recovery import (
    NEAR_LIMIT_SHARE,
    SIZE_REFUSALS,
    ProviderRefusal,
    RecoveryAttempts,
    RecoveryStep,
)


class ManagedThread(Generic[DraftT]):
    """Watches the size of one thread's next prompt and carries out the decisions of the policy."""

    def __init__(
        self,
        prompt: ManagedPrompt[DraftT],
        policy: CompactionPolicy,
        timer: StartTimer,
        preparation: Preparation[DraftT] | None = None,
    ) -> None:
        self.prompt = prompt
        self.preparation = preparation or Preparation()
        self._policy = policy
        self._timer = timer

    async def compact_if_needed(self, *, reason: CompactionReason) -> PolicyDecision:
        """Compact if the policy says so. Wait for a model's summary only if the call does not fit without it."""
        prompt = self.prompt
        decision = self._policy.decide(
            prompt.measure_size(),
            prompt.learnt_usage,
            prompt.make_prices(),
            reason=reason,
            is_summary_ready=self.preparation.is_ready,
        )
        if decision.timing is CompactionTiming.LATER and prompt.learnt_usage.start_waiting():
            self._report_cost_decision(decision)
        order = CompactionOrder(
            decision.reason,
            is_background=self._policy.options.background,
            decision=str(decision.cost_decision or ""),
        )
        if decision.timing is CompactionTiming.NOW and (
            self.preparation.is_under_way or await prompt.can_compact(order)
        ):
            prompt.learnt_usage.stop_waiting()
            self._report_cost_decision(decision)
            await self._run_order(order, must_wait=decision.must_wait)
        return decision

    async def compact_now(self, order: CompactionOrder) -> None:
        """Compact and wait for the result; report a failure as an event."""
        await self.drop_preparation("another compaction takes its place")
        order = replace(order, is_background=False)
        self.preparation.start(self._make_draft(order))
        await self._commit_draft(await self._take_draft(), order)

    async def compact_manually(self, order: CompactionOrder) -> Compaction:
        """Compact at a person's request, whatever the size. The result's `reason` explains why nothing changed."""
        await self.drop_preparation("a person asked for another")
        draft = await self._make_draft(order)
        compaction = draft.compaction
        if not compaction.changed:
            await self.prompt.discard(draft, compaction.reason)
            return compaction
        unused_reason = await self.prompt.commit(draft, order)
        if unused_reason:
            return replace(compaction, changed=False, reason=unused_reason)
        self._record_success()
        return compaction

    async def prepare_ahead(self) -> None:
        """From 80 % of the threshold on, let a model write the next summary while the thread continues."""
        prompt = self.prompt
        size = prompt.measure_size()
        if self.preparation.is_under_way or size.tokens < size.budget.background_start:
            return  # most calls end here: prices, which need a summariser, are not looked up
        if self._policy.should_prepare(size, prompt.learnt_usage, prompt.make_prices()):
            await self._prepare_summary(CompactionReason.IN_LOOP)

    async def recover(
        self, attempts: RecoveryAttempts, refusal: ProviderRefusal
    ) -> RecoveryStep | None:
        """Prepare the next attempt after a refusal.

        Return the step that was taken, `give_up` if nothing helps, None if the request's size is not at fault.
        """
        prompt = self.prompt
        size = prompt.measure_size()
        verdict = refusal.classify(near_limit=size.tokens >= NEAR_LIMIT_SHARE * size.budget.window)
        if verdict.kind not in SIZE_REFUSALS:
            return None
        await self.drop_preparation("the provider refused the request")
        learnt_window = await prompt.learn_limit(verdict, refusal)
        if learnt_window is not None:
            prompt.emit(
                events.LimitLearnt(
                    prompt.session_id,
                    prompt.model,
                    learnt_window.tokens,
                    source=learnt_window.source,
                    is_stored=learnt_window.is_stored,
                )
            )
        while True:
            step = prompt.choose_step(attempts, verdict)
            if step.action == "give_up":
                return step
            prompt.emit(events.Recovery(prompt.session_id, verdict.kind, step.attempt, step.notice))
            if step.action == "lower_cap":
                return step
            if step.action == "shrink_payload":
                if await prompt.shrink_payload():
                    return step
            elif await self._compact_harder(step, verdict):
                attempts.effective_compaction_count += 1
                return step

    async def drop_preparation(self, reason: str) -> None:
        """Cancel the compaction that is being prepared, or discard it if it is finished."""
        task = await self.preparation.cancel()
        await self.prompt.account_cancelled()
        if task is None or task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            await self.prompt.discard(task.result(), reason)
        else:
            self._report_failure(failure)

    def start_idle_timer(self) -> None:
        """Start a timer that, shortly before the provider's cache expires, compacts or prepares a summary."""
        options = self._policy.options
        if not options.compact_when_idle and (
            not options.background or self.preparation.is_under_way
        ):
            return
        size = self.prompt.measure_size()
        if size.tokens >= MIN_THRESHOLD_SHARE * size.budget.threshold:
            lifetime = self._policy.get_cache_lifetime(self.prompt.learnt_usage)
            self.preparation.idle_timer = self._timer(
                CACHE_LIFETIME_SHARE * lifetime, self._use_idle_time
            )

    async def cancel_idle_timer(self) -> None:
        """Cancel the idle timer because the thread continues or ends; wait for a compaction that commits."""
        self.preparation.cancel_idle_timer()
        idle_task = self.preparation.idle_task
        self.preparation.idle_task = None
        if idle_task is not None:
            idle_task.cancel()
            await asyncio.wait({idle_task})

    async def finish_idle_work(self) -> None:
        """Wait for the compaction or the summary that the idle timer started."""
        if self.preparation.idle_task is not None:
            await asyncio.wait({self.preparation.idle_task})

    def learn_from_usage(self, usage: CanonicalUsage, params: Mapping[str, Any]) -> None:
        """Learn from the usage of a call; pause compactions after two in a row that hardly helped.

        `params`: the parameters of the call, which may set the lifetime of the cache.
        """
        now = self._policy.wall_clock()
        ttl = compute_cache_lifetime(self.prompt.model, self._policy.options.cache_ttl, params)
        if self.prompt.learnt_usage.observe(usage, now, ttl=ttl):
            self.prompt.emit(
                events.Notice(self.prompt.session_id, make_pause_notice(usage.prompt_tokens))
            )

    def _use_idle_time(self) -> None:
        """Compact if the options say so, or else prepare a summary if that pays."""
        self.preparation.idle_timer = None
        prompt = self.prompt
        policy = self._policy
        work: Coroutine[Any, Any, None] | None = None
        if policy.should_compact_when_idle(prompt.measure_size(), prompt.learnt_usage):
            work = self._compact_when_idle()
        elif not self.preparation.is_under_way and policy.should_prepare_when_idle(
            prompt.measure_size(), prompt.learnt_usage, prompt.make_prices()
        ):
            work = self._prepare_summary(CompactionReason.COLD_CACHE)
        if work is not None:
            self.preparation.idle_task = asyncio.get_running_loop().create_task(work)

    async def _compact_when_idle(self) -> None:
        order = CompactionOrder(CompactionReason.IDLE)
        if await self.prompt.can_compact(order):
            await self.compact_now(order)

    async def _prepare_summary(self, reason: CompactionReason) -> None:
        order = CompactionOrder(reason, is_background=True)
        if await self.prompt.can_compact(order):
            self._start_draft(order)

    async def _run_order(self, order: CompactionOrder, *, must_wait: bool) -> None:
        prompt = self.prompt
        if not order.is_background:
            await self.compact_now(order)
            return
        was_prepared = self.preparation.is_under_way
        self._start_draft(order)
        max_wait_seconds = MAX_SUMMARY_WAIT_SECONDS if must_wait else OPTIONAL_WAIT_SECONDS
        if not await self.preparation.wait_for_model(max_wait_seconds):
            if not must_wait:
                return
            self.preparation.leave_to_journal()
        draft = await self._take_draft()
        if self._is_outdated(draft, was_prepared=was_prepared):
            if draft is not None:
                await prompt.discard(draft, "the conversation changed meanwhile")
            await self.compact_now(order)
        else:
            await self._commit_draft(draft, order)

    def _is_outdated(self, draft: DraftT | None, *, was_prepared: bool) -> bool:
        """Return whether a draft does not fit the present messages.

        A draft that was prepared earlier and failed or shortened nothing is outdated, because it had fewer messages.
        """
        if draft is None or not draft.compaction.changed:
            return was_prepared
        return not self.prompt.is_usable(draft)

    async def _compact_harder(self, step: RecoveryStep, verdict: ErrorVerdict) -> bool:
        """Compact after an overflow; return whether the request is smaller."""
        order = CompactionOrder(
            CompactionReason.OVERFLOW, level=step.level, tokens=verdict.input_tokens
        )
        try:
            draft = await self._make_draft(order)
        except EverthreadError as failure:
            self._report_failure(failure)
            return False
        if not draft.compaction.changed:
            await self.prompt.discard(draft, draft.compaction.reason)
            return False
        if not await self._commit_changed_draft(draft, order):
            return False
        self._record_success()
        return True

    def _start_draft(self, order: CompactionOrder) -> None:
        """Start making a compaction while the thread continues, unless one is being made."""
        if not self.preparation.is_under_way:
            wait = SummaryWait(self._timer)
            self.preparation.start(self.prompt.draft(order, wait), wait)

    async def _make_draft(self, order: CompactionOrder) -> DraftT:
        """Make a compaction and wait for it. If a model is late, the journal writes, unless a person asked."""
        wait = SummaryWait(self._timer)
        task = asyncio.get_running_loop().create_task(self.prompt.draft(order, wait))
        try:
            if not order.is_manual and not await wait.wait_for(task, MAX_SUMMARY_WAIT_SECONDS):
                wait.end()
            return await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _take_draft(self) -> DraftT | None:
        """Return the finished draft; None after a failure, which is reported."""
        try:
            return await self.preparation.take()
        except EverthreadError as error:
            self._report_failure(error)
            return None

    async def _commit_draft(self, draft: DraftT | None, order: CompactionOrder) -> None:
        """Commit a compaction. If it does not help, the next one waits until the thread has grown."""
        prompt = self.prompt
        tokens = prompt.measure_size().tokens
        is_done = False
        if draft is not None and draft.compaction.changed:
            is_done = await self._commit_changed_draft(draft, order)
        elif draft is not None:
            await prompt.discard(draft, draft.compaction.reason)
        if is_done:
            self._record_success()
        else:
            prompt.learnt_usage.record_failure(tokens)

    async def _commit_changed_draft(self, draft: DraftT, order: CompactionOrder) -> bool:
        """Commit a compaction that changes something; return whether the context is smaller now."""
        tokens = self.prompt.measure_size().tokens
        unused_reason = await self.prompt.commit(draft, order)
        # If another process committed first, the context is smaller too.
        return not unused_reason or self.prompt.measure_size().tokens < tokens

    def _record_success(self) -> None:
        size = self.prompt.measure_size()
        self.prompt.learnt_usage.record_success(size.tokens, size.budget.threshold)

    def _report_cost_decision(self, decision: PolicyDecision) -> None:
        cost_decision = decision.cost_decision
        if cost_decision is None:
            return
        prompt = self.prompt
        prompt.emit(
            events.Planned(
                prompt.session_id,
                cost_decision.timing,
                cost_decision.reason,
                tokens=prompt.measure_size().tokens,
                cost=cost_decision.cost,
                savings=cost_decision.savings,
                cheaper_calls=cost_decision.cheaper_calls,
            )
        )

    def _report_failure(self, error: object) -> None:
        self.prompt.emit(events.CompactionFailed(self.prompt.session_id, str(error)))
