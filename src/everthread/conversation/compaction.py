"""A compaction, from the engine's answer to the continued session.

The engine says what the context shall be. What that cites is stored first; then one transaction ends the session and
begins its continuation. Before that transaction the old state holds, after it the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal

from everthread.compaction.summary import Compaction, CompactionLevel
from everthread.context.policy import AUTOMATIC, COLD, FADING, NEARLY_COLD, PolicyDecision, fading_text, fixed_text
from everthread.context.recovery import (
    NEAR_LIMIT,
    TOO_LARGE,
    RecoveryAttempts,
    RecoveryStep,
    lasting_cap,
    slim_messages,
)
from everthread.conversation import events
from everthread.conversation.options import Timer
from everthread.conversation.requests import finish, note_in, store_output, with_note, without_note
from everthread.conversation.state import LEFT_OUT, ConversationState
from everthread.core.messages import Message, calls_of
from everthread.core.pricing import EARLIEST, Decision
from everthread.core.provider_errors import ErrorVerdict, classify_error
from everthread.core.transcript import is_summary, strip_marks
from everthread.core.types import Request, System
from everthread.errors import ContextOverflowError, EverthreadError, ModelError
from everthread.providers.catalog import output_cap
from everthread.store.models import MessageKind, NewCompaction, NewMessage, StoredMessage


@dataclass(frozen=True, slots=True)
class Draft:
    """A compaction that is not committed yet, and what it was made from."""

    compaction: Compaction
    session: str
    stored: tuple[StoredMessage, ...]
    bodies: tuple[Message, ...]

    def still_holds(self, live: ConversationState) -> bool:
        """Whether what it was made from still begins the context."""
        ids = [message.id for message in self.stored]
        return live.session.id == self.session and [item.id for item in live.stored[: len(ids)]] == ids


async def draft(
    live: ConversationState,
    *,
    reason: str,
    focus: str | None = None,
    manual: bool = False,
    preview: bool = False,
    level: CompactionLevel = CompactionLevel.NORMAL,
    tokens: int | None = None,
    background: bool = False,
) -> Draft:
    """Ask the engine. Nothing is changed by it, except that what was spent is accounted for."""
    session, stored, bodies = live.session.id, tuple(live.stored), list(live.bodies)
    size = tokens or live.tokens
    if not preview:
        live.emit(events.CompactionStarted(session, reason, size, background))
    if background and reason != COLD:
        size = max(size, live.budget.threshold)  # it is made for the moment at which it will be used
    live.engine.pin([note.text for note in await live.setup.store.pins(live.session.thread)])
    compaction = await live.compress(
        bodies, current_tokens=size, focus_topic=focus, system=live.system, tools=live.toolbox.to_come,
        level=level, manual=manual, dry_run=preview, ids=[message.id for message in stored],
    )  # fmt: skip
    return Draft(compaction, session, stored, tuple(bodies))


async def commit(
    live: ConversationState, drafted: Draft, *, reason: str, focus: str | None = None, decision: str = ""
) -> str:
    """Continue the session with the compacted context. Returns why it was not continued, empty if it was.

    A commit that has begun is finished even if its caller is cancelled.
    """
    cost = await finish(live.accounting.record_summary(live.session.id, drafted.compaction.usage))
    try:
        await live.setup.hooks.before_compaction(live.session.id)
    except Exception as error:  # noqa: BLE001 - it is told; what must outlive the compaction is not risked
        why = f"what must outlive a compaction could not be written down ({type(error).__name__}: {error})"
        live.report_failure(why)
        return why
    return await finish(_continue(live, drafted, reason=reason, focus=focus, cost=cost, decision=decision))


async def _continue(
    live: ConversationState, drafted: Draft, *, reason: str, focus: str | None, cost: Decimal | None, decision: str
) -> str:
    made, old = drafted.compaction, live.session
    grown = live.counter.messages(live.bodies[len(drafted.stored) :])  # what was said since the draft comes along
    before, after = max(live.tokens, made.tokens_before), made.tokens_after + grown
    tools = {call.id: call.name for body in drafted.bodies for call in calls_of(body)}
    for item in made.to_store:
        await store_output(live, item, tool=tools.get(item.call_id, ""))
    system = _continued_system(live, made)
    left_out = live.toolbox.choice(system)
    figures = asdict(made.verification) | {
        "phases": [asdict(phase) for phase in made.phases], "steps": list(made.steps), "decision": decision,
    }  # fmt: skip
    if left_out:
        figures[LEFT_OUT] = list(left_out)
    record = NewCompaction(
        covered=[drafted.stored[index].id for index in made.covered], tokens_before=before, tokens_after=after,
        summary=made.summary, author=made.author, figures=figures, warnings=made.warnings, reason=reason, focus=focus,
        duration=made.duration, cost=cost,
    )  # fmt: skip
    continued = await live.setup.store.continue_session(
        old.id, _entries(live, drafted), seen=len(drafted.stored), compaction=record, system=system, nodes=made.nodes
    )
    if not continued.won:
        why = "another process continued this conversation first; its context is used"
        live.emit(events.CompactionVoid(old.id, why))
        await live.reload()
        return why
    await _switch(live, replace(made, tokens_before=before, tokens_after=after), left_out, record)
    return ""


async def discard(live: ConversationState, drafted: Draft, why: str) -> None:
    """A compaction that is not used: what it cost was spent all the same."""
    await live.accounting.record_summary(drafted.session, drafted.compaction.usage)
    live.emit(events.CompactionVoid(live.session.id, why))


async def _switch(
    live: ConversationState, compaction: Compaction, left_out: Sequence[str], record: NewCompaction
) -> None:
    """Switch to the continuation: inform the engine, save, then emit the events."""
    old, before = live.session.id, len(live.stored)
    await live.move_to_tip()
    live.toolbox.use(left_out, "a compaction")
    live.compactions += 1
    live.context.compacted, live.context.rhythm = live.tokens, live.context.rhythm.rewritten()
    live.context.pause.relieved = compaction.tokens_before if record.reason in AUTOMATIC else 0
    live.engine.on_compacted(compaction)
    live.engine.on_session_start(live.session.id, reason="compression", previous=old)
    await live.save()
    try:
        await live.setup.hooks.after_compaction(live.session.id, old)
    except Exception as error:  # noqa: BLE001 - it is told; the compaction is committed and holds
        live.notify(f"After the compaction something failed: {type(error).__name__}: {error}")
    live.emit(
        events.CompactionDone(
            live.session.id, old, record.reason, compaction.tokens_before, live.tokens, before, len(live.stored),
            compaction.author, live.compactions, compaction.verification, compaction.duration, record.cost,
            compaction.steps, compaction.warnings, record.figures["decision"],
        )
    )  # fmt: skip
    if live.compactions >= FADING:
        live.notify(fading_text(live.compactions, "/new starts afresh"))


def _entries(live: ConversationState, drafted: Draft) -> list[int | NewMessage]:
    """The compacted context for the store: ids of what stays as it is, and what was made for it."""
    entries: list[int | NewMessage] = []
    for message, index in zip(drafted.compaction.messages, drafted.compaction.kept, strict=True):
        if index is None:
            kind: MessageKind = "summary" if is_summary(message) else "derived"
            entries.append(NewMessage(strip_marks([message])[0], kind, tokens=live.counter.message(message)))
        elif message is drafted.bodies[index]:
            entries.append(drafted.stored[index].id)
        else:
            source = drafted.stored[index]
            origin = source.id if source.origin is None else source.origin
            entries.append(NewMessage(message, "derived", tokens=live.counter.message(message), origin=origin))
    return entries


def _continued_system(live: ConversationState, compaction: Compaction) -> System:
    """The system prompt, rebuilt where a function builds it, with the note that there are summaries."""
    note = note_in(live.system) or compaction.system_note
    fresh = without_note(live.system)
    if callable(live.setup.system):
        try:
            fresh = live.setup.written_system()
        except Exception as error:  # noqa: BLE001 - it is told; the prompt that was there still holds
            why = f"{type(error).__name__}: {error}"
            live.notify(f"The system prompt could not be written anew, the old one stays: {why}")
    return with_note(fresh, note)


# In the background


class Preparation:
    """At most one compaction under way."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self._task: asyncio.Task[Draft] | None = None

    def start(self, reason: str, *, background: bool = True) -> None:
        """Begin, unless one is under way or ready. `background`: the conversation goes on meanwhile."""
        if self._task is None:
            work = draft(self._live, reason=reason, background=background)
            self._task = asyncio.get_running_loop().create_task(work)

    @property
    def under_way(self) -> bool:
        """Begun, or ready and not taken."""
        return self._task is not None

    @property
    def ready(self) -> bool:
        return self._task is not None and self._task.done()

    async def done(self, *, must_wait: bool) -> bool:
        """Whether it is finished. A slow model is waited for only if the turn must wait."""
        if self._task is None:
            return True
        slow = asyncio.ensure_future(self._live.summarizer.is_slow.wait())
        try:
            await asyncio.wait({self._task} if must_wait else {self._task, slow}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            slow.cancel()
        return self._task.done()

    async def take(self) -> Draft | None:
        """The finished draft, once; None after a failure, for which an event was emitted."""
        task, self._task = self._task, None
        if task is None:
            return None
        try:
            return await task
        except EverthreadError as error:
            self._live.report_failure(error)
            return None

    async def drop(self, why: str) -> None:
        """Cancel the draft that is under way."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await self._live.accounting.record_lost(self._live.session.id)
        if task is None or task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            await discard(self._live, task.result(), why)
        else:
            self._live.report_failure(failure)


# When it is done


class Compactor:
    """Watches the size of one conversation's context, and carries out what the policy decides."""

    def __init__(self, live: ConversationState) -> None:
        self.live = live
        self.preparation = Preparation(live)
        self._fixed_reported = False
        self._wait_reported = False
        self._rest_timer: Timer | None = None

    async def relieve(self, *, reason: str) -> None:
        """Compact where the policy says so. Waits only where the turn cannot go on without."""
        live = self.live
        size = live.size
        live.emit(events.Estimated(live.session.id, size.tokens, live.window, size.budget.threshold, live.reported))
        if size.fixed >= live.nominal_budget.threshold and not live.toolbox.relieves():
            self._report_fixed(size.fixed, "Offer fewer tools, or use a model with a larger window.")
        ready = self.preparation.ready
        decision = live.policy.decide(size, live.context, live.prices, reason=reason, ready=ready)
        if decision.action == "wait" and decision.weighed is not None and not self._wait_reported:
            self._wait_reported = True
            self._report_plan(decision.weighed)
        if decision.compacts and await self._engine_agrees():
            if decision.weighed is not None:
                self._wait_reported = False
                self._report_plan(decision.weighed)
            await self._carry_out(decision)

    async def settle_tools(self) -> None:
        """Before a session's first request: leave tools out where they press on the window."""
        live = self.live
        if live.toolbox.settled:
            return
        fixed = live.fixed
        live.toolbox.settle()
        if fixed >= live.nominal_budget.threshold > live.fixed:
            self._report_fixed(fixed, f"{len(live.toolbox.out)} tools that it does not use are left out.")
        if live.toolbox.out:
            await live.save()

    async def compact(self, reason: str, decision: str = "") -> None:
        """Compact now and wait for it. A failing engine emits an event, and the call goes on uncompacted."""
        await self.preparation.drop("another compaction takes its place")
        self.preparation.start(reason, background=False)
        await self._use(await self.preparation.take(), reason, decision)

    async def prepare_ahead(self) -> None:
        """From 80 % of the threshold on a summary may be written beside the conversation."""
        live = self.live
        if not self.preparation.under_way and live.policy.prepares(live.size, live.context, live.prices):
            await self._prepare("in-loop")

    async def _prepare(self, reason: str) -> None:
        if await self._engine_agrees():
            self.preparation.start(reason)

    # Between turns

    def rest(self) -> None:
        """The turn is over. Shortly before the provider forgets the prompt, a summary is written if that will pay."""
        self.wake()
        live, options = self.live, self.live.setup.options
        may_prepare = options.background and not self.preparation.under_way
        if may_prepare and live.tokens >= EARLIEST * live.budget.threshold:
            self._rest_timer = live.setup.timer(NEARLY_COLD * options.cache_seconds, self._prepare_cold)

    def wake(self) -> None:
        """The conversation goes on, or ends."""
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _prepare_cold(self) -> None:
        live = self.live
        self._rest_timer = None
        if not self.preparation.under_way and live.policy.prepares_at_pause(live.size, live.context, live.prices):
            self._rest_timer = asyncio.get_running_loop().create_task(self._prepare(COLD))

    async def hygiene(self) -> None:
        """The safety net before an incoming message, at 85 % of the window. Its failure blocks nothing."""
        live = self.live
        if not live.policy.is_hygiene_due(live.size, len(live.stored)):
            return
        futile = live.context.futile
        try:
            await self.compact("hygiene")
        except EverthreadError as error:
            live.report_failure(error)
        live.context.futile = min(live.context.futile, futile)

    def forget(self) -> None:
        """Another model, or a person's own compaction: nothing is in vain yet."""
        self.live.context.futile, self._fixed_reported = 0, False

    # How

    async def _engine_agrees(self) -> bool:
        """Whether the engine would compact at the threshold, and finds anything to make smaller."""
        live = self.live
        if not live.engine.should_compress(live.size.when_due.tokens):
            return False
        if self.preparation.under_way or (len(live.bodies) == 1 and live.size.is_full):
            return True
        return await live.has_content_to_compress()

    def _report_plan(self, plan: Decision) -> None:
        session, tokens = self.live.session.id, self.live.tokens
        self.live.emit(events.Planned(session, plan.action, plan.why, tokens, plan.cost, plan.saves, plan.calls))

    def _report_fixed(self, fixed: int, more: str) -> None:
        """Emit this notice once."""
        live = self.live
        if not self._fixed_reported:
            self._fixed_reported = True
            live.notify(fixed_text(fixed, live.window, more))

    async def _carry_out(self, decision: PolicyDecision) -> None:
        live, reason, why = self.live, decision.reason, str(decision.weighed or "")
        if not live.setup.options.background:
            await self.compact(reason, why)
            return
        self.preparation.start(reason)
        if not await self.preparation.done(must_wait=decision.must_wait):
            return
        drafted = await self.preparation.take()
        if drafted is not None and drafted.compaction.changed and not self._is_usable(drafted):
            await discard(live, drafted, "the conversation changed or outgrew it meanwhile")
            await self.compact(reason, why)
        else:
            await self._use(drafted, reason, why)

    def _is_usable(self, drafted: Draft) -> bool:
        live = self.live
        grown = live.counter.messages(live.bodies[len(drafted.stored) :])
        return drafted.still_holds(live) and drafted.compaction.tokens_after + grown < live.budget.threshold

    async def _use(self, drafted: Draft | None, reason: str, decision: str) -> None:
        """Commit a compaction; one that failed or could make nothing smaller is not tried again at once."""
        live = self.live
        old = live.session.id
        if drafted is not None and drafted.compaction.changed:
            await commit(live, drafted, reason=reason, decision=decision)
        elif drafted is not None:
            await discard(live, drafted, drafted.compaction.reason)
        if live.session.id != old:
            live.context.futile = 0
        else:
            live.context.fail(live.tokens)


# After a refusal


async def recover(live: ConversationState, tried: RecoveryAttempts, error: Exception, sent: Request | None) -> None:
    """Make the next try possible, or raise: the error itself where size is not at fault."""
    verdict = classify_error(error)
    if verdict.kind == "other" and isinstance(error, ModelError) and live.tokens >= NEAR_LIMIT * live.budget.window:
        verdict = classify_error(status=error.status, body=error.body, near_limit=True)
    if verdict.kind not in TOO_LARGE:
        raise error
    requested_cap, enabled = output_cap(sent) if sent else None, live.setup.options.enabled
    await _learn_limit(live, verdict, error, requested_cap)
    while True:
        step = tried.next_step(verdict, output_cap=requested_cap, enabled=enabled)
        if step.action == "give_up":
            raise _overflow_error(live, tried, verdict, error) from error
        live.emit(events.Recovery(live.session.id, verdict.kind, step.attempt, step.text))
        if step.action == "lower_cap" and step.cap is not None:
            live.output_cap = step.cap
            await live.limits.learn_cap(live.limit_key, lasting_cap(verdict, step.cap), verdict.reason)
            return
        if await (_slim(live) if step.action == "slim" else _compact_harder(live, step, verdict)):
            tried.done += step.action == "compact"
            return


def _overflow_error(
    live: ConversationState, tried: RecoveryAttempts, verdict: ErrorVerdict, error: Exception
) -> Exception:
    name = live.route.name
    if not live.setup.options.enabled:
        return ContextOverflowError(
            f"{name} refused the request for its size ({verdict.reason}) and compression is disabled "
            "(compression.enabled). Nothing was changed; /new starts afresh."
        )
    return ContextOverflowError(
        f"The request does not fit into {name} ({live.window:,} tokens), {tried.failure_text}. Your message and the "
        "history are stored; try /new for a fresh conversation or /compress with a focus. The provider said: "
        f"{error}"
    )


async def _learn_limit(
    live: ConversationState, verdict: ErrorVerdict, error: Exception, requested_cap: int | None
) -> None:
    """What the refusal teaches of the window."""
    if live.answering != live.route.name:
        return  # another model stepped in: its limit says nothing about the window of this one
    limit = await live.limits.learn_refusal(
        live.limit_key, verdict, window=live.window, tokens=live.tokens, output_cap=requested_cap,
        status=getattr(error, "status", None), body=getattr(error, "body", None),
    )  # fmt: skip
    if limit is not None:
        live.fit(limit.tokens)
        live.emit(events.LimitLearnt(live.session.id, live.route.name, limit.tokens, limit.source, stored=limit.stored))


async def _slim(live: ConversationState) -> bool:
    """Old images out, big results stored: fewer bytes, and no word lost; whether there was anything."""
    bodies = list(live.bodies)
    slim, stored = slim_messages(bodies, live.budget.preview_chars)
    if all(new is old for new, old in zip(slim, bodies, strict=True)):
        return False
    compaction = Compaction(
        messages=slim, summary="", tokens_before=live.tokens,
        tokens_after=live.counter.request(slim, system=live.system, tools=live.tools),
        kept=tuple(range(len(bodies))), author="none", reason="payload", to_store=tuple(stored),
        steps=("dropped old images and stored big results",),
    )  # fmt: skip
    return not await commit(
        live, Draft(compaction, live.session.id, tuple(live.stored), tuple(bodies)), reason="payload"
    )


async def _compact_harder(live: ConversationState, step: RecoveryStep, verdict: ErrorVerdict) -> bool:
    try:
        drafted = await draft(live, reason="overflow", level=step.level, tokens=verdict.input_tokens)
    except EverthreadError as failure:
        live.report_failure(failure)
        return False
    if not drafted.compaction.changed:
        await discard(live, drafted, drafted.compaction.reason)
        return False
    await commit(live, drafted, reason="overflow")
    return True
