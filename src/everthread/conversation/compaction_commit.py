"""Commit a compaction: store the texts it cites, then continue the session in one transaction.

A crash leaves the state before or after that transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine
from everthread.conversation.cancellation import finish_despite_cancellation
from everthread.conversation.conversation_state import ConversationState
from everthread.conversation.saved_state import LEFT_OUT_TOOLS_KEY
from everthread.conversation.summary_note import find_note, with_note, without_note
from everthread.core.messages import Message
from everthread.core.summary_marks import is_summary, strip_summary_marks
from everthread.core.types import System
from everthread.store.records import (
    MessageKind,
    NewCompaction,
    NewMessage,
    StoredMessage,
)
from everthread.thread import events
from everthread.thread.compaction_records import make_compaction_record, make_done_event
from everthread.thread.large_results import add_tool_names, store_outputs
from everthread.thread.managed_prompt import CompactionOrder
from everthread.thread.policy.notices import (
    MIN_REPEATED_COMPACTIONS,
    make_repeated_compaction_notice,
)


@dataclass(frozen=True, slots=True)
class ConversationDraft:
    """A compaction that is not committed yet, and its input."""

    compaction: Compaction
    session: str
    stored: tuple[StoredMessage, ...]
    bodies: tuple[Message, ...]


async def commit_compaction(
    state: ConversationState, draft: ConversationDraft, order: CompactionOrder
) -> str:
    """Continue the session with the compacted context. Return the reason if it was not continued, else "".

    A commit that has begun is finished even if its caller is cancelled.
    """
    cost = await finish_despite_cancellation(
        state.accounting.record_summary(state.session.id, draft.compaction.usage)
    )
    try:
        if state.setup.before_compaction is not None:
            await state.setup.before_compaction(state.session.id)
    except Exception as error:  # noqa: BLE001 - it is reported; do not compact before the data is saved
        reason = f"data that must outlive it could not be saved ({type(error).__name__}: {error})"
        state.report_failure(reason)
        return reason
    return await finish_despite_cancellation(_continue_session(state, draft, order, cost))


async def _continue_session(
    state: ConversationState,
    draft: ConversationDraft,
    order: CompactionOrder,
    cost: Decimal | None,
) -> str:
    """Continue the session with the compacted messages.

    Return an empty string, or the reason why the draft is not used: another process continued the session first.
    """
    compaction = draft.compaction
    old_session = state.session
    # Messages since the draft are included.
    added_tokens = state.model.counter.messages(state.messages.bodies[len(draft.stored) :])
    tokens_before = max(state.tokens, compaction.tokens_before)
    tokens_after = compaction.tokens_after + added_tokens
    await store_outputs(
        state.store,
        old_session.thread,
        add_tool_names(compaction.to_store, draft.bodies),
        state.emit,
        session=old_session.id,
    )
    system = _rebuild_system(state, compaction)
    left_out_tools = state.toolbox.choose(state.make_tool_room(system))
    record = make_compaction_record(compaction, order, cost)
    if left_out_tools:
        figures = {**record.figures, LEFT_OUT_TOOLS_KEY: list(left_out_tools)}
        record = replace(record, figures=figures)
    record = replace(
        record,
        covered=[draft.stored[index].id for index in compaction.covered],
        tokens_before=tokens_before,
        tokens_after=tokens_after,
    )
    continuation = await state.store.continue_session(
        old_session.id,
        _make_entries(state, draft),
        seen_count=len(draft.stored),
        compaction=record,
        system=system,
        nodes=compaction.nodes,
    )
    if not continuation.is_committed:
        reason = "another process continued this conversation first; its context is used"
        state.emit(events.CompactionVoid(old_session.id, reason))
        await state.reload()
        return reason
    await _switch_session(
        state,
        replace(compaction, tokens_before=tokens_before, tokens_after=tokens_after),
        left_out_tools=left_out_tools,
        record=record,
        order=order,
    )
    return ""


async def _switch_session(
    state: ConversationState,
    compaction: Compaction,
    *,
    left_out_tools: Sequence[str],
    record: NewCompaction,
    order: CompactionOrder,
) -> None:
    """Switch to the continuation: inform the engine, save, then emit the events."""
    old_id = state.session.id
    messages_before = len(state.messages.stored)
    await state.move_to_tip()
    state.leave_out_tools(left_out_tools, "a compaction")
    state.compaction_count += 1
    state.learnt_usage.record_compacted_size(state.tokens)
    state.learnt_usage.record_compaction(compaction.tokens_before, is_automatic=order.is_automatic)
    state.engine.call(ContextEngine.on_compacted, compaction)
    state.report_session_start("compression", old_id)
    await state.save()
    state.emit(
        make_done_event(
            replace(compaction, tokens_after=state.tokens),
            record,
            session=state.session.id,
            previous=old_id,
            messages_before=messages_before,
            messages_after=len(state.messages.stored),
            number=state.compaction_count,
            covered_count=len(record.covered),
            is_background=order.is_background,
        )
    )
    if state.compaction_count >= MIN_REPEATED_COMPACTIONS:
        state.notify(make_repeated_compaction_notice(state.compaction_count, "/new starts afresh"))


def _make_entries(state: ConversationState, draft: ConversationDraft) -> list[int | NewMessage]:
    """Return the compacted context for the store: ids of unchanged messages, and new messages."""
    entries: list[int | NewMessage] = []
    for message, index in zip(draft.compaction.messages, draft.compaction.kept, strict=True):
        if index is None:
            kind: MessageKind = "summary" if is_summary(message) else "derived"
            entries.append(
                NewMessage(
                    strip_summary_marks([message])[0],
                    kind,
                    tokens=state.model.counter.message(message),
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
                    tokens=state.model.counter.message(message),
                    origin=origin,
                )
            )
    return entries


def _rebuild_system(state: ConversationState, compaction: Compaction) -> System:
    """Return the system prompt, rebuilt if a function builds it, with the note about summaries."""
    note = find_note(state.system) or compaction.system_note
    prompt = without_note(state.system)
    if callable(state.setup.system):
        try:
            prompt = state.setup.build_system()
        except Exception as error:  # noqa: BLE001 - it is reported; the previous prompt still holds
            reason = f"{type(error).__name__}: {error}"
            state.notify(
                f"The system prompt could not be rebuilt; the previous one stays: {reason}"
            )
    return with_note(prompt, note)
