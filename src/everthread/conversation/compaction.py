"""Run a compaction, from the engine's answer to the continued session.

The engine returns the new context. The texts it cites are stored first; then one transaction ends the session and
begins its continuation. A crash leaves the state before or after that transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine_input import CompactionInput, RefitInput
from everthread.conversation.cancellation import finish_despite_cancellation
from everthread.conversation.conversation_state import (
    LEFT_OUT_TOOLS_KEY,
    ConversationState,
)
from everthread.conversation.summary_note import find_note, with_note, without_note
from everthread.conversation.tool_results import store_output
from everthread.core.messages import Message, calls_of
from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.core.transcript import is_summary, strip_summary_marks
from everthread.core.types import Request, System
from everthread.errors import ContextOverflowError, EverthreadError
from everthread.providers.catalog import get_output_cap
from everthread.store.records import (
    MessageKind,
    NewCompaction,
    NewMessage,
    StoredMessage,
)
from everthread.thread import events
from everthread.thread.engine_jobs import compress_off_loop, refit_off_loop
from everthread.thread.managed import CompactionOrder, ManagedThread, ProviderRefusal
from everthread.thread.policy import (
    AUTOMATIC_REASONS,
    COLD_CACHE,
    MIN_FADING_COMPACTIONS,
    CallPrices,
    ContextState,
    PromptSize,
    make_fading_notice,
    make_fixed_size_notice,
)
from everthread.thread.recovery import RecoveryAttempts, RecoveryStep, shrink_messages
from everthread.thread.summary_wait import SummaryWait


@dataclass(frozen=True, slots=True)
class ConversationDraft:
    """A compaction that is not committed yet, and its input."""

    compaction: Compaction
    session: str
    stored: tuple[StoredMessage, ...]
    bodies: tuple[Message, ...]

    def is_current(self, conversation: ConversationState) -> bool:
        """Return whether the context still begins with the draft's input."""
        ids = [message.id for message in self.stored]
        return (
            conversation.session.id == self.session
            and [item.id for item in conversation.stored[: len(ids)]] == ids
        )


def make_compaction_input(
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


async def commit(
    conversation: ConversationState, draft: ConversationDraft, order: CompactionOrder
) -> str:
    """Continue the session with the compacted context. Return the reason if it was not continued, else "".

    A commit that has begun is finished even if its caller is cancelled.
    """
    cost = await finish_despite_cancellation(
        conversation.accounting.record_summary(
            conversation.session.id, draft.compaction.usage
        )
    )
    try:
        await conversation.setup.hooks.before_compaction(conversation.session.id)
    except Exception as error:  # noqa: BLE001 - it is reported; do not compact before the hook has saved its data
        reason = f"what must outlive a compaction could not be written down ({type(error).__name__}: {error})"
        conversation.report_failure(reason)
        return reason
    return await finish_despite_cancellation(
        _continue_session(conversation, draft, order, cost)
    )


async def _continue_session(
    conversation: ConversationState,
    draft: ConversationDraft,
    order: CompactionOrder,
    cost: Decimal | None,
) -> str:
    compaction = draft.compaction
    old_session = conversation.session
    # Messages since the draft are included.
    added_tokens = conversation.counter.messages(
        conversation.bodies[len(draft.stored) :]
    )
    tokens_before = max(conversation.tokens, compaction.tokens_before)
    tokens_after = compaction.tokens_after + added_tokens
    tools = {call.id: call.name for body in draft.bodies for call in calls_of(body)}
    for item in compaction.to_store:
        await store_output(conversation, item, tool=tools.get(item.call_id, ""))
    system = _rebuild_system(conversation, compaction)
    left_out_tools = conversation.toolbox.choose_left_out(system)
    record = NewCompaction(
        covered=[draft.stored[index].id for index in compaction.covered],
        tokens_before=tokens_before,
        tokens_after=tokens_after,
        summary=compaction.summary,
        author=compaction.author,
        figures=_make_figures(compaction, order, left_out_tools),
        warnings=compaction.warnings,
        reason=order.reason,
        focus=order.focus,
        duration=compaction.duration,
        cost=cost,
    )
    continuation = await conversation.setup.store.continue_session(
        old_session.id,
        _make_entries(conversation, draft),
        seen_count=len(draft.stored),
        compaction=record,
        system=system,
        nodes=compaction.nodes,
    )
    if not continuation.is_committed:
        reason = (
            "another process continued this conversation first; its context is used"
        )
        conversation.emit(events.CompactionVoid(old_session.id, reason))
        await conversation.reload()
        return reason
    await _switch_session(
        conversation,
        replace(compaction, tokens_before=tokens_before, tokens_after=tokens_after),
        left_out_tools=left_out_tools,
        record=record,
        is_background=order.is_background,
    )
    return ""


def _make_figures(
    compaction: Compaction, order: CompactionOrder, left_out_tools: Sequence[str]
) -> dict[str, Any]:
    """Return the figures that are stored with a compaction."""
    figures = asdict(compaction.verification) | {
        "phases": [asdict(phase) for phase in compaction.phases],
        "steps": list(compaction.steps),
        "decision": order.decision,
    }
    if left_out_tools:
        figures[LEFT_OUT_TOOLS_KEY] = list(left_out_tools)
    return figures


async def _switch_session(
    conversation: ConversationState,
    compaction: Compaction,
    *,
    left_out_tools: Sequence[str],
    record: NewCompaction,
    is_background: bool,
) -> None:
    """Switch to the continuation: inform the engine, save, then emit the events."""
    old_id = conversation.session.id
    messages_before = len(conversation.stored)
    await conversation.move_to_tip()
    conversation.toolbox.leave_out(left_out_tools, "a compaction")
    conversation.compaction_count += 1
    conversation.state.tokens_after_compaction = conversation.tokens
    conversation.state.call_pattern = conversation.state.call_pattern.after_compaction()
    conversation.state.pause.unjudged_tokens_before = (
        compaction.tokens_before if record.reason in AUTOMATIC_REASONS else 0
    )
    conversation.engine.on_compacted(compaction)
    conversation.engine.on_session_start(
        conversation.session.id, reason="compression", previous=old_id
    )
    await conversation.save()
    try:
        await conversation.setup.hooks.after_compaction(conversation.session.id, old_id)
    except Exception as error:  # noqa: BLE001 - it is reported; the compaction is committed and holds
        conversation.notify(
            f"After the compaction something failed: {type(error).__name__}: {error}"
        )
    conversation.emit(
        events.CompactionDone(
            conversation.session.id,
            old_id,
            reason=record.reason,
            tokens_before=compaction.tokens_before,
            tokens_after=conversation.tokens,
            messages_before=messages_before,
            messages_after=len(conversation.stored),
            author=compaction.author,
            count=conversation.compaction_count,
            verification=compaction.verification,
            duration=compaction.duration,
            cost=record.cost,
            steps=compaction.steps,
            warnings=compaction.warnings,
            decision=record.figures["decision"],
            covered=len(record.covered),
            background=is_background,
        )
    )
    if conversation.compaction_count >= MIN_FADING_COMPACTIONS:
        conversation.notify(
            make_fading_notice(conversation.compaction_count, "/new starts afresh")
        )


def _make_entries(
    conversation: ConversationState, draft: ConversationDraft
) -> list[int | NewMessage]:
    """Return the compacted context for the store: ids of unchanged messages, and new messages."""
    entries: list[int | NewMessage] = []
    for message, index in zip(
        draft.compaction.messages, draft.compaction.kept, strict=True
    ):
        if index is None:
            kind: MessageKind = "summary" if is_summary(message) else "derived"
            entries.append(
                NewMessage(
                    strip_summary_marks([message])[0],
                    kind,
                    tokens=conversation.counter.message(message),
                )
            )
        elif message is draft.bodies[index]:
            entries.append(draft.stored[index].id)
        else:
            source = draft.stored[index]
            origin = source.id if source.origin is None else source.origin
            entries.append(
                NewMessage(
                    message,
                    "derived",
                    tokens=conversation.counter.message(message),
                    origin=origin,
                )
            )
    return entries


def _rebuild_system(conversation: ConversationState, compaction: Compaction) -> System:
    """Return the system prompt, rebuilt if a function builds it, with the note about summaries."""
    note = find_note(conversation.system) or compaction.system_note
    prompt = without_note(conversation.system)
    if callable(conversation.setup.system):
        try:
            prompt = conversation.setup.build_system()
        except Exception as error:  # noqa: BLE001 - it is reported; the previous prompt still holds
            reason = f"{type(error).__name__}: {error}"
            conversation.notify(
                f"The system prompt could not be written anew, the old one stays: {reason}"
            )
    return with_note(prompt, note)


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
        if not conversation.engine.should_compress(
            conversation.size.grown_to_threshold.tokens
        ):
            return False
        if len(conversation.bodies) == 1 and conversation.size.is_full:
            return True
        engine_input = make_compaction_input(conversation, order)
        return await asyncio.to_thread(conversation.engine.has_work, engine_input)

    async def draft(
        self, order: CompactionOrder, wait: SummaryWait
    ) -> ConversationDraft:
        conversation = self._conversation
        session = conversation.session.id
        stored_messages = tuple(conversation.stored)
        engine_input = make_compaction_input(conversation, order)
        if not order.is_preview:
            tokens = order.tokens or conversation.tokens
            conversation.emit(
                events.CompactionStarted(
                    session, order.reason, tokens, order.is_background
                )
            )
        pins = await conversation.setup.store.pins(conversation.session.thread)
        conversation.engine.pin([note.text for note in pins])
        compaction = await compress_off_loop(
            conversation.engine, engine_input, conversation.summarizer, wait
        )
        return ConversationDraft(
            compaction, session, stored_messages, tuple(engine_input.messages)
        )

    def is_usable(self, draft: ConversationDraft) -> bool:
        return draft.is_current(self._conversation)

    async def commit(self, draft: ConversationDraft, order: CompactionOrder) -> str:
        return await commit(self._conversation, await self._refit(draft), order)

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
        compaction = await refit_off_loop(
            conversation.engine, refit_input, conversation.summarizer
        )
        return ConversationDraft(
            compaction,
            draft.session,
            tuple(conversation.stored),
            tuple(conversation.bodies),
        )

    async def discard(self, draft: ConversationDraft, reason: str) -> None:
        conversation = self._conversation
        await conversation.accounting.record_summary(
            draft.session, draft.compaction.usage
        )
        conversation.emit(events.CompactionVoid(conversation.session.id, reason))

    async def account_cancelled(self) -> None:
        await self._conversation.accounting.record_cancelled(
            self._conversation.session.id
        )

    async def learn_limit(
        self, verdict: ErrorVerdict, refusal: ProviderRefusal
    ) -> None:
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

    def choose_step(
        self, attempts: RecoveryAttempts, verdict: ErrorVerdict
    ) -> RecoveryStep:
        enabled = self._conversation.setup.options.enabled
        return attempts.next_step(
            verdict, output_cap=self._requested_cap, enabled=enabled
        )

    async def shrink_payload(self) -> bool:
        conversation = self._conversation
        bodies = list(conversation.bodies)
        smaller_bodies, outputs = shrink_messages(
            bodies, conversation.budget.preview_chars
        )
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
        return not await commit(conversation, draft, CompactionOrder("payload"))

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


async def compact_for_hygiene(
    thread: ManagedThread[ConversationDraft], conversation: ConversationState
) -> None:
    """Compact before an incoming message, at 85 % of the window. Only report a failure."""
    if not conversation.policy.is_hygiene_due(
        conversation.size, len(conversation.stored)
    ):
        return
    old_retry_size = conversation.state.retry_above_tokens
    try:
        await thread.compact_now(CompactionOrder("hygiene"))
    except EverthreadError as error:
        conversation.report_failure(error)
    conversation.state.retry_above_tokens = min(
        conversation.state.retry_above_tokens, old_retry_size
    )


class FixedPromptWatch:
    """Keep system prompt and tools together below the threshold; report once if that is impossible."""

    def __init__(self, conversation: ConversationState) -> None:
        self._conversation = conversation
        self._is_reported = False

    def reset(self) -> None:
        """Allow another report, after a change of model or a manual compaction."""
        self._is_reported = False

    async def choose_tools(self) -> None:
        """Leave out tools before a session's first request if they take too much of the window."""
        conversation = self._conversation
        if conversation.toolbox.is_settled:
            return
        fixed_tokens = conversation.fixed_tokens
        conversation.toolbox.choose_tools()
        if (
            fixed_tokens
            >= conversation.nominal_budget.threshold
            > conversation.fixed_tokens
        ):
            self._report(
                fixed_tokens,
                f"{len(conversation.toolbox.left_out)} tools that it does not use are left out.",
            )
        if conversation.toolbox.left_out:
            await conversation.save()

    def check(self) -> None:
        """Report system prompt and tools that reach the threshold alone."""
        conversation = self._conversation
        fixed_tokens = conversation.size.fixed_tokens
        if (
            fixed_tokens >= conversation.nominal_budget.threshold
            and not conversation.toolbox.can_free_enough()
        ):
            self._report(
                fixed_tokens, "Offer fewer tools, or use a model with a larger window."
            )

    def _report(self, fixed_tokens: int, advice: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._conversation.notify(
                make_fixed_size_notice(fixed_tokens, self._conversation.window, advice)
            )
