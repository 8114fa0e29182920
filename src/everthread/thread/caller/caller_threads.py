"""Manage the threads of callers that send their whole history with every call.

    call = await threads.open(history, settings)    # find the thread, or begin one
    await threads.prepare(call)                     # compact if needed; call.list_edits() lists the changes
    again = await threads.recover(call, refusal)    # after a refusal of the provider
    answer = threads.expect_answer(call, outcome)   # from now on a call that continues it is matched
    await threads.record(call, outcome, answer)     # store it, prepare the next compaction

Rewrites are stored and found again by the history, so that after a crash another process sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

from everthread.compaction.compaction_result import CompactionLevel
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.costs.compaction_economics import MIN_THRESHOLD_SHARE, CompactionTiming
from everthread.core.messages import Message
from everthread.core.recent_dict import RecentDict
from everthread.core.tokens import TokenCounter
from everthread.errors import EverthreadError
from everthread.store.usage_records import NewUsage
from everthread.thread.accounting import Accounting, complete_usage
from everthread.thread.caller.caller_prompt import CallerPrompt, CallerServices
from everthread.thread.caller.caller_request import CallerHistory, CallSettings, Outcome
from everthread.thread.caller.caller_setup import CallerSetup
from everthread.thread.caller.message_caches import SizeCache
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.caller.prompt_sizes import PromptSizer
from everthread.thread.caller.recall_rounds import RecallRoundsStore
from everthread.thread.caller.recorder import CallRecorder, PendingAnswer
from everthread.thread.caller.rewrite_maker import RewriteDraft, RewriteMaker
from everthread.thread.caller.rewrite_search import RewriteFinder, rewrite_key
from everthread.thread.caller.thread_memory import ThreadMemories, ThreadMemory
from everthread.thread.engines.engine_jobs import CompactionRunner, EngineSetup
from everthread.thread.events import Notice, RecordFailed
from everthread.thread.lookup.recalled_excerpts import ExcerptFinder, VisibleThread
from everthread.thread.managed_prompt import CompactionOrder
from everthread.thread.managed_thread import ManagedThread
from everthread.thread.matching.pending_links import PendingLinks
from everthread.thread.matching.thread_index import ThreadIndex
from everthread.thread.matching.thread_match import ThreadMatch
from everthread.thread.model_limits import ModelLimits
from everthread.thread.policy.compaction_policy import CompactionPolicy, PolicyDecision
from everthread.thread.policy.compaction_reason import CompactionReason
from everthread.thread.recovery import ProviderRefusal
from everthread.thread.used_window import CALLER_STATE, UsedWindow

_MAX_WINDOWS = 1_000
"""Maximum remembered windows: callers choose the names of models."""
_SHUTDOWN_TIMEOUT_SECONDS = 5.0
"""Seconds that summaries in progress get to finish when the process ends."""
_CANCEL_TIMEOUT_SECONDS = 1.0
"""Seconds that cancelled summaries get to report their usage."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Tokens of a prompt without and with the rewrite in use."""

    without_rewrite: int
    with_rewrite: int
    is_new_rewrite: bool
    """Whether the rewrite is used for the first time."""


class CallerThreads:
    """The threads of all callers of one process."""

    def __init__(self, setup: CallerSetup, sizes: SizeCache) -> None:
        self.setup = setup
        self.runner = CompactionRunner(
            uses_processes=setup.uses_processes,
            seconds=setup.compaction_seconds,
            processes=setup.compaction_processes,
        )
        self._windows: RecentDict[tuple[str, str, str], int] = RecentDict(_MAX_WINDOWS)
        self.pending_links = PendingLinks()
        self._index = ThreadIndex(setup.store, self.pending_links)
        self.memories = ThreadMemories()
        accounting = Accounting(setup.store, setup.wall_clock, setup.listener, skips_disk_wait=True)
        self._services = CallerServices(
            setup=setup,
            accounting=accounting,
            limits=ModelLimits(setup.store, setup.clock),
            rewrite_finder=RewriteFinder(setup.store, setup.listener, setup.engine_key),
            rewrite_maker=RewriteMaker(setup.store, setup.listener, accounting, self.runner),
            recall_rounds=RecallRoundsStore(setup.store),
            sizer=PromptSizer(sizes),
        )
        self._policy = CompactionPolicy(setup.options, setup.wall_clock)

    def hold_thread_while_opening(self, thread_id: str | None) -> AbstractAsyncContextManager[None]:
        """Return a context manager that makes other calls of the thread wait while this call is read and opened."""
        memory = None if thread_id is None else self.memories.find(thread_id)
        return nullcontext() if memory is None else memory.matching_lock

    async def open(
        self,
        caller_history: CallerHistory,
        settings: CallSettings,
        thread_id: str = "",
        known_length: int = 0,
    ) -> PreparedCall:
        """Find the thread that a history belongs to, and announce its messages before they are stored.

        `thread_id`, `known_length`: set if the caller knows that the history continues this thread after
        `known_length` messages.
        """
        match = self._index.match_end(caller_history, thread_id, known_length)
        match = match or await self._index.find_match(caller_history, settings)
        memory = await self._load_memory(
            match, is_shortened=caller_history.leading_compaction is not None
        )
        window = await self.load_window(settings)
        limits = await self._services.limits.load(settings.limit_key, window)
        recorder = CallRecorder(
            caller_history,
            settings,
            match,
            memory=memory,
            index=self._index,
            listener=self.setup.listener,
        )
        if len(caller_history):
            recorder.expect_request()
        return PreparedCall(
            caller_history,
            settings,
            memory,
            recorder,
            limits,
            estimate=settings.tokens + caller_history.size,
        )

    async def load_window(self, settings: CallSettings) -> int:
        """Return the window of a model: the caller's own figure, or else the one looked up for its upstream, once."""
        if settings.window is not None:
            return settings.window
        key = (settings.upstream, settings.model, settings.limit_key.headers)
        if key not in self._windows:
            self._windows[key] = await self.setup.find_window(
                settings.api,
                settings.model,
                settings.upstream,
                settings.limit_key.headers,
            )
        return self._windows[key]

    async def _load_memory(self, match: ThreadMatch, *, is_shortened: bool) -> ThreadMemory:
        """Return the memory of a thread. `is_shortened`: whether the caller no longer sends the thread's beginning."""
        memory = self.memories.find(match.thread_id)
        if memory is not None:
            memory.continues_other = memory.continues_other or is_shortened
            return memory
        store = self.setup.store
        source = match.branch_of[0] if match.branch_of else match.thread_id
        state = await store.state.get_state(source, CALLER_STATE) if match.matched_count else None
        new_memory = self.memories.remember(match.thread_id, state, is_stored=not match.is_new)
        new_memory.has_recall_rounds = await self._services.recall_rounds.has_any(match)
        if is_shortened or match.is_new:
            new_memory.continues_other = is_shortened or match.continues_other
        else:
            new_memory.continues_other = await store.client_histories.continues_other_thread(
                match.thread_id
            )
        return new_memory

    async def prepare(self, call: PreparedCall) -> PolicyDecision:
        """Apply the rewrite of the history, if there is one, compact if the policy says so, and start storing.

        Return the decision of the policy.
        """
        await self._make_managed_thread(call).cancel_idle_timer()
        try:
            if call.settings.is_rewritable and self.setup.options.enabled:
                return await self._compact_if_needed(call)
            return PolicyDecision(CompactionTiming.NOT_DUE)
        finally:  # also after a failure or disconnect: other calls may wait for these messages
            self.start_storing(call)

    async def _compact_if_needed(self, call: PreparedCall) -> PolicyDecision:
        """Look up the call's rewrite and recall rounds, and compact if the policy says so."""
        if call.caller_history.is_single_text or self._needs_no_compaction(call):
            return PolicyDecision(CompactionTiming.NOT_DUE)
        prompt = CallerPrompt(call, self._services)
        async with call.memory.compaction_lock:
            await prompt.load_rewrite_state()
            if call.is_compaction_undone and not prompt.measure_size().is_full:
                return PolicyDecision(CompactionTiming.NOT_DUE)
            thread = self._make_managed_thread(call)
            return await thread.compact_if_needed(reason=CompactionReason.IN_LOOP)

    def _needs_no_compaction(self, call: PreparedCall) -> bool:
        """Return whether a call needs neither a compaction nor a rewrite or recall rounds of its thread."""
        options = self.setup.options
        memory = call.memory
        if memory.is_payload_shrunk or memory.continues_other or memory.has_recall_rounds:
            return False
        budget = call.compute_budget(options)
        min_tokens = (
            MIN_THRESHOLD_SHARE * budget.threshold if options.economics else budget.background_start
        )
        return self._services.sizer.count_tokens(call, None) < min_tokens

    def remember_prompt(self, call: PreparedCall) -> PromptTokens:
        """Return the tokens of the prompt that is about to be sent, and remember which rewrite it uses."""
        key = None if call.rewrite is None else rewrite_key(call.rewrite)
        is_new = key is not None and key != call.memory.last_rewrite_key
        call.memory.last_rewrite_key = key
        learnt_usage = call.memory.learnt_usage
        call.estimate = self._services.sizer.estimate_tokens(call, call.rewrite)
        tokens_before = self._services.sizer.count_tokens(call, None)
        tokens_after = self._services.sizer.count_tokens(call, call.rewrite)
        if is_new:
            learnt_usage.record_compacted_size(tokens_after)
            unreported_tokens = tokens_after
        else:
            unreported_tokens = learnt_usage.calibration.count_unreported_tokens(
                call.model, call.estimate
            )
        call.max_output = call.limits.compute_max_output(
            tokens_after, unreported_tokens=unreported_tokens
        )
        return PromptTokens(tokens_before, tokens_after, is_new)

    def start_storing(self, call: PreparedCall, *, is_answered: bool = False) -> None:
        """Start storing the messages of a call. `is_answered`: whether its answer is recorded next."""
        call.recorder.start_storing(
            is_sole_writer=self.setup.is_sole_writer(), is_answered=is_answered
        )

    def count_tokens(self, call: PreparedCall) -> int:
        """Return the tokens of the prompt with the rewrite in use, as the provider counts them."""
        return self._services.sizer.count_tokens(call, call.rewrite)

    async def find_excerpts(self, call: PreparedCall) -> list[Message]:
        """Find excerpts about the newest message among the messages that left the context, for this call only."""
        counter = TokenCounter(call.model)
        finder = ExcerptFinder(self.setup.store, self.setup.options.recall, counter)
        try:
            max_tokens = finder.compute_max_tokens(
                CallerPrompt(call, self._services).measure_size()
            )
            is_complete = not call.has_left_messages and call.match.branch_of is None
            if not max_tokens or (is_complete and self.setup.options.recall.scope == "thread"):
                return []  # most calls end here: their messages need not be stored yet
            match = await call.recorder.store_request()
            tip = await self.setup.store.get_compression_tip(match.thread_id)
            visible_thread = VisibleThread(
                match.tenant,
                match.thread_id,
                session=match.thread_id,
                messages=await self.setup.store.list_messages(tip),
                is_complete=is_complete,
            )
            excerpts = await finder.find(visible_thread, max_tokens, self.setup.listener)
        except EverthreadError as error:  # the call goes without
            text = f"Nothing was recalled for this call: {error}"
            self.setup.listener(Notice(call.thread_id, text))
            return []
        call.estimate += counter.messages(excerpts)
        return excerpts

    async def compact_manually(
        self, call: PreparedCall, level: CompactionLevel, window: int | None = None
    ) -> str:
        """Compact regardless of the size. Return the reason if nothing changed, else an empty text.

        `window`: the window to compact for, or None to use the model's.
        """
        if window:
            call.limits = replace(call.limits, window=window)
        order = CompactionOrder(CompactionReason.MANUAL, level=level)
        async with call.memory.compaction_lock:
            compaction = await self._make_managed_thread(call).compact_manually(order)
        return "" if compaction.changed else compaction.reason

    async def recover(self, call: PreparedCall, refusal: ProviderRefusal) -> bool:
        """Prepare the next attempt after a refusal; return whether to send the call again."""
        async with call.memory.compaction_lock:
            step = await self._make_managed_thread(call).recover(call.attempts, refusal)
        return step is not None and step.action != "give_up"

    def expect_answer(self, call: PreparedCall, outcome: Outcome) -> PendingAnswer | None:
        """Announce an answer before it is stored, so that a call that continues it is matched from now on."""
        answer = call.recorder.expect_answer(outcome)
        if answer is not None:
            stored_rounds = call.rounds.collect_stored_rounds(
                call.caller_history, answer.history, call.covered_count
            )
            if stored_rounds:
                call.memory.has_recall_rounds = True
                call.rounds.stored_rounds = stored_rounds
                self._services.recall_rounds.expect(call.thread_id, stored_rounds)
        return answer

    async def record(
        self,
        call: PreparedCall,
        outcome: Outcome,
        answer: PendingAnswer | None,
        earlier_usage: Sequence[CanonicalUsage] = (),
    ) -> None:
        """Store the answer and its usage, and prepare the next rewrite if one will soon be due.

        `earlier_usage`: of calls before this one that are recorded with it.
        """
        try:
            await self._store_outcome(call, outcome, answer, earlier_usage)
        finally:
            if answer is not None:
                call.recorder.drop_answer(answer)
                self._services.recall_rounds.stop_expecting(call.rounds.stored_rounds)
        is_managed = call.settings.is_rewritable and not call.caller_history.is_single_text
        if outcome.is_success and is_managed and not call.is_compaction_undone:
            answer_tokens = outcome.usage.output_tokens if outcome.usage else 0
            thread = self._make_managed_thread(call, answer_tokens)
            await thread.prepare_ahead()
            if self.setup.options.compact_when_idle:
                thread.start_idle_timer()

    async def record_compaction(
        self, call: PreparedCall, outcome: Outcome, names: Sequence[str]
    ) -> None:
        """Record compactions that the provider made. `names` identify them in later histories that begin with one.

        Such a compaction is not stored as an answer, because the conversation may continue without it.
        """
        if outcome.is_success and outcome.reply is not None:
            for name in names:
                self._index.replaced_histories.expect(
                    call.match.client_scope, call.caller_history.history, name
                )
            await call.recorder.store_request()
            try:
                await self._index.replaced_histories.store_expected()
            except EverthreadError as error:
                self._report_unrecorded(call, error)
        await self._store_outcome(call, outcome, None, ())

    async def keep_replacement(self, call: PreparedCall, name: str) -> None:
        """Store that the compaction of this name replaces the history of this call in later requests."""
        replaced_histories = self._index.replaced_histories
        replaced_histories.expect(call.match.client_scope, call.caller_history.history, name)
        await replaced_histories.store_expected()

    async def _store_outcome(
        self,
        call: PreparedCall,
        outcome: Outcome,
        answer: PendingAnswer | None,
        earlier_usage: Sequence[CanonicalUsage],
    ) -> None:
        """Store the answer and its usage, and learn from the usage."""
        reported = outcome.usage if outcome.is_success and not outcome.estimated else None
        if reported is not None:
            calibration = call.memory.learnt_usage.calibration
            calibration.observe(call.model, reported.prompt_tokens, call.estimate)
            thread = self._make_managed_thread(call)
            for observed in (*earlier_usage, reported):
                thread.learn_from_usage(observed, call.settings.request.params)
        usage = [
            self._services.accounting.price_call(call.thread_id, call.model, earlier)
            for earlier in earlier_usage
        ]
        if outcome.is_success or outcome.usage is not None:
            usage += self._price_calls(call, outcome)
        try:
            window = UsedWindow(
                call.model,
                call.limits.window,
                threshold=call.compute_budget(self.setup.options).threshold,
            )
            state = CALLER_STATE, {**call.memory.dump(), **window.dump()}
            await call.recorder.store_outcome(answer, usage, state)
            for record in usage:
                self._services.accounting.report(record)
            if self._services.accounting.has_unrecorded_cancelled(call.thread_id):
                await self._services.accounting.record_cancelled(call.thread_id)
            if call.rounds.stored_rounds:
                await self._services.recall_rounds.store_rounds(
                    call.thread_id, call.rounds.stored_rounds
                )
        except EverthreadError as error:
            self._report_unrecorded(call, error)
        if reported is not None and reported.prompt_tokens:
            try:
                await self._services.limits.record_success(
                    call.settings.limit_key, reported.prompt_tokens
                )
            except EverthreadError as error:
                self._report_unrecorded(call, error)

    def _report_unrecorded(self, call: PreparedCall, error: EverthreadError) -> None:
        self.setup.listener(RecordFailed(call.thread_id, str(error)))

    def _price_calls(self, call: PreparedCall, outcome: Outcome) -> list[NewUsage]:
        """Return the usage of recall rounds, then of the caller's call, estimated if the provider reported none."""
        usage = outcome.usage
        estimated = outcome.estimated
        if usage is None:
            counter = TokenCounter(call.model)
            usage, estimated = complete_usage(
                CanonicalUsage(), outcome.reply, call.estimate, counter
            )
        recall_records = [
            self._services.accounting.price_call(call.thread_id, call.model, round_usage)
            for round_usage in outcome.recall_usage
        ]
        call_record = self._services.accounting.price_call(
            call.thread_id, call.model, usage, is_estimated=estimated
        )
        return [*recall_records, call_record]

    def _make_managed_thread(
        self, call: PreparedCall, answer_tokens: int = 0
    ) -> ManagedThread[RewriteDraft]:
        """Return the managed thread of a call. A call that kept it would refer to itself, and stay in memory."""
        prompt = CallerPrompt(call, self._services, answer_tokens)
        return ManagedThread(prompt, self._policy, self.setup.timer, call.memory.preparation)

    def start_worker(self) -> None:
        """Start a worker process now, so that the first compaction does not wait for it."""
        setup = EngineSetup(
            self.setup.make_engine,
            "gpt-4o",
            self.setup.options.budget(128_000),
            self.setup.summary_key,
        )
        self.runner.start_ahead(setup)

    async def wait_for_background_work(self) -> None:
        """Wait for the background compactions."""
        await self.memories.wait_for_preparations()

    async def close(self) -> None:
        """Give background compactions a few seconds to end; cancel the others and record their usage."""
        await self.memories.end_preparations(_SHUTDOWN_TIMEOUT_SECONDS)
        await self.runner.close(_CANCEL_TIMEOUT_SECONDS)
        await self._services.accounting.record_cancelled()
