"""The `ThreadContext` of a conversation: make a compaction with its engine, learn from refusals."""

from __future__ import annotations

import asyncio

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine_input import CompactionInput, RefitInput
from everthread.conversation.compaction_commit import (
    ConversationDraft,
    commit_compaction,
)
from everthread.conversation.conversation_state import ConversationState
from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.core.types import Request
from everthread.errors import ContextOverflowError
from everthread.providers.catalog import get_output_cap
from everthread.thread import events
from everthread.thread.engines.engine_jobs import compress_off_loop, refit_off_loop
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.payload_shrinking import shrink_messages
from everthread.thread.policy.call_prices import CallPrices
from everthread.thread.policy.compaction_policy import COLD_CACHE
from everthread.thread.policy.context_state import ContextState
from everthread.thread.policy.prompt_size import PromptSize
from everthread.thread.recovery import RecoveryAttempts, RecoveryStep
from everthread.thread.thread_context import CompactionOrder, ProviderRefusal


def _make_compaction_input(
    conversation: ConversationState, order: CompactionOrder
) -> CompactionInput:
    """Return the context in the form that an engine takes."""
    tokens = order.tokens or conversation.tokens
    if order.is_background and order.reason != COLD_CACHE:
        # A summary prepared ahead is used only when the prompt reaches the threshold.
        tokens = max(tokens, conversation.budget.threshold)
    return CompactionInput(
        list(conversation.bodies),
        current_tokens=tokens,
        focus_topic=order.focus,
        system=conversation.system,
        tools=conversation.toolbox.next_schemas,
        level=order.level,
        manual=order.is_manual,
        dry_run=order.is_preview,
        ids=[message.id for message in conversation.stored],
    )


class ConversationContext:
    """`ThreadContext` of a conversation: the store has its messages, a compaction continues the session."""

    def __init__(self, conversation: ConversationState) -> None:
        self._conversation = conversation
        self.request: Request | None = None
        """The request that was sent last."""

    @property
    def session_id(self) -> str:
        return self._conversation.session.id

    @property
    def model(self) -> str:
        return self._conversation.route.name

    @property
    def state(self) -> ContextState:
        return self._conversation.state

    @property
    def size(self) -> PromptSize:
        return self._conversation.size

    @property
    def prices(self) -> CallPrices:
        return self._conversation.prices

    def emit(self, event: events.Event) -> None:
        self._conversation.emit(event)

    async def can_compact(self, order: CompactionOrder) -> bool:
        conversation = self._conversation
        if not conversation.engine.should_compress(conversation.size.grown_to_threshold.tokens):
            return False
        if len(conversation.bodies) == 1 and conversation.size.is_full:
            return True
        engine_input = _make_compaction_input(conversation, order)
        return await asyncio.to_thread(conversation.engine.has_work, engine_input)

    async def draft(self, order: CompactionOrder, wait: SummaryWait) -> ConversationDraft:
        conversation = self._conversation
        session = conversation.session.id
        stored_messages = tuple(conversation.stored)
        engine_input = _make_compaction_input(conversation, order)
        if not order.is_preview:
            tokens = order.tokens or conversation.tokens
            conversation.emit(
                events.CompactionStarted(session, order.reason, tokens, order.is_background)
            )
        pins = await conversation.setup.store.pins(conversation.session.thread)
        conversation.engine.pin([note.text for note in pins])
        compaction = await compress_off_loop(
            conversation.engine, engine_input, conversation.summarizer, wait
        )
        return ConversationDraft(compaction, session, stored_messages, tuple(engine_input.messages))

    def is_usable(self, draft: ConversationDraft) -> bool:
        conversation = self._conversation
        ids = [message.id for message in draft.stored]
        current_ids = [message.id for message in conversation.stored[: len(ids)]]
        return conversation.session.id == draft.session and current_ids == ids

    async def commit(self, draft: ConversationDraft, order: CompactionOrder) -> str:
        return await commit_compaction(self._conversation, await self._refit(draft), order)

    async def _refit(self, draft: ConversationDraft) -> ConversationDraft:
        """Add the messages that came after the draft. Prune and cut them if the prompt would be too large."""
        conversation = self._conversation
        start = len(draft.stored)
        new_bodies = conversation.bodies[start:]
        if not new_bodies:
            return draft
        refit_input = RefitInput(
            draft.compaction,
            new_bodies,
            start,
            system=conversation.system,
            tools=conversation.toolbox.next_schemas,
            ids=[message.id for message in conversation.stored],
        )
        compaction = await refit_off_loop(conversation.engine, refit_input, conversation.summarizer)
        return ConversationDraft(
            compaction,
            draft.session,
            tuple(conversation.stored),
            tuple(conversation.bodies),
        )

    async def discard(self, draft: ConversationDraft, reason: str) -> None:
        conversation = self._conversation
        await conversation.accounting.record_summary(draft.session, draft.compaction.usage)
        conversation.emit(events.CompactionVoid(conversation.session.id, reason))

    async def account_cancelled(self) -> None:
        await self._conversation.accounting.record_cancelled(self._conversation.session.id)

    async def learn_limit(self, verdict: ErrorVerdict, refusal: ProviderRefusal) -> None:
        conversation = self._conversation
        if conversation.answering_model != conversation.route.name:
            return  # another model answered: its limit does not apply to this one
        limit = await conversation.limits.learn_refusal(
            conversation.limit_key,
            verdict,
            window=conversation.window,
            tokens=conversation.tokens,
            output_cap=self._requested_cap,
            status=refusal.status,
            body=refusal.body,
        )
        await conversation.load_caps()
        if limit is not None:
            conversation.use_window(limit.tokens)
            event = events.LimitLearnt(
                conversation.session.id,
                conversation.route.name,
                limit.tokens,
                source=limit.source,
                stored=limit.is_stored,
            )
            conversation.emit(event)

    def choose_step(self, attempts: RecoveryAttempts, verdict: ErrorVerdict) -> RecoveryStep:
        enabled = self._conversation.setup.options.enabled
        return attempts.next_step(verdict, output_cap=self._requested_cap, enabled=enabled)

    async def shrink_payload(self) -> bool:
        conversation = self._conversation
        bodies = list(conversation.bodies)
        smaller_bodies, outputs = shrink_messages(bodies, conversation.budget.preview_chars)
        if all(new is old for new, old in zip(smaller_bodies, bodies, strict=True)):
            return False
        compaction = Compaction(
            messages=smaller_bodies,
            summary="",
            tokens_before=conversation.tokens,
            tokens_after=conversation.counter.request(
                smaller_bodies, system=conversation.system, tools=conversation.tools
            ),
            kept=tuple(range(len(bodies))),
            author="none",
            reason="payload",
            to_store=tuple(outputs),
            steps=("dropped old images and stored big results",),
        )
        draft = ConversationDraft(
            compaction,
            conversation.session.id,
            tuple(conversation.stored),
            tuple(bodies),
        )
        return not await commit_compaction(conversation, draft, CompactionOrder("payload"))

    @property
    def _requested_cap(self) -> int | None:
        return get_output_cap(self.request) if self.request else None


def make_overflow_error(
    conversation: ConversationState, attempts: RecoveryAttempts, error: Exception
) -> ContextOverflowError:
    """Return an error that names the steps that were tried after a refusal for size, and the user's options."""
    name = conversation.route.name
    if not conversation.setup.options.enabled:
        return ContextOverflowError(
            f"{name} refused the request for its size ({error}) and compression is disabled "
            "(compression.enabled). Nothing was changed; /new starts afresh."
        )
    return ContextOverflowError(
        f"The request does not fit into {name} ({conversation.window:,} tokens), {attempts.failure_text}. "
        "Your message and the "
        "history are stored; try /new for a fresh conversation or /compress with a focus. The provider said: "
        f"{error}"
    )
