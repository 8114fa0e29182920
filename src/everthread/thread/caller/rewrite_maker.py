"""Make rewrites: the messages that replace the beginning of a client's history.

A rewrite is never changed. A request whose beginning has one uses it; if two are made at the same time, both requests
use the first. So the next, longer request begins with the same bytes, in every process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ReportProgress, ignore_event
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.messages import Message
from everthread.core.tool_outputs import OutputToStore
from everthread.errors import EngineError
from everthread.store.rewrite_records import NewRewrite, Rewrite
from everthread.store.store import Store
from everthread.thread.accounting import Accounting
from everthread.thread.caller.compaction_job import (
    CompactionJob,
    CompactionJobResult,
    PruningJob,
)
from everthread.thread.caller.replacement_text import render_replacement
from everthread.thread.caller.rewrite_task import (
    RewriteState,
    RewriteTask,
    TaskMessages,
)
from everthread.thread.caller.start_replacement import StartReplacement, replace_start
from everthread.thread.compaction_records import make_compaction_record, make_done_event
from everthread.thread.engines.engine_jobs import CompactionRunner, EngineSetup
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.events import CompactionVoid, Listener, PayloadShrunk
from everthread.thread.large_results import add_tool_names, store_outputs
from everthread.thread.payload_shrinking import shrink_messages
from everthread.thread.wire_messages import decode_messages

PRUNE_ONLY_STRENGTH = -1
"""The strength of a rewrite that keeps every message and only drops images and stores large results."""
NOTHING_TO_REPLACE = "all messages since the last compaction have to stay as they are"


@dataclass(frozen=True, slots=True)
class RewriteDraft:
    """A rewrite that is not in use yet."""

    compaction: Compaction
    rewrite: Rewrite | None = None
    """None if nothing could be made smaller."""
    new_rewrite: NewRewrite | None = None
    """The rewrite to store; None if another request or process stored it already."""
    is_background: bool = False
    history_length: int = 0
    """Number of messages that the client had sent when the rewrite was made."""


class RewriteMaker:
    """Make rewrites with an engine, and store them."""

    def __init__(
        self,
        store: Store,
        listener: Listener,
        accounting: Accounting,
        runner: CompactionRunner,
    ) -> None:
        self._store = store
        self._listener = listener
        self._accounting = accounting
        self._runner = runner

    async def draft(
        self,
        task: RewriteTask,
        setup: EngineSetup,
        summarizer: Summarizer | None = None,
        *,
        wait: SummaryWait | None = None,
        events: ReportProgress = ignore_event,
    ) -> RewriteDraft:
        """Make a rewrite that covers more than the previous one. Only the usage of its summary is stored.

        Without a summariser, the journal writes the summary.
        """
        messages = task.list_messages()
        wire_messages = messages.wire_messages
        base_state = task.base_state
        pins = [pin.text for pin in await self._store.pins(task.thread)]
        job = CompactionJob(
            api=task.settings.api,
            request=task.settings.request_with_recall,
            wire_messages=wire_messages,
            tokens=task.target_tokens,
            level=task.order.level,
            state=base_state.engine,
            pins=pins,
            summary_key=setup.summary_key,
            max_tail_count=messages.max_tail_count,
            inherited_count=max(0, len(wire_messages) - task.new_count),
        )
        result = await self._runner.run(setup, job, summarizer, wait=wait, events=events)
        compaction = result.compaction
        cost = await self._accounting.record_summary(
            task.thread, compaction.usage, task.settings.charge
        )
        start_replacement = result.start_replacement
        if start_replacement is None:
            return RewriteDraft(replace(compaction, changed=False))
        if start_replacement.tail_count == task.new_count or not start_replacement.replacement:
            return RewriteDraft(replace(compaction, changed=False, reason=NOTHING_TO_REPLACE))
        state = _make_counted_state(task, messages, result)
        note = base_state.note or compaction.system_note
        rewrite = replace(
            _make_rewrite(task, messages, start_replacement),
            depth=(task.base_rewrite.depth if task.base_rewrite else 0) + 1,
            state=replace(state, engine=result.state, note=note).dump(),
        )
        return RewriteDraft(
            compaction,
            rewrite,
            _make_new_rewrite(task, messages, result, rewrite=rewrite, cost=cost),
            is_background=task.order.is_background,
            history_length=len(task.caller_history),
        )

    async def commit(self, draft: RewriteDraft) -> Rewrite:
        """Store a rewrite and the outputs it cites; return the stored one, which another process may have made."""
        if draft.new_rewrite is None:
            raise EngineError("a compaction that changed nothing cannot be committed")
        rewrite = draft.new_rewrite.rewrite
        compaction = draft.compaction
        await self._store_outputs(rewrite.thread, compaction.to_store, compaction.messages)
        stored_rewrite = await self._store.commit_rewrite(draft.new_rewrite)
        if stored_rewrite.replacement == rewrite.replacement:
            event = make_done_event(
                compaction,
                draft.new_rewrite.record,
                session=rewrite.thread,
                previous=rewrite.thread,
                messages_before=draft.new_rewrite.context.compacted_count,
                messages_after=len(compaction.messages),
                number=rewrite.depth,
                covered_count=rewrite.replaced_count,
                is_background=draft.is_background,
            )
            self._listener(event)
        else:
            reason = "another process rewrote this beginning first; its rewrite is used"
            self._listener(CompactionVoid(rewrite.thread, reason))
        return stored_rewrite

    async def prune_new_messages(
        self, task: RewriteTask, setup: EngineSetup
    ) -> RewriteDraft | None:
        """Prune the messages that arrived after a rewrite was prepared. Return None if nothing became smaller."""
        base = task.base_rewrite
        if base is None:
            return None
        messages = task.list_messages()
        base_state = task.base_state
        job = PruningJob(
            api=task.settings.api,
            request=task.settings.request_with_recall,
            wire_messages=messages.wire_messages,
            tokens=task.tokens,
            state=base_state.engine,
            summary_key=setup.summary_key,
            max_tail_count=messages.max_tail_count,
        )
        result = await self._runner.run(setup, job)
        start_replacement = result.start_replacement
        if (
            start_replacement is None
            or start_replacement.tail_count == task.new_count
            or not start_replacement.replacement
        ):
            return None
        state = _make_counted_state(task, messages, result)
        rewrite = replace(
            _make_rewrite(task, messages, start_replacement),
            depth=base.depth,
            session=base.session,
            state=replace(state, engine=base_state.engine, note=base_state.note).dump(),
        )
        return RewriteDraft(result.compaction, rewrite)

    async def store_pruned(self, draft: RewriteDraft) -> Rewrite:
        """Store a rewrite that only prunes, and the outputs it cites."""
        if draft.rewrite is None:
            raise EngineError("a rewrite that changed nothing cannot be stored")
        compaction = draft.compaction
        await self._store_outputs(draft.rewrite.thread, compaction.to_store, compaction.messages)
        return await self._store.put_rewrite(draft.rewrite)

    async def shrink_payload(self, task: RewriteTask) -> Rewrite | None:
        """Drop old images, and store and cite large results; no text is lost. Return None if there are neither."""
        messages = task.list_messages()
        wire_messages = messages.wire_messages
        api = task.settings.api
        model = task.settings.model
        bodies = decode_messages(api, wire_messages, model)
        smaller_bodies, to_store = shrink_messages(bodies, task.budget.preview_chars)
        start_replacement = replace_start(
            api,
            smaller_bodies,
            wire_messages,
            task.settings.request_with_recall,
            max_tail_count=messages.max_tail_count,
        )
        pairs = zip(smaller_bodies, bodies, strict=True)
        is_same = all(smaller_body is body for smaller_body, body in pairs)
        if is_same or not start_replacement.replacement:
            return None
        await self._store_outputs(task.thread, to_store, bodies)
        state = replace(task.base_state, model="", tokens=0).dump()
        rewrite = replace(
            _make_rewrite(task, messages, start_replacement),
            strength=PRUNE_ONLY_STRENGTH,
            depth=task.base_rewrite.depth if task.base_rewrite else 0,
            state=state if task.base_rewrite else {},
        )
        covered_texts = messages.texts[: len(messages.texts) - start_replacement.tail_count]
        chars_before = sum(len(text) for text in covered_texts)
        chars_after = len(rewrite.replacement.decode())
        self._listener(
            PayloadShrunk(
                task.thread, rewrite.replaced_count, chars_before, chars_after, len(to_store)
            )
        )
        return await self._store.put_rewrite(rewrite)

    async def _store_outputs(
        self, thread: str, outputs: Iterable[OutputToStore], messages: Iterable[Message]
    ) -> None:
        await store_outputs(self._store, thread, add_tool_names(outputs, messages))


def _make_rewrite(
    task: RewriteTask, messages: TaskMessages, start_replacement: StartReplacement
) -> Rewrite:
    """Return the rewrite that covers the history up to the messages that stay unchanged."""
    history = task.caller_history.history
    length = len(history) - start_replacement.tail_count
    text = render_replacement(
        start_replacement.replacement, messages.messages, messages.protected_count
    )
    return Rewrite(
        tenant=task.caller_history.client_scope.tenant,
        engine=task.engine_key,
        digest=history.digest(length),
        strength=int(task.order.level),
        replaced_count=length,
        skeleton=history.skeleton(length),
        results=history.join_result_hashes(0, length),
        thread=task.thread,
        replacement=text.encode(),
    )


def _make_counted_state(
    task: RewriteTask, messages: TaskMessages, result: CompactionJobResult
) -> RewriteState:
    """Return the state of a rewrite, with the tokens of its replacement unless protected messages were left out."""
    if messages.protected_count:
        return RewriteState()
    return RewriteState(model=task.settings.model, tokens=result.tokens)


def _make_new_rewrite(
    task: RewriteTask,
    messages: TaskMessages,
    result: CompactionJobResult,
    *,
    rewrite: Rewrite,
    cost: Decimal | None,
) -> NewRewrite:
    """Return the record that stores a rewrite and its compaction."""
    lead_messages = [message.value for message in messages.messages[: messages.protected_count]]
    lead_count = len(decode_messages(task.settings.api, lead_messages, task.settings.model))
    return NewRewrite(
        rewrite,
        make_compaction_record(result.compaction, task.order, cost),
        replace(result.context, leading_count=lead_count),
        scope=task.caller_history.client_scope.session_scope,
        digest=task.caller_history.digest,
        base_session=task.base_rewrite.session if task.base_rewrite else "",
        digests=task.caller_history.history.digests,
    )
