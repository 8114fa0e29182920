"""Make rewrites: the messages that replace the beginning of a client's history.

A rewrite is never changed, only deleted by an undo. A request whose beginning has one uses it; if two are made at the
same time, both requests use the first. So the next, longer request begins with the same bytes, in every process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ReportProgress
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.messages import Message
from everthread.core.tokens.budget import Budget
from everthread.core.tool_outputs import OutputToStore
from everthread.errors import EngineError
from everthread.store.rewrite_records import NewRewrite, Rewrite, RewriteState
from everthread.store.store import Store
from everthread.thread.accounting import Accounting
from everthread.thread.caller.caller_request import CallerHistory, CallerMessage, CallSettings
from everthread.thread.caller.compaction_job import (
    CompactionJob,
    CompactionJobResult,
    RefitJob,
)
from everthread.thread.caller.provider_compactions import count_protected_messages
from everthread.thread.caller.start_replacement import parse_replacement, replace_start
from everthread.thread.compaction_records import make_compaction_record, make_done_event
from everthread.thread.engines.engine_jobs import CompactionRunner, EngineSetup
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.events import CompactionVoid, Listener, PayloadShrunk
from everthread.thread.large_results import add_tool_names, store_outputs
from everthread.thread.managed_prompt import CompactionOrder
from everthread.thread.payload_shrinking import shrink_messages
from everthread.thread.wire_messages import JsonMessages, decode_messages, encode_value

PRUNE_ONLY_STRENGTH = -1
"""The strength of a rewrite that keeps every message and only drops images and stores large results."""
NOTHING_TO_REPLACE = "all messages since the last compaction have to stay as they are"


class RewriteTask:
    """A history to compact, with everything that the compaction needs.

    `base_rewrite`: the rewrite that the new one continues. `tokens`: the prompt's tokens as the provider counts them.
    """

    def __init__(
        self,
        caller_history: CallerHistory,
        settings: CallSettings,
        *,
        thread_id: str,
        engine_key: str,
        order: CompactionOrder,
        budget: Budget,
        tokens: int,
        base_rewrite: Rewrite | None,
    ) -> None:
        self.caller_history = caller_history
        self.settings = settings
        self.thread_id = thread_id
        self.engine_key = engine_key
        self.order = order
        self.budget = budget
        self.tokens = tokens
        self.base_rewrite = base_rewrite
        self.base_state = base_rewrite.state if base_rewrite else RewriteState()
        covered_count = base_rewrite.replaced_count if base_rewrite else 0
        self.new_count = len(caller_history) - covered_count
        """The number of the caller's messages that are not covered yet."""
        self.messages: list[CallerMessage] = [
            *(parse_replacement(base_rewrite) if base_rewrite else ()),
            *caller_history.messages[covered_count:],
        ]
        """The messages that the provider gets without this compaction; each is decoded on first use."""
        self.texts = [message.text for message in self.messages]
        self.protected_count = count_protected_messages(self.messages, self.texts)
        """The number of messages, up to the provider's own last compaction, that are never changed."""
        self.wire_messages = JsonMessages(self.texts[self.protected_count :])
        """The messages that may be changed."""
        self.max_tail_count = min(self.new_count, len(self.wire_messages))
        """The number of messages at the end that are the caller's own and not covered yet."""

    @property
    def base_depth(self) -> int:
        """The number of compactions that the history went through before this one."""
        return self.base_rewrite.depth if self.base_rewrite else 0


@dataclass(frozen=True, slots=True)
class RewriteDraft:
    """A rewrite that is not in use yet."""

    compaction: Compaction
    rewrite: Rewrite | None = None
    """The rewrite, or None if nothing could be made smaller."""
    new_rewrite: NewRewrite | None = None
    """The rewrite to store, or None if another request or process stored it already."""
    base_rewrite: Rewrite | None = None
    """The rewrite that the new one continues."""

    @property
    def history_length(self) -> int:
        """The number of messages that the client had sent when the rewrite was made."""
        return len(self.new_rewrite.digests) if self.new_rewrite else 0


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
        summarizer: Summarizer,
        *,
        wait: SummaryWait,
        events: ReportProgress,
    ) -> RewriteDraft:
        """Make a rewrite that covers more than the previous one. Only the usage of its summary is stored."""
        target_tokens = task.order.compute_target_tokens(task.tokens, task.budget.threshold)
        job = await self._make_job(task, setup, target_tokens)
        result = await self._runner.run(setup, job, summarizer, wait=wait, events=events)
        cost = await self._accounting.record_summary(
            task.thread_id, result.compaction.usage, task.settings.charge
        )
        return _make_draft(task, result, cost)

    async def refit(
        self, draft: RewriteDraft, task: RewriteTask, setup: EngineSetup
    ) -> RewriteDraft:
        """Add the messages since a draft was made, pruned and cut until the result has the usual size."""
        if draft.new_rewrite is None:
            raise EngineError("a compaction that changed nothing cannot be refitted")
        new_count = len(task.caller_history) - draft.history_length
        job = await self._make_job(task, setup, task.tokens)
        result = await self._runner.run(setup, RefitJob(job, draft.compaction, new_count))
        refitted_draft = _make_draft(task, result, draft.new_rewrite.record.cost)
        return draft if refitted_draft.rewrite is None else refitted_draft

    async def commit(self, draft: RewriteDraft, order: CompactionOrder) -> Rewrite:
        """Store a rewrite and the outputs that it cites.

        Return the stored rewrite, which another process may have made.
        """
        if draft.new_rewrite is None:
            raise EngineError("a compaction that changed nothing cannot be committed")
        rewrite = draft.new_rewrite.rewrite
        compaction = draft.compaction
        await self._store_outputs(rewrite.thread, compaction.to_store, compaction.messages)
        stored_rewrite = await self._store.client_histories.commit_rewrite(draft.new_rewrite)
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
                is_background=order.is_background,
            )
            self._listener(event)
        else:
            reason = "another process rewrote this beginning first; its rewrite is used"
            self._listener(CompactionVoid(rewrite.thread, reason))
        return stored_rewrite

    async def shrink_payload(self, task: RewriteTask) -> Rewrite | None:
        """Drop old images, and store and cite large results; no text is lost. Return None if there are neither."""
        settings = task.settings
        bodies = decode_messages(settings.api, task.wire_messages, settings.model)
        smaller_bodies, to_store = shrink_messages(bodies, task.budget.preview_chars)
        replacement, tail_count = replace_start(
            settings.api,
            smaller_bodies,
            task.wire_messages,
            settings.request_with_recall,
            max_tail_count=task.max_tail_count,
        )
        pairs = zip(smaller_bodies, bodies, strict=True)
        is_same = all(smaller_body is body for smaller_body, body in pairs)
        if is_same or not replacement:
            return None
        await self._store_outputs(task.thread_id, to_store, bodies)
        rewrite = replace(
            _make_rewrite(task, replacement, tail_count),
            strength=PRUNE_ONLY_STRENGTH,
            depth=task.base_depth,
            state=replace(task.base_state, model="", tokens=0),
        )
        covered_texts = task.texts[: len(task.texts) - tail_count]
        chars_before = sum(len(text) for text in covered_texts)
        chars_after = len(rewrite.replacement.decode())
        self._listener(
            PayloadShrunk(
                task.thread_id, rewrite.replaced_count, chars_before, chars_after, len(to_store)
            )
        )
        return await self._store.client_histories.put_rewrite(rewrite)

    async def _make_job(self, task: RewriteTask, setup: EngineSetup, tokens: int) -> CompactionJob:
        return CompactionJob(
            api=task.settings.api,
            request=task.settings.request_with_recall,
            wire_messages=task.wire_messages,
            tokens=tokens,
            level=task.order.level,
            state=task.base_state.engine,
            pins=[pin.text for pin in await self._store.state.list_pins(task.thread_id)],
            summary_key=setup.summary_key,
            max_tail_count=task.max_tail_count,
            inherited_count=max(0, len(task.wire_messages) - task.new_count),
        )

    async def _store_outputs(
        self, thread_id: str, outputs: Iterable[OutputToStore], messages: Iterable[Message]
    ) -> None:
        await store_outputs(self._store, thread_id, add_tool_names(outputs, messages))


def _make_draft(
    task: RewriteTask, result: CompactionJobResult, cost: Decimal | None
) -> RewriteDraft:
    """Return the draft of the rewrite that an engine's result makes, unless it replaces nothing."""
    compaction = result.compaction
    if not compaction.changed:
        return RewriteDraft(compaction)
    if result.tail_count == task.new_count or not result.replacement:
        return RewriteDraft(replace(compaction, changed=False, reason=NOTHING_TO_REPLACE))
    state = RewriteState(result.state, task.base_state.note or compaction.system_note)
    if not task.protected_count:  # the job did not count protected messages
        state = replace(state, model=task.settings.model, tokens=result.tokens)
    rewrite = replace(
        _make_rewrite(task, result.replacement, result.tail_count),
        depth=task.base_depth + 1,
        state=state,
    )
    leading_messages = [message.value for message in task.messages[: task.protected_count]]
    leading_count = len(decode_messages(task.settings.api, leading_messages, task.settings.model))
    new_rewrite = NewRewrite(
        rewrite,
        make_compaction_record(compaction, task.order, cost),
        replace(result.context, leading_count=leading_count),
        scope=task.caller_history.client_scope.session_scope,
        digest=task.caller_history.digest,
        base_session=task.base_rewrite.session if task.base_rewrite else "",
        digests=task.caller_history.history.digests,
    )
    return RewriteDraft(compaction, rewrite, new_rewrite, task.base_rewrite)


def _make_rewrite(task: RewriteTask, replacement: Sequence[Any], tail_count: int) -> Rewrite:
    """Return the rewrite that covers the history up to the messages that stay unchanged."""
    history = task.caller_history.history
    length = len(history) - tail_count
    return Rewrite(
        tenant=task.caller_history.client_scope.tenant,
        engine=task.engine_key,
        digest=history.digest(length),
        strength=int(task.order.level),
        replaced_count=length,
        loose_digest=history.loose_digest(length),
        results=history.join_result_hashes(0, length),
        thread=task.thread_id,
        replacement=_render_replacement(replacement, task.messages, task.protected_count).encode(),
    )


def _render_replacement(
    replacement: Sequence[Any], sent: Sequence[CallerMessage], protected_count: int
) -> str:
    """Return the protected messages and the replacement as text, separated by commas.

    Messages that the replacement's start leaves unchanged keep the client's own bytes.
    """
    texts = [message.text for message in sent[:protected_count]]
    changeable_messages = sent[protected_count:]
    is_same = True
    for index, value in enumerate(replacement):
        is_same = (
            is_same
            and index < len(changeable_messages)
            and changeable_messages[index].value == value
        )
        texts.append(changeable_messages[index].text if is_same else encode_value(value))
    return ",".join(texts)
