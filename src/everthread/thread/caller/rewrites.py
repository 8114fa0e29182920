"""Rewrites: the messages that replace the beginning of a client's history, found or made.

A rewrite is never changed. A request whose beginning has one uses it; of two that are
made at the same time the first is used by both. So the next, longer request begins with
the same bytes, in every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

from everthread.compaction.summary import Compaction
from everthread.core.messages import Message, calls_of
from everthread.core.outputs import ToStore
from everthread.core.tokens.budget import Budget
from everthread.core.types import Api, Request
from everthread.errors import EngineError
from everthread.store.records import (
    NewCompaction,
    NewRewrite,
    Rewrite,
    RewriteSearch,
)
from everthread.store.store import Store
from everthread.thread.accounting import Accounting, Payer
from everthread.thread.caller.compression_job import CompressionJob, PruningJob
from everthread.thread.caller.replacement import (
    cover,
    name_tool,
    protected_head,
    replacement_messages,
    replacement_text,
)
from everthread.thread.caller.sent_history import SentHistory
from everthread.thread.engine_jobs import (
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
from everthread.thread.history import History
from everthread.thread.managed import CompactionOrder
from everthread.thread.policy import COLD
from everthread.thread.recovery import slim_messages
from everthread.thread.wire_messages import decode_messages

SLIM = -1
"""The strength of a rewrite that leaves every message in its place: images dropped, big results stored."""
NO_COVER = "all messages since the last compaction have to stay as they are"
RewriteKey = tuple[int, bytes]


def rewrite_key(rewrite: Rewrite) -> RewriteKey:
    """Return the key that distinguishes a rewrite from others of the same thread."""
    return rewrite.length, rewrite.replacement


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
        """Return the state from its JSON form. A rewrite that no engine made has none."""
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
    new: NewRewrite | None = None
    """The rewrite to store; None if another request or process stored it already."""
    is_background: bool = False
    history_length: int = 0
    """How many messages the client had sent when it was made."""


@dataclass(frozen=True, slots=True)
class FoundRewrite:
    """The result of a search for rewrites."""

    rewrite: Rewrite | None
    search: RewriteSearch | None
    """Speeds up the next search of the thread."""
    states: Sequence[Any | None]
    """The stored states that were asked for."""


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """A history to be compacted, with all that the compaction needs."""

    tenant: str
    thread: str
    engine_key: str
    api: Api
    frame: Request
    """Model, system prompt and tools."""
    scope: str
    """The client's session."""
    sent: Sequence[tuple[Any, str]]
    """The client's messages and their text."""
    history: History
    budget: Budget
    tokens: int
    """Tokens as the provider counts them."""
    order: CompactionOrder
    base: Rewrite | None = None
    """The rewrite it continues."""
    account: Payer | None = None
    """Who pays for the summary."""

    @property
    def start(self) -> int:
        """How many of the client's messages are covered already."""
        return self.base.length if self.base else 0

    @property
    def aimed_tokens(self) -> int:
        """The prompt size the rewrite is made for: in the background, the size at which it will be used."""
        is_ahead = self.order.is_background and self.order.reason != COLD
        return max(self.tokens, self.budget.threshold) if is_ahead else self.tokens

    def pairs(self) -> list[tuple[Any, str]]:
        """Return the messages to send now, with their text."""
        return [
            *(replacement_messages(self.base) if self.base else ()),
            *self.sent[self.start :],
        ]


class RewriteStore:
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
        engines: Sequence[str],
        last_search: RewriteSearch | None,
        *,
        states: Sequence[tuple[str, str]] = (),
    ) -> FoundRewrite:
        """Return the longest rewrite of a history, of the first engine that has any; and stored state."""
        history = sent.history
        candidates, search, stored = await self._store.match_rewrites(
            sent.family.tenant,
            engines,
            history.digests,
            history.skeletons,
            last_search,
            states=states,
        )
        for exact, similar in candidates:
            longest = exact[0].length if exact else 0
            drifted = await self._find_drifted(similar, history, longest)
            best = next(iter([*drifted, *exact]), None)
            if best is not None:
                return FoundRewrite(best, search, stored)
        return FoundRewrite(None, search, stored)

    async def _find_drifted(
        self, candidates: Sequence[Rewrite], history: History, longest: int
    ) -> list[Rewrite]:
        """Find longer rewrites that fit although the client cleared results or thinking; store them for that form."""
        rewrites = []
        for similar in candidates:
            length = history.skeletons.index(similar.skeleton) + 1
            if length > longest and history.drifted_from(similar.results, length):
                same = replace(
                    similar,
                    chain=history.digest(length),
                    length=length,
                    results=history.results(0, length),
                )
                rewrites.append(await self._store.put_rewrite(same))
                self._listener(Drifted(similar.thread, length))
        return sorted(
            rewrites, key=lambda rewrite: (-rewrite.length, -rewrite.strength)
        )

    async def draft(
        self, task: RewriteTask, setup: EngineSetup, source: SummarySource
    ) -> RewriteDraft:
        """Make a rewrite that covers more than the one before, and store nothing but the usage of its summary."""
        pairs = task.pairs()
        before = RewriteState.load(task.base.state) if task.base else RewriteState()
        pins = [pin.text for pin in await self._store.pins(task.thread)]
        head = protected_head([value for value, _ in pairs])
        values = [value for value, _ in pairs[head:]]
        new_count = len(task.sent) - task.start
        job = CompressionJob(
            api=task.api,
            frame=task.frame,
            values=values,
            tokens=task.aimed_tokens,
            level=task.order.level,
            state=before.engine,
            pins=pins,
            summary_key=setup.summary_key,
            most=min(new_count, len(values)),
            inherited=max(0, len(pairs) - new_count - head),
        )
        result = await self._runner.run(setup, job, source)
        compaction = result.compaction
        cut = result.cover
        cost = await self._accounting.record_summary(
            task.thread, compaction.usage, task.account
        )
        if cut is None:
            return RewriteDraft(replace(compaction, changed=False))
        if cut.tail == new_count or not cut.replacement:
            return RewriteDraft(replace(compaction, changed=False, reason=NO_COVER))
        counted = (task.frame.model, result.tokens) if not head else ("", 0)
        state = RewriteState(
            result.state, before.note or compaction.system_note, *counted
        )
        rewrite = replace(
            _row(
                task,
                len(task.sent) - cut.tail,
                replacement_text(cut.replacement, pairs, head),
            ),
            depth=(task.base.depth if task.base else 0) + 1,
            state=state.dump(),
        )
        lead = len(
            decode_messages(
                task.api, [value for value, _ in pairs[:head]], task.frame.model
            )
        )
        new = NewRewrite(
            rewrite,
            _record(task, compaction, cost),
            replace(result.context, lead=lead),
            scope=task.scope,
            digest=task.history.digest(len(task.history)),
            base_session=task.base.session if task.base else "",
            digests=task.history.digests,
        )
        return RewriteDraft(
            compaction,
            rewrite,
            new,
            is_background=task.order.is_background,
            history_length=len(task.sent),
        )

    async def commit(self, draft: RewriteDraft) -> Rewrite:
        """Store a rewrite and the outputs it cites; return the stored one, which another process may have made."""
        if draft.new is None:
            raise EngineError("a compaction that changed nothing cannot be committed")
        new = draft.new.rewrite
        compaction = draft.compaction
        await self._store_outputs(new.thread, compaction.messages, compaction.to_store)
        stored = await self._store.commit_rewrite(draft.new)
        if stored.replacement == new.replacement:
            self._listener(_done_event(draft, draft.new))
        else:
            why = "another process rewrote this beginning first; its rewrite is used"
            self._listener(CompactionVoid(new.thread, why))
        return stored

    async def prune_since(
        self, task: RewriteTask, setup: EngineSetup
    ) -> RewriteDraft | None:
        """Prune and cut the messages since a rewrite was prepared; its summary stays. None if nothing is smaller."""
        base = task.base
        if base is None:
            return None
        pairs = task.pairs()
        head = protected_head([value for value, _ in pairs])
        values = [value for value, _ in pairs[head:]]
        new_count = len(task.sent) - task.start
        before = RewriteState.load(base.state)
        job = PruningJob(
            api=task.api,
            frame=task.frame,
            values=values,
            tokens=task.tokens,
            state=before.engine,
            summary_key=setup.summary_key,
            most=min(new_count, len(values)),
        )
        result = await self._runner.refit(setup, job)
        cut = result.cover
        if cut is None or cut.tail == new_count or not cut.replacement:
            return None
        counted = (task.frame.model, result.tokens) if not head else ("", 0)
        rewrite = replace(
            _row(
                task,
                len(task.sent) - cut.tail,
                replacement_text(cut.replacement, pairs, head),
            ),
            depth=base.depth,
            session=base.session,
            state=RewriteState(before.engine, before.note, *counted).dump(),
        )
        return RewriteDraft(result.compaction, rewrite)

    async def keep_pruned(self, draft: RewriteDraft) -> Rewrite:
        """Store a rewrite that only prunes, and the outputs it cites."""
        if draft.rewrite is None:
            raise EngineError("a rewrite that changed nothing cannot be stored")
        compaction = draft.compaction
        await self._store_outputs(
            draft.rewrite.thread, compaction.messages, compaction.to_store
        )
        return await self._store.put_rewrite(draft.rewrite)

    async def slim(self, task: RewriteTask) -> Rewrite | None:
        """Drop old images, store and cite big results; no text is lost. Return None if there are neither."""
        pairs = task.pairs()
        head = protected_head([value for value, _ in pairs])
        values = [value for value, _ in pairs[head:]]
        bodies = decode_messages(task.api, values, task.frame.model)
        slim, to_store = slim_messages(bodies, task.budget.preview_chars)
        cut = cover(
            task.api,
            slim,
            values,
            task.frame.model,
            most=min(len(task.sent) - task.start, len(values)),
        )
        if (
            all(new is old for new, old in zip(slim, bodies, strict=True))
            or not cut.replacement
        ):
            return None
        cut = name_tool(cut, values, task.frame.tools)
        await self._store_outputs(task.thread, bodies, to_store)
        text = replacement_text(cut.replacement, pairs, head)
        depth = task.base.depth if task.base else 0
        state = (
            replace(RewriteState.load(task.base.state), model="", tokens=0).dump()
            if task.base
            else {}
        )
        new = replace(
            _row(task, len(task.sent) - cut.tail, text),
            strength=SLIM,
            depth=depth,
            state=state,
        )
        before = sum(len(original) for _, original in pairs[: len(pairs) - cut.tail])
        self._listener(
            Slimmed(task.thread, new.length, before, len(text), len(to_store))
        )
        return await self._store.put_rewrite(new)

    async def _store_outputs(
        self, thread: str, messages: Sequence[Message], to_store: Sequence[ToStore]
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


def _done_event(draft: RewriteDraft, new: NewRewrite) -> CompactionDone:
    compaction = draft.compaction
    return CompactionDone(
        new.rewrite.thread,
        previous=new.rewrite.thread,
        reason=new.record.reason,
        tokens_before=compaction.tokens_before,
        tokens_after=compaction.tokens_after,
        messages_before=new.context.given,
        messages_after=len(compaction.messages),
        author=compaction.author,
        count=new.rewrite.depth,
        verification=compaction.verification,
        duration=compaction.duration,
        cost=new.record.cost,
        steps=compaction.steps,
        warnings=compaction.warnings,
        decision=new.record.figures["decision"],
        covered=new.rewrite.length,
        background=draft.is_background,
    )


def _row(task: RewriteTask, length: int, replacement: str) -> Rewrite:
    history = task.history
    return Rewrite(
        tenant=task.tenant,
        engine=task.engine_key,
        chain=history.digest(length),
        strength=int(task.order.level),
        length=length,
        skeleton=history.skeleton(length),
        results=history.results(0, length),
        thread=task.thread,
        replacement=replacement.encode(),
    )


def _record(
    task: RewriteTask, compaction: Compaction, cost: Decimal | None
) -> NewCompaction:
    """Return a compaction in the form of the store; the covered messages are in the rewrite's own row."""
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
