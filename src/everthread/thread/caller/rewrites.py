"""Find or make rewrites: the messages that replace the beginning of a client's history.

A rewrite is never changed. A request whose beginning has one uses it; if two are made at the same time, both requests
use the first. So the next, longer request begins with the same bytes, in every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.summary.summary_message import split_tools_key
from everthread.core.messages import Message, calls_of
from everthread.core.tokens.budget import Budget
from everthread.core.tool_outputs import OutputToStore
from everthread.errors import EngineError
from everthread.store.records import NewCompaction
from everthread.store.rewrite_records import NewRewrite, Rewrite, RewriteSearch
from everthread.store.store import Store
from everthread.thread.accounting import Accounting
from everthread.thread.caller.compression_job import (
    CompressionJob,
    CompressionResult,
    PruningJob,
)
from everthread.thread.caller.replacement import (
    StartReplacement,
    count_protected_messages,
    find_start_replacement,
    name_reading_tool,
    parse_replacement,
    rename_reader,
    render_replacement,
)
from everthread.thread.caller.sent_history import CallFrame, SentHistory, SentMessage
from everthread.thread.engines.engine_jobs import (
    CompactionRunner,
    EngineSetup,
    SummarySource,
)
from everthread.thread.events import (
    CompactionDone,
    CompactionVoid,
    Drifted,
    Listener,
    Slimmed,
)
from everthread.thread.matching.history import History
from everthread.thread.payload_shrinking import shrink_messages
from everthread.thread.policy.compaction_policy import COLD_CACHE
from everthread.thread.thread_context import CompactionOrder
from everthread.thread.wire_messages import JsonMessages, decode_messages

PRUNE_ONLY = -1
"""The strength of a rewrite that keeps every message and only drops images and stores large results."""
NOTHING_TO_REPLACE = "all messages since the last compaction have to stay as they are"


def rewrite_key(rewrite: Rewrite) -> str:
    """Return the key that distinguishes a rewrite from others of the same thread.

    The key stays the same in another process, when the client re-words its answers, and when the tools change.
    """
    return f"{rewrite.length} {rewrite.skeleton} {rewrite.strength} {rewrite.depth}"


@dataclass(frozen=True, slots=True)
class RewriteState:
    """State kept with a rewrite: the engine's, and the note after the system prompt."""

    engine: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    model: str = ""
    """The model whose tokenizer counted the replacement; empty if it was not counted."""
    tokens: int = 0

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> RewriteState:
        """Return the state from its JSON form, which is empty for a rewrite that no engine made."""
        return cls(**state)

    def dump(self) -> dict[str, Any]:
        return {
            "engine": dict(self.engine),
            "note": self.note,
            "model": self.model,
            "tokens": self.tokens,
        }


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


@dataclass(frozen=True, slots=True)
class FoundRewrite:
    """The result of a search for rewrites."""

    rewrite: Rewrite | None
    search: RewriteSearch | None
    """The state of the search, which speeds up the thread's next search."""
    requested_states: Sequence[Any | None]
    """The stored states that were requested."""


@dataclass(frozen=True, slots=True)
class TaskMessages:
    """The messages that are sent now; each is decoded on first use."""

    messages: Sequence[SentMessage]
    texts: Sequence[str]
    protected_count: int
    """The number of messages, up to the provider's own last compaction, that are never changed."""
    max_tail_count: int
    """The number of messages at the end that are the caller's own and not covered yet."""

    @property
    def wire_messages(self) -> JsonMessages:
        """The messages that may be changed."""
        return JsonMessages(self.texts[self.protected_count :])


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A history to compact, with everything that the compaction needs."""

    sent: SentHistory
    frame: CallFrame
    thread: str
    engine_key: str
    budget: Budget
    tokens: int
    """Tokens as the provider counts them."""
    order: CompactionOrder
    base_rewrite: Rewrite | None = None
    """The rewrite that the new one continues."""

    @property
    def new_count(self) -> int:
        """The number of the caller's messages that are not covered yet."""
        return len(self.sent) - (self.base_rewrite.length if self.base_rewrite else 0)

    @property
    def base_state(self) -> RewriteState:
        return (
            RewriteState.load(self.base_rewrite.state)
            if self.base_rewrite
            else RewriteState()
        )

    @property
    def target_tokens(self) -> int:
        """The prompt size to compact for; in the background, the size at which the rewrite will be used."""
        is_ahead = self.order.is_background and self.order.reason != COLD_CACHE
        return max(self.tokens, self.budget.threshold) if is_ahead else self.tokens

    def list_messages(self) -> TaskMessages:
        """Return the messages that are sent now."""
        caller_messages = self.sent.messages[len(self.sent) - self.new_count :]
        messages: list[SentMessage] = []
        if self.base_rewrite:
            messages += parse_replacement(self.base_rewrite)
        messages += caller_messages
        texts = [message.text for message in messages]
        protected_count = count_protected_messages(messages, texts)
        max_tail = min(self.new_count, len(messages) - protected_count)
        return TaskMessages(
            messages, texts, protected_count=protected_count, max_tail_count=max_tail
        )


class RewriteStore:
    """The rewrites of callers' histories: found in the store, or made by an engine."""

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

    async def find(
        self,
        sent: SentHistory,
        engine_keys: Sequence[str],
        last_search: RewriteSearch | None,
        *,
        state_keys: Sequence[tuple[str, str]] = (),
    ) -> FoundRewrite:
        """Return the longest stored rewrite that fits the history, from the first of the engines that has one.

        `state_keys`: scope and key of each stored state to load as well.
        """
        history = sent.history
        candidates, search, stored_states = await self._store.match_rewrites(
            sent.family.tenant,
            engine_keys,
            history.digests,
            history.skeletons,
            last_search,
            state_keys=state_keys,
        )
        for exact_rewrites, similar_rewrites in candidates:
            longest = exact_rewrites[0].length if exact_rewrites else 0
            drifted_rewrites = await self._find_drifted(
                similar_rewrites, history, longest
            )
            best_rewrite = next(iter([*drifted_rewrites, *exact_rewrites]), None)
            if best_rewrite is not None:
                return FoundRewrite(best_rewrite, search, stored_states)
        return FoundRewrite(None, search, stored_states)

    async def adopt_longer(
        self, sent: SentHistory, thread: str, engine_key: str, length: int
    ) -> Rewrite | None:
        """Return a rewrite longer than `length` that was made when the client had other reading tools.

        A copy that names the present tools is stored under their key.
        """
        engine, names = split_tools_key(engine_key)
        adopted = None
        for other_key in await self._store.list_rewrite_engines(thread):
            other_engine, other_names = split_tools_key(other_key)
            if other_engine != engine or not names or other_names in ((), names):
                continue
            rewrite = (await self.find(sent, [other_key], None)).rewrite
            if rewrite is not None and rewrite.length > length:
                length = rewrite.length
                text = rewrite.replacement.decode()
                renamed = rename_reader(text, other_names, names)
                adopted = replace(
                    rewrite, engine=engine_key, replacement=renamed.encode()
                )
        return None if adopted is None else await self._store.put_rewrite(adopted)

    async def _find_drifted(
        self, candidates: Sequence[Rewrite], history: History, longest: int
    ) -> list[Rewrite]:
        """Find longer rewrites that fit although the client cleared results or thinking; store copies that match."""
        rewrites = []
        for candidate in candidates:
            length = history.skeletons.index(candidate.skeleton) + 1
            if length > longest and history.equals_except_cleared(
                candidate.results, length
            ):
                drifted_rewrite = replace(
                    candidate,
                    digest=history.digest(length),
                    length=length,
                    results=history.join_result_hashes(0, length),
                )
                rewrites.append(await self._store.put_rewrite(drifted_rewrite))
                self._listener(Drifted(candidate.thread, length))
        return sorted(
            rewrites, key=lambda rewrite: (-rewrite.length, -rewrite.strength)
        )

    async def draft(
        self, task: RewriteTask, setup: EngineSetup, source: SummarySource
    ) -> RewriteDraft:
        """Make a rewrite that covers more than the previous one. Only the usage of its summary is stored."""
        messages = task.list_messages()
        wire_messages = messages.wire_messages
        base_state = task.base_state
        pins = [pin.text for pin in await self._store.pins(task.thread)]
        job = CompressionJob(
            api=task.frame.api,
            frame=task.frame.request_with_recall,
            wire_messages=wire_messages,
            tokens=task.target_tokens,
            level=task.order.level,
            state=base_state.engine,
            pins=pins,
            summary_key=setup.summary_key,
            max_tail_count=messages.max_tail_count,
            inherited_count=max(0, len(wire_messages) - task.new_count),
        )
        result = await self._runner.run(setup, job, source)
        compaction = result.compaction
        cost = await self._accounting.record_summary(
            task.thread, compaction.usage, task.frame.payer
        )
        start_replacement = result.cover
        if start_replacement is None:
            return RewriteDraft(replace(compaction, changed=False))
        if (
            start_replacement.tail_count == task.new_count
            or not start_replacement.replacement
        ):
            return RewriteDraft(
                replace(compaction, changed=False, reason=NOTHING_TO_REPLACE)
            )
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
            history_length=len(task.sent),
        )

    async def commit(self, draft: RewriteDraft) -> Rewrite:
        """Store a rewrite and the outputs it cites; return the stored one, which another process may have made."""
        if draft.new_rewrite is None:
            raise EngineError("a compaction that changed nothing cannot be committed")
        rewrite = draft.new_rewrite.rewrite
        compaction = draft.compaction
        await self._store_outputs(
            rewrite.thread, compaction.messages, compaction.to_store
        )
        stored_rewrite = await self._store.commit_rewrite(draft.new_rewrite)
        if stored_rewrite.replacement == rewrite.replacement:
            self._listener(_make_done_event(draft, draft.new_rewrite))
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
            api=task.frame.api,
            frame=task.frame.request_with_recall,
            wire_messages=messages.wire_messages,
            tokens=task.tokens,
            state=base_state.engine,
            summary_key=setup.summary_key,
            max_tail_count=messages.max_tail_count,
        )
        result = await self._runner.refit(setup, job)
        start_replacement = result.cover
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
        await self._store_outputs(
            draft.rewrite.thread, compaction.messages, compaction.to_store
        )
        return await self._store.put_rewrite(draft.rewrite)

    async def shrink_payload(self, task: RewriteTask) -> Rewrite | None:
        """Drop old images, and store and cite large results; no text is lost. Return None if there are neither."""
        messages = task.list_messages()
        wire_messages = messages.wire_messages
        api = task.frame.api
        model = task.frame.model
        bodies = decode_messages(api, wire_messages, model)
        smaller_bodies, to_store = shrink_messages(bodies, task.budget.preview_chars)
        start_replacement = find_start_replacement(
            api,
            smaller_bodies,
            wire_messages,
            model,
            max_tail_count=messages.max_tail_count,
        )
        if (
            all(
                smaller_body is body
                for smaller_body, body in zip(smaller_bodies, bodies, strict=True)
            )
            or not start_replacement.replacement
        ):
            return None
        start_replacement = name_reading_tool(
            start_replacement, wire_messages, task.frame.request_with_recall.tools
        )
        await self._store_outputs(task.thread, bodies, to_store)
        state = replace(task.base_state, model="", tokens=0).dump()
        rewrite = replace(
            _make_rewrite(task, messages, start_replacement),
            strength=PRUNE_ONLY,
            depth=task.base_rewrite.depth if task.base_rewrite else 0,
            state=state if task.base_rewrite else {},
        )
        covered_texts = messages.texts[
            : len(messages.texts) - start_replacement.tail_count
        ]
        chars_before = sum(len(text) for text in covered_texts)
        chars_after = len(rewrite.replacement.decode())
        self._listener(
            Slimmed(
                task.thread, rewrite.length, chars_before, chars_after, len(to_store)
            )
        )
        return await self._store.put_rewrite(rewrite)

    async def _store_outputs(
        self,
        thread: str,
        messages: Sequence[Message],
        to_store: Sequence[OutputToStore],
    ) -> None:
        """Store the outputs that the messages cite."""
        tools = {
            call.id: call.name for message in messages for call in calls_of(message)
        }
        for item in to_store:
            await self._store.put_output(
                thread,
                item.text,
                call_id=item.call_id,
                tool=tools.get(item.call_id, ""),
            )


def _make_done_event(draft: RewriteDraft, new_rewrite: NewRewrite) -> CompactionDone:
    """Return the event that reports a committed rewrite."""
    compaction = draft.compaction
    return CompactionDone(
        new_rewrite.rewrite.thread,
        previous=new_rewrite.rewrite.thread,
        reason=new_rewrite.record.reason,
        tokens_before=compaction.tokens_before,
        tokens_after=compaction.tokens_after,
        messages_before=new_rewrite.context.compacted_count,
        messages_after=len(compaction.messages),
        author=compaction.author,
        count=new_rewrite.rewrite.depth,
        verification=compaction.verification,
        duration=compaction.duration,
        cost=new_rewrite.record.cost,
        steps=compaction.steps,
        warnings=compaction.warnings,
        decision=new_rewrite.record.figures["decision"],
        covered=new_rewrite.rewrite.length,
        background=draft.is_background,
    )


def _make_rewrite(
    task: RewriteTask, messages: TaskMessages, start_replacement: StartReplacement
) -> Rewrite:
    """Return the rewrite that covers the history up to the messages that stay unchanged."""
    history = task.sent.history
    length = len(history) - start_replacement.tail_count
    text = render_replacement(
        start_replacement.replacement, messages.messages, messages.protected_count
    )
    return Rewrite(
        tenant=task.sent.family.tenant,
        engine=task.engine_key,
        digest=history.digest(length),
        strength=int(task.order.level),
        length=length,
        skeleton=history.skeleton(length),
        results=history.join_result_hashes(0, length),
        thread=task.thread,
        replacement=text.encode(),
    )


def _make_counted_state(
    task: RewriteTask, messages: TaskMessages, result: CompressionResult
) -> RewriteState:
    """Return the state of a rewrite, with the tokens of its replacement unless protected messages were left out."""
    if messages.protected_count:
        return RewriteState()
    return RewriteState(model=task.frame.model, tokens=result.tokens)


def _make_new_rewrite(
    task: RewriteTask,
    messages: TaskMessages,
    result: CompressionResult,
    *,
    rewrite: Rewrite,
    cost: Decimal | None,
) -> NewRewrite:
    """Return the record that stores a rewrite and its compaction."""
    lead_messages = [
        message.value for message in messages.messages[: messages.protected_count]
    ]
    lead_count = len(decode_messages(task.frame.api, lead_messages, task.frame.model))
    return NewRewrite(
        rewrite,
        _make_compaction_record(task, result.compaction, cost),
        replace(result.context, leading_count=lead_count),
        scope=task.sent.family.scope,
        digest=task.sent.digest,
        base_session=task.base_rewrite.session if task.base_rewrite else "",
        digests=task.sent.history.digests,
    )


def _make_compaction_record(
    task: RewriteTask, compaction: Compaction, cost: Decimal | None
) -> NewCompaction:
    """Return the record of a compaction; the covered messages are in the rewrite's own row."""
    figures = asdict(compaction.verification) | {
        "phases": [asdict(phase) for phase in compaction.phases],
        "steps": list(compaction.steps),
        "decision": task.order.decision,
    }
    return NewCompaction(
        tokens_before=compaction.tokens_before,
        tokens_after=compaction.tokens_after,
        summary=compaction.summary,
        author=compaction.author,
        figures=figures,
        warnings=compaction.warnings,
        reason=task.order.reason,
        duration=compaction.duration,
        cost=cost,
    )
