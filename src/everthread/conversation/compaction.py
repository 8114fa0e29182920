"""Run a compaction, from the engine's answer to the continued session.

The engine returns the new context. The texts it cites are stored first; then one transaction ends the session and
begins its continuation. Before that transaction the old state holds, after it the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal

from everthread.compaction.planning import CompactionInput, RefitInput
from everthread.compaction.summary import Compaction
from everthread.conversation.cancellation import finish
from everthread.conversation.state import LEFT_OUT, ConversationState
from everthread.conversation.summary_note import note_in, with_note, without_note
from everthread.conversation.tool_results import store_output
from everthread.core.messages import Message, calls_of
from everthread.core.provider_errors.classification import ErrorVerdict
from everthread.core.transcript import is_summary, strip_marks
from everthread.core.types import Request, System
from everthread.errors import ContextOverflowError, EverthreadError
from everthread.providers.catalog import output_cap
from everthread.store.records import (
    MessageKind,
    NewCompaction,
    NewMessage,
    StoredMessage,
)
from everthread.thread import events
from everthread.thread.engine_jobs import compress_beside, refit_beside
from everthread.thread.managed import CompactionOrder, ManagedThread, ProviderRefusal
from everthread.thread.policy import (
    AUTOMATIC,
    COLD_CACHE,
    FADING_COMPACTIONS,
    CallPrices,
    ContextState,
    PromptSize,
    fading_text,
    fixed_text,
)
from everthread.thread.recovery import RecoveryAttempts, RecoveryStep, slim_messages
from everthread.thread.summary_wait import SummaryWait


@dataclass(frozen=True, slots=True)
class ConversationDraft:
    """A compaction that is not committed yet, and its input."""

    compaction: Compaction
    session: str
    stored: tuple[StoredMessage, ...]
    bodies: tuple[Message, ...]

    def still_holds(self, live: ConversationState) -> bool:
        """Return whether its input still begins the context."""
        ids = [message.id for message in self.stored]
        return (
            live.session.id == self.session
            and [item.id for item in live.stored[: len(ids)]] == ids
        )


def compaction_input(
    live: ConversationState, order: CompactionOrder
) -> CompactionInput:
    """Return the context as an engine gets it."""
    tokens = order.tokens or live.tokens
    if order.is_background and order.reason != COLD_CACHE:
        # Make it for the time at which it will be used.
        tokens = max(tokens, live.budget.threshold)
    return CompactionInput(
        list(live.bodies),
        current_tokens=tokens,
        focus_topic=order.focus,
        system=live.system,
        tools=live.toolbox.to_come,
        level=order.level,
        manual=order.is_manual,
        dry_run=order.is_preview,
        ids=[message.id for message in live.stored],
    )


async def commit(
    live: ConversationState, drafted: ConversationDraft, order: CompactionOrder
) -> str:
    """Continue the session with the compacted context. Return why it was not continued; empty if it was.

    A commit that has begun is finished even if its caller is cancelled.
    """
    cost = await finish(
        live.accounting.record_summary(live.session.id, drafted.compaction.usage)
    )
    try:
        await live.setup.hooks.before_compaction(live.session.id)
    except Exception as error:  # noqa: BLE001 - it is reported; do not compact before the hook has saved its data
        why = f"what must outlive a compaction could not be written down ({type(error).__name__}: {error})"
        live.report_failure(why)
        return why
    return await finish(_continue(live, drafted, order, cost))


async def _continue(
    live: ConversationState,
    drafted: ConversationDraft,
    order: CompactionOrder,
    cost: Decimal | None,
) -> str:
    made = drafted.compaction
    old = live.session
    # Messages since the draft are included.
    grown = live.counter.messages(live.bodies[len(drafted.stored) :])
    before = max(live.tokens, made.tokens_before)
    after = made.tokens_after + grown
    tools = {call.id: call.name for body in drafted.bodies for call in calls_of(body)}
    for item in made.to_store:
        await store_output(live, item, tool=tools.get(item.call_id, ""))
    system = _continued_system(live, made)
    left_out = live.toolbox.choice(system)
    figures = asdict(made.verification) | {
        "phases": [asdict(phase) for phase in made.phases],
        "steps": list(made.steps),
        "decision": order.decision,
    }
    if left_out:
        figures[LEFT_OUT] = list(left_out)
    record = NewCompaction(
        covered=[drafted.stored[index].id for index in made.covered],
        tokens_before=before,
        tokens_after=after,
        summary=made.summary,
        author=made.author,
        figures=figures,
        warnings=made.warnings,
        reason=order.reason,
        focus=order.focus,
        duration=made.duration,
        cost=cost,
    )
    continued = await live.setup.store.continue_session(
        old.id,
        _entries(live, drafted),
        seen=len(drafted.stored),
        compaction=record,
        system=system,
        nodes=made.nodes,
    )
    if not continued.is_committed:
        why = "another process continued this conversation first; its context is used"
        live.emit(events.CompactionVoid(old.id, why))
        await live.reload()
        return why
    await _switch(
        live,
        replace(made, tokens_before=before, tokens_after=after),
        left_out=left_out,
        record=record,
        is_background=order.is_background,
    )
    return ""


async def _switch(
    live: ConversationState,
    compaction: Compaction,
    *,
    left_out: Sequence[str],
    record: NewCompaction,
    is_background: bool,
) -> None:
    """Switch to the continuation: inform the engine, save, then emit the events."""
    old = live.session.id
    before = len(live.stored)
    await live.move_to_tip()
    live.toolbox.use(left_out, "a compaction")
    live.compactions += 1
    live.state.compacted = live.tokens
    live.state.rhythm = live.state.rhythm.rewritten()
    live.state.pause.relieved = (
        compaction.tokens_before if record.reason in AUTOMATIC else 0
    )
    live.engine.on_compacted(compaction)
    live.engine.on_session_start(live.session.id, reason="compression", previous=old)
    await live.save()
    try:
        await live.setup.hooks.after_compaction(live.session.id, old)
    except Exception as error:  # noqa: BLE001 - it is reported; the compaction is committed and holds
        live.notify(
            f"After the compaction something failed: {type(error).__name__}: {error}"
        )
    live.emit(
        events.CompactionDone(
            live.session.id,
            old,
            reason=record.reason,
            tokens_before=compaction.tokens_before,
            tokens_after=live.tokens,
            messages_before=before,
            messages_after=len(live.stored),
            author=compaction.author,
            count=live.compactions,
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
    if live.compactions >= FADING_COMPACTIONS:
        live.notify(fading_text(live.compactions, "/new starts afresh"))


def _entries(
    live: ConversationState, drafted: ConversationDraft
) -> list[int | NewMessage]:
    """Return the compacted context for the store: ids of unchanged messages, and new messages."""
    entries: list[int | NewMessage] = []
    for message, index in zip(
        drafted.compaction.messages, drafted.compaction.kept, strict=True
    ):
        if index is None:
            kind: MessageKind = "summary" if is_summary(message) else "derived"
            entries.append(
                NewMessage(
                    strip_marks([message])[0],
                    kind,
                    tokens=live.counter.message(message),
                )
            )
        elif message is drafted.bodies[index]:
            entries.append(drafted.stored[index].id)
        else:
            source = drafted.stored[index]
            origin = source.id if source.origin is None else source.origin
            entries.append(
                NewMessage(
                    message,
                    "derived",
                    tokens=live.counter.message(message),
                    origin=origin,
                )
            )
    return entries


def _continued_system(live: ConversationState, compaction: Compaction) -> System:
    """Return the system prompt, rebuilt if a function builds it, with the note that there are summaries."""
    note = note_in(live.system) or compaction.system_note
    fresh = without_note(live.system)
    if callable(live.setup.system):
        try:
            fresh = live.setup.written_system()
        except Exception as error:  # noqa: BLE001 - it is reported; the previous prompt still holds
            why = f"{type(error).__name__}: {error}"
            live.notify(
                f"The system prompt could not be written anew, the old one stays: {why}"
            )
    return with_note(fresh, note)


class ConversationContext:
    """`ThreadContext` of a conversation: its messages are in the store, its compactions continue the session."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self.request: Request | None = None
        """The request that was sent last."""

    @property
    def session_id(self) -> str:
        return self._live.session.id

    @property
    def model(self) -> str:
        return self._live.route.name

    @property
    def state(self) -> ContextState:
        return self._live.state

    @property
    def size(self) -> PromptSize:
        return self._live.size

    @property
    def prices(self) -> CallPrices:
        return self._live.prices

    def emit(self, event: events.Event) -> None:
        self._live.emit(event)

    async def can_compact(self, order: CompactionOrder) -> bool:
        live = self._live
        if not live.engine.should_compress(live.size.when_due.tokens):
            return False
        if len(live.bodies) == 1 and live.size.is_full:
            return True
        given = compaction_input(live, order)
        return await asyncio.to_thread(live.engine.has_work, given)

    async def draft(
        self, order: CompactionOrder, wait: SummaryWait
    ) -> ConversationDraft:
        live = self._live
        session = live.session.id
        stored = tuple(live.stored)
        given = compaction_input(live, order)
        if not order.is_preview:
            tokens = order.tokens or live.tokens
            live.emit(
                events.CompactionStarted(
                    session, order.reason, tokens, order.is_background
                )
            )
        pins = await live.setup.store.pins(live.session.thread)
        live.engine.pin([note.text for note in pins])
        compaction = await compress_beside(live.engine, given, live.summarizer, wait)
        return ConversationDraft(compaction, session, stored, tuple(given.messages))

    def is_usable(self, draft: ConversationDraft) -> bool:
        return draft.still_holds(self._live)

    async def commit(self, draft: ConversationDraft, order: CompactionOrder) -> str:
        return await commit(self._live, await self._refit(draft), order)

    async def _refit(self, drafted: ConversationDraft) -> ConversationDraft:
        """Add the messages since a draft was made, pruned and cut if the prompt would be too large with them."""
        live = self._live
        start = len(drafted.stored)
        since = live.bodies[start:]
        if not since:
            return drafted
        given = RefitInput(
            drafted.compaction,
            since,
            start,
            system=live.system,
            tools=live.toolbox.to_come,
            ids=[message.id for message in live.stored],
        )
        compaction = await refit_beside(live.engine, given, live.summarizer)
        return ConversationDraft(
            compaction, drafted.session, tuple(live.stored), tuple(live.bodies)
        )

    async def discard(self, draft: ConversationDraft, why: str) -> None:
        live = self._live
        await live.accounting.record_summary(draft.session, draft.compaction.usage)
        live.emit(events.CompactionVoid(live.session.id, why))

    async def account_lost(self) -> None:
        await self._live.accounting.record_lost(self._live.session.id)

    async def learn_limit(
        self, verdict: ErrorVerdict, refusal: ProviderRefusal
    ) -> None:
        live = self._live
        if live.answering_model != live.route.name:
            return  # another model answered: its limit does not apply to this one
        limit = await live.limits.learn_refusal(
            live.limit_key,
            verdict,
            window=live.window,
            tokens=live.tokens,
            output_cap=self._requested_cap,
            status=refusal.status,
            body=refusal.body,
        )
        await live.load_caps()
        if limit is not None:
            live.fit(limit.tokens)
            learnt = events.LimitLearnt(
                live.session.id,
                live.route.name,
                limit.tokens,
                source=limit.source,
                stored=limit.stored,
            )
            live.emit(learnt)

    def choose_step(
        self, attempts: RecoveryAttempts, verdict: ErrorVerdict
    ) -> RecoveryStep:
        enabled = self._live.setup.options.enabled
        return attempts.next_step(
            verdict, output_cap=self._requested_cap, enabled=enabled
        )

    async def shrink_payload(self) -> bool:
        live = self._live
        bodies = list(live.bodies)
        slim, stored = slim_messages(bodies, live.budget.preview_chars)
        if all(new is old for new, old in zip(slim, bodies, strict=True)):
            return False
        compaction = Compaction(
            messages=slim,
            summary="",
            tokens_before=live.tokens,
            tokens_after=live.counter.request(
                slim, system=live.system, tools=live.tools
            ),
            kept=tuple(range(len(bodies))),
            author="none",
            reason="payload",
            to_store=tuple(stored),
            steps=("dropped old images and stored big results",),
        )
        shrunk = ConversationDraft(
            compaction, live.session.id, tuple(live.stored), tuple(bodies)
        )
        return not await commit(live, shrunk, CompactionOrder("payload"))

    @property
    def _requested_cap(self) -> int | None:
        return output_cap(self.request) if self.request else None


def overflow_error(
    live: ConversationState, attempts: RecoveryAttempts, error: Exception
) -> ContextOverflowError:
    """Return an error that names the steps tried after a refusal for size and the person's options."""
    name = live.route.name
    if not live.setup.options.enabled:
        return ContextOverflowError(
            f"{name} refused the request for its size ({error}) and compression is disabled "
            "(compression.enabled). Nothing was changed; /new starts afresh."
        )
    return ContextOverflowError(
        f"The request does not fit into {name} ({live.window:,} tokens), {attempts.failure_text}. Your message and the "
        "history are stored; try /new for a fresh conversation or /compress with a focus. The provider said: "
        f"{error}"
    )


async def compact_for_hygiene(
    thread: ManagedThread[ConversationDraft], live: ConversationState
) -> None:
    """Compact before an incoming message, at 85 % of the window. Only report a failure."""
    if not live.policy.is_hygiene_due(live.size, len(live.stored)):
        return
    before = live.state.retry_above_tokens
    try:
        await thread.compact_now(CompactionOrder("hygiene"))
    except EverthreadError as error:
        live.report_failure(error)
    live.state.retry_above_tokens = min(live.state.retry_above_tokens, before)


class FixedPartWatch:
    """Leave out tools before a session's first request; report once if the fixed part fills the threshold."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self._is_reported = False

    def reset(self) -> None:
        """Report again after a change of model or a compaction by hand."""
        self._is_reported = False

    async def settle_tools(self) -> None:
        """Leave out tools before a session's first request if they take too much of the window."""
        live = self._live
        if live.toolbox.settled:
            return
        fixed = live.fixed
        live.toolbox.settle()
        if fixed >= live.nominal_budget.threshold > live.fixed:
            self._report(
                fixed,
                f"{len(live.toolbox.out)} tools that it does not use are left out.",
            )
        if live.toolbox.out:
            await live.save()

    def check(self) -> None:
        """Report system prompt and tools that reach the threshold alone."""
        live = self._live
        fixed = live.size.fixed
        if (
            fixed >= live.nominal_budget.threshold
            and not live.toolbox.frees_enough_room()
        ):
            self._report(
                fixed, "Offer fewer tools, or use a model with a larger window."
            )

    def _report(self, fixed: int, cure: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._live.notify(fixed_text(fixed, self._live.window, cure))
