"""The context of a client that sends its whole history: a rewrite of its beginning, then the client's own messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.journal_writer import JournalWriter
from everthread.compaction.summary import Compaction
from everthread.compaction.summary_message import tools_key
from everthread.core.cache_control import cache_route
from everthread.core.provider_errors import ErrorVerdict
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.types import Request
from everthread.gateway.management.recall_offer import RecallService
from everthread.gateway.management.recorder import ThreadRecorder
from everthread.gateway.management.rewrites import (
    RewriteDraft,
    RewriteStore,
    RewriteTask,
)
from everthread.gateway.management.setup import ManagerSetup
from everthread.gateway.management.sizing import PromptSizer
from everthread.gateway.management.turn import ManagedTurn
from everthread.gateway.quotas import spending_permit
from everthread.store.records import UNDONE_STATE, Rewrite
from everthread.thread import events
from everthread.thread.accounting import Accounting
from everthread.thread.engine_jobs import EngineSetup, SummarySource
from everthread.thread.managed import CompactionOrder, ProviderRefusal
from everthread.thread.model_limits import ModelLimits
from everthread.thread.options import Route, SummarizerContext
from everthread.thread.policy import (
    AUTOMATIC,
    FADING,
    CallPrices,
    ContextState,
    PromptSize,
    fading_text,
)
from everthread.thread.recovery import RecoveryAttempts, RecoveryStep
from everthread.thread.summary_wait import SummaryWait

WORTH_ANOTHER = 0.85
"""A prepared rewrite that is still too large is followed by another one only if that leaves at most this share."""


@dataclass(frozen=True, slots=True)
class CallerServices:
    """Services that the contexts of all requests share."""

    setup: ManagerSetup
    accounting: Accounting
    limits: ModelLimits
    recorder: ThreadRecorder
    rewrites: RewriteStore
    recall: RecallService
    sizer: PromptSizer


class CallerContext:
    """The `ThreadContext` of one request: its prompt, and how to cover more of its history."""

    def __init__(self, turn: ManagedTurn, services: CallerServices) -> None:
        self._turn = turn
        self._services = services
        self.answer_tokens = 0
        """Tokens of the answer, which the client's next request will hold."""

    @property
    def session_id(self) -> str:
        return self._turn.match.thread

    @property
    def model(self) -> str:
        return self._turn.request.model

    @property
    def state(self) -> ContextState:
        return self._turn.memory.context

    @property
    def size(self) -> PromptSize:
        turn = self._turn
        tokens = self._services.sizer.tokens(turn, turn.used) + self.answer_tokens
        fixed = round(
            turn.request.fixed * self.state.calibration.factor(turn.request.model)
        )
        return PromptSize(
            tokens,
            fixed,
            turn.budget(self._services.setup.options),
            turn.request.requested_cap,
        )

    @property
    def prices(self) -> CallPrices:
        turn = self._turn
        marked = (
            cache_route(turn.request.model, "auto", turn.request.incoming.upstream)
            is not None
        )
        writer = self._services.setup.summarizer(self._summarizer_context())
        return CallPrices(turn.request.model, "auto", marked, writer)

    def emit(self, event: events.Event) -> None:
        self._services.setup.listener(event)

    async def look_up(self) -> None:
        """Find the longest rewrite of the history, the hidden rounds after it, and whether a compaction was undone."""
        turn = self._turn
        recall = self._services.recall
        hidden = recall.state_of(turn)
        expected = recall.expected(turn)
        states = [(turn.match.thread, UNDONE_STATE), *hidden]
        found, [undone, *rounds] = await self._services.rewrites.find(
            turn, self._engine_keys, states
        )
        turn.used = found
        if found is None:
            self.state.compacted = 0  # none was made, or it was taken back
        turn.is_undone = isinstance(undone, dict) and turn.request.size < undone.get(
            "until", 0
        )
        recall.load(turn, expected or (rounds[0] if rounds else None))

    async def can_compact(self, order: CompactionOrder) -> bool:  # noqa: ARG002 - the worker plans
        return not self._turn.request.sliced.single

    async def draft(self, order: CompactionOrder, wait: SummaryWait) -> RewriteDraft:
        """Take over a longer rewrite that another request or process made; else make one."""
        newer = None if order.is_manual else await self._find_newer_rewrite()
        if newer is not None:
            return RewriteDraft(self._taken_over(newer), newer)
        task = await self._make_task(order)
        context = self._summarizer_context()
        writer = self._services.setup.summarizer(context)
        return await self._services.rewrites.draft(
            task,
            self._engine_setup(task.budget),
            SummarySource(writer, wait, context.events),
        )

    def is_usable(self, draft: RewriteDraft) -> bool:
        return draft.rewrite is not None and self._covers_more(draft.rewrite)

    async def commit(self, draft: RewriteDraft, order: CompactionOrder) -> str:
        turn = self._turn
        if draft.rewrite is None:
            return draft.compaction.reason
        before = self._services.sizer.tokens(turn, turn.used)
        is_own = draft.new is not None
        turn.used = (
            await self._services.rewrites.commit(draft) if is_own else draft.rewrite
        )
        if is_own and draft.history_length < len(turn.request.elements):
            await self._shorten_since(order)
        self.state.pause.relieved = before if order.reason in AUTOMATIC else 0
        self.state.rhythm = self.state.rhythm.rewritten()
        if is_own and turn.used.depth >= FADING:
            self.emit(events.Notice(self.session_id, fading_text(turn.used.depth)))
        return ""

    async def _shorten_since(self, order: CompactionOrder) -> None:
        """Prune the messages since a summary was prepared; the journal covers more if that is not enough."""
        turn = self._turn
        rewrites = self._services.rewrites
        budget = turn.budget(self._services.setup.options)
        if self._services.sizer.tokens(turn, turn.used) <= budget.compacted_limit:
            return
        task = await self._make_task(replace(order, is_background=False))
        engine = self._engine_setup(budget)
        pruned = await rewrites.prune_since(task, engine)
        if (
            pruned is not None
            and self._services.sizer.tokens(turn, pruned.rewrite)
            <= budget.compacted_limit
        ):
            turn.used = await rewrites.keep_pruned(pruned)
            return
        journal = SummarySource(JournalWriter(TokenCounter(self.model)))
        further = await rewrites.draft(task, engine, journal)
        now = self._services.sizer.tokens(turn, turn.used)
        if further.rewrite is not None:
            after = self._services.sizer.tokens(turn, further.rewrite)
            if after <= budget.compacted_limit or after <= WORTH_ANOTHER * now:
                turn.used = await rewrites.commit(further)

    async def discard(self, draft: RewriteDraft, why: str) -> None:
        self.emit(
            events.CompactionVoid(self.session_id, why or draft.compaction.reason)
        )

    async def account_lost(self) -> None:
        await self._services.accounting.record_lost(self.session_id)

    async def learn_limit(
        self, verdict: ErrorVerdict, refusal: ProviderRefusal
    ) -> None:
        turn = self._turn
        limits = self._services.limits
        learnt = await limits.learn_refusal(
            turn.request.limit_key,
            verdict,
            window=turn.limit.window,
            tokens=self._services.sizer.tokens(turn, turn.used),
            output_cap=turn.output_cap or turn.request.requested_cap,
            status=refusal.status,
            body=refusal.body,
        )
        await self.load_caps()
        if learnt is not None:
            turn.limit.window = learnt.tokens
            event = events.LimitLearnt(
                self.session_id,
                turn.request.model,
                learnt.tokens,
                source=learnt.source,
                stored=learnt.stored,
            )
            self.emit(event)

    async def load_caps(self) -> None:
        """Load the output cap and the window learnt from earlier refusals."""
        turn = self._turn
        turn.limit.cap = await self._services.limits.output_cap(turn.request.limit_key)
        turn.limit.learnt_window = await self._services.limits.learnt_window(
            turn.request.limit_key
        )

    def choose_step(
        self, attempts: RecoveryAttempts, verdict: ErrorVerdict
    ) -> RecoveryStep:
        turn = self._turn
        return attempts.next_step(
            verdict,
            output_cap=turn.output_cap or turn.request.requested_cap,
            enabled=self._services.setup.options.enabled
            and not turn.request.sliced.single,
            thinking=turn.request.thinking_budget,
        )

    async def shrink_payload(self) -> bool:
        """Use what was shrunk before, else take old images out and store big results."""
        turn = self._turn
        turn.memory.slim = True
        before = turn.used
        await self.look_up()
        if turn.used is not None and turn.used != before:
            return True
        shrunk = await self._services.rewrites.slim(
            await self._make_task(CompactionOrder("payload"))
        )
        if shrunk is None:
            return False
        turn.used = shrunk
        return True

    @property
    def _engine_keys(self) -> list[str]:
        """The keys under which rewrites are stored: the engine, and the tools that its summaries name.

        If a client gets our recall tool, rewrites made before the tool was offered are found second.
        """
        turn = self._turn
        frames = (
            (turn.equipped_frame, turn.request.frame)
            if turn.has_recall
            else (turn.request.frame,)
        )
        engine = self._services.setup.engine_key
        return [
            f"{turn.request.incoming.api} {engine}{tools_key(frame.tools)}"
            for frame in frames
        ]

    def _engine_setup(self, budget: Budget) -> EngineSetup:
        setup = self._services.setup
        return EngineSetup(
            setup.engine,
            self.model,
            budget,
            setup.key_of(self._turn.request.incoming.tenant),
        )

    async def _find_newer_rewrite(self) -> Rewrite | None:
        """Find a longer rewrite that another request or process made in the meantime."""
        longest, _ = await self._services.rewrites.find(self._turn, self._engine_keys)
        return longest if longest is not None and self._covers_more(longest) else None

    def _covers_more(self, rewrite: Rewrite) -> bool:
        """Return whether a rewrite is of this history and covers more than the one in use."""
        turn = self._turn
        covered = turn.used.length if turn.used else 0
        if not covered < rewrite.length <= len(turn.request.history):
            return False
        return turn.request.history.digest(rewrite.length) == rewrite.chain

    def _taken_over(self, rewrite: Rewrite) -> Compaction:
        sizer = self._services.sizer
        return Compaction(
            messages=[],
            summary="",
            tokens_before=sizer.tokens(self._turn, self._turn.used),
            tokens_after=sizer.tokens(self._turn, rewrite),
        )

    async def _make_task(self, order: CompactionOrder) -> RewriteTask:
        turn = self._turn
        setup = self._services.setup
        match = await self._services.recorder.store_request(turn)
        return RewriteTask(
            tenant=turn.request.incoming.tenant,
            thread=match.thread,
            engine_key=self._engine_keys[0],
            api=turn.request.incoming.api,
            frame=turn.equipped_frame,
            scope=match.scope,
            sent=turn.request.pairs(),
            history=turn.request.history,
            budget=turn.budget(setup.options),
            tokens=order.tokens or self._prompt_tokens(order),
            base=turn.used,
            order=order,
            account=turn.request.incoming.account,
        )

    def _prompt_tokens(self, order: CompactionOrder) -> int:
        """Return the size to compact from: a prompt that was refused fills the window at least."""
        tokens = self._services.sizer.tokens(self._turn, self._turn.used)
        return (
            max(tokens, self._turn.limit.window)
            if order.reason == "overflow"
            else tokens
        )

    def _summarizer_context(self) -> SummarizerContext:
        turn = self._turn
        thread = turn.match.thread
        incoming = turn.request.incoming
        route = Route(
            turn.request.model,
            incoming.api,
            turn.limit.window,
            base_url=incoming.upstream,
        )
        payer = incoming.account

        def report(kind: str, **details: Any) -> None:
            self.emit(events.engine_event(thread, kind, details))

        def lose(request: Request) -> None:
            self._services.accounting.lose(thread, request, payer)

        authorize = turn.request.incoming.authorize
        return SummarizerContext(
            route,
            TokenCounter(turn.request.model),
            lambda: None,
            events=report,
            lost=lose,
            permit=None if authorize is None else spending_permit(authorize),
        )
