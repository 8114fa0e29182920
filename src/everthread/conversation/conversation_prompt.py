"""The `ManagedPrompt` of a conversation: make a compaction with its engine, learn from refusals."""

from __future__ import annotations

import asyncio

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine
from everthread.compaction.engine_input import CompactionInput, RefitInput
from everthread.conversation.compaction_commit import (
    ConversationDraft,
    commit_compaction,
)
from everthread.conversation.conversation_state import ConversationState
from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.core.types import ModelRequest
from everthread.errors import ContextOverflowError
from everthread.providers.catalog import get_output_cap
from everthread.thread import events
from everthread.thread.engines.engine_jobs import run_engine
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.managed_prompt import CompactionOrder
from everthread.thread.model_limits import LearntWindow
from everthread.thread.payload_shrinking import shrink_messages
from everthread.thread.policy.call_prices import CallPrices
from everthread.thread.policy.compaction_reason import CompactionReason
from everthread.thread.policy.learnt_usage import LearntUsage
from everthread.thread.policy.prompt_size import PromptSize
from everthread.thread.recovery import ProviderRefusal, RecoveryAttempts, RecoveryStep


def _make_compaction_input(state: ConversationState, order: CompactionOrder) -> CompactionInput:
    """Return the context in the form that an engine takes."""
    tokens = order.tokens or state.tokens
    return CompactionInput(
        list(state.messages.bodies),
        current_tokens=order.compute_target_tokens(tokens, state.budget.threshold),
        focus_topic=order.focus,
        system=state.system,
        tools=state.toolbox.list_next_schemas(state.make_tool_room(state.system)),
        level=order.level,
        manual=order.is_manual,
        dry_run=order.reason is CompactionReason.PREVIEW,
        ids=[message.id for message in state.messages.stored],
    )


class ConversationPrompt:
    """`ManagedPrompt` of a conversation: the store has its messages, a compaction continues the session."""

    def __init__(self, state: ConversationState) -> None:
        self._state = state
        self.request: ModelRequest | None = None
        """The request that was sent last."""

    @property
    def session_id(self) -> str:
        return self._state.session.id

    @property
    def model(self) -> str:
        return self._state.model.name

    @property
    def learnt_usage(self) -> LearntUsage:
        return self._state.learnt_usage

    def measure_size(self) -> PromptSize:
        return self._state.size

    def make_prices(self) -> CallPrices:
        return self._state.model.prices

    def emit(self, event: events.Event) -> None:
        self._state.emit(event)

    async def can_compact(self, order: CompactionOrder) -> bool:
        state = self._state
        if not state.engine.should_compress(state.size.grown_to_threshold.tokens):
            return False
        if len(state.messages.bodies) == 1 and state.size.is_full:
            return True
        engine_input = _make_compaction_input(state, order)
        return await asyncio.to_thread(state.engine.has_work, engine_input)

    async def draft(self, order: CompactionOrder, wait: SummaryWait) -> ConversationDraft:
        state = self._state
        session = state.session.id
        stored_messages = tuple(state.messages.stored)
        engine_input = _make_compaction_input(state, order)
        if order.reason is not CompactionReason.PREVIEW:
            tokens = order.tokens or state.tokens
            state.emit(
                events.CompactionStarted(session, order.reason.value, tokens, order.is_background)
            )
        pins = await state.store.state.list_pins(state.session.thread)
        state.engine.call(ContextEngine.pin, [note.text for note in pins])
        compaction = await run_engine(
            state.engine.engine, engine_input, state.model.summarizer, wait
        )
        return ConversationDraft(compaction, session, stored_messages, tuple(engine_input.messages))

    def is_usable(self, draft: ConversationDraft) -> bool:
        state = self._state
        ids = [message.id for message in draft.stored]
        current_ids = [message.id for message in state.messages.stored[: len(ids)]]
        return state.session.id == draft.session and current_ids == ids

    async def commit(self, draft: ConversationDraft, order: CompactionOrder) -> str:
        return await commit_compaction(self._state, await self._refit(draft), order)

    async def _refit(self, draft: ConversationDraft) -> ConversationDraft:
        """Add the messages that came after the draft. Prune and cut them if the prompt would be too large."""
        state = self._state
        start = len(draft.stored)
        new_bodies = state.messages.bodies[start:]
        if not new_bodies:
            return draft
        refit_input = RefitInput(
            draft.compaction,
            new_bodies,
            start,
            system=state.system,
            tools=state.toolbox.list_next_schemas(state.make_tool_room(state.system)),
            ids=[message.id for message in state.messages.stored],
        )
        compaction = await run_engine(
            state.engine.engine, refit_input, state.model.summarizer, SummaryWait()
        )
        return ConversationDraft(
            compaction,
            draft.session,
            tuple(state.messages.stored),
            tuple(state.messages.bodies),
        )

    async def discard(self, draft: ConversationDraft, reason: str) -> None:
        state = self._state
        await state.accounting.record_summary(draft.session, draft.compaction.usage)
        state.emit(events.CompactionVoid(state.session.id, reason))

    async def account_cancelled(self) -> None:
        await self._state.accounting.record_cancelled(self._state.session.id)

    async def learn_limit(
        self, verdict: ErrorVerdict, refusal: ProviderRefusal
    ) -> LearntWindow | None:
        state = self._state
        if state.model.answering_name != state.model.name:
            return None  # another model answered: its limit does not apply to this one
        learnt_window = await state.limits.learn_refusal(
            state.limit_key,
            verdict,
            refusal,
            assumed_window=state.model.window,
            tokens=state.tokens,
            output_cap=self._requested_cap,
        )
        await state.load_limits()
        return learnt_window

    def choose_step(self, attempts: RecoveryAttempts, verdict: ErrorVerdict) -> RecoveryStep:
        enabled = self._state.options.enabled
        return attempts.next_step(verdict, output_cap=self._requested_cap, enabled=enabled)

    async def shrink_payload(self) -> bool:
        state = self._state
        bodies = list(state.messages.bodies)
        smaller_bodies, outputs = shrink_messages(bodies, state.budget.preview_chars)
        if all(new is old for new, old in zip(smaller_bodies, bodies, strict=True)):
            return False
        compaction = Compaction(
            messages=smaller_bodies,
            summary="",
            tokens_before=state.tokens,
            tokens_after=state.model.counter.request(
                smaller_bodies, system=state.system, tools=state.toolbox.schemas
            ),
            kept=tuple(range(len(bodies))),
            author="none",
            reason=CompactionReason.PAYLOAD.value,
            to_store=tuple(outputs),
            steps=("dropped old images and stored big results",),
        )
        draft = ConversationDraft(
            compaction,
            state.session.id,
            tuple(state.messages.stored),
            tuple(bodies),
        )
        return not await commit_compaction(state, draft, CompactionOrder(CompactionReason.PAYLOAD))

    @property
    def _requested_cap(self) -> int | None:
        return get_output_cap(self.request) if self.request else None


def make_overflow_error(
    state: ConversationState, attempts: RecoveryAttempts, error: Exception
) -> ContextOverflowError:
    """Return an error that names the steps that were tried after a refusal for size, and the user's options."""
    name = state.model.name
    if not state.options.enabled:
        return ContextOverflowError(
            f"{name} refused the request for its size ({error}) and compression is disabled "
            "(compression.enabled). Nothing was changed; /new starts afresh."
        )
    return ContextOverflowError(
        f"The request does not fit into {name} ({state.model.window:,} tokens), {attempts.failure_text}. "
        "Your message and the "
        "history are stored; try /new for a fresh conversation or /compress with a focus. The provider said: "
        f"{error}"
    )
