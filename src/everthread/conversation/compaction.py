"""A compaction, from the engine's answer to the continued session.

The engine says what the context shall be. What that cites is stored first; then one transaction ends the session and
begins its continuation. Before that transaction the old state holds, after it the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal

from everthread.conversation.accounting import account_auxiliary, account_lost
from everthread.conversation.events import CompactionDone, CompactionFailed, CompactionStarted, CompactionVoid, Notice
from everthread.conversation.pins import list_pins
from everthread.conversation.requests import note_in, store_output, with_note, without_note
from everthread.conversation.responses import finish
from everthread.conversation.state import LEFT_OUT, ConversationState
from everthread.core.exchange import System
from everthread.core.ladder import Strength
from everthread.core.messages import Message, calls_of
from everthread.core.summary import Compaction, is_summary
from everthread.errors import EverthreadError
from everthread.store.models import MessageKind, NewCompaction, NewMessage, StoredMessage

COLD = "cold-cache"
"""The reason of a compaction that comes early, because the provider has forgotten the prompt anyway."""
AUTOMATIC = frozenset({"in-loop", "preflight", "hygiene", COLD})
FADING = 2
"""From this compaction of a thread on the user is told that detail may fade."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A compaction that is not committed yet, and what it was made from."""

    compaction: Compaction
    session: str
    stored: tuple[StoredMessage, ...]
    bodies: tuple[Message, ...]

    def still_holds(self, live: ConversationState) -> bool:
        """Whether what it was made from still begins the context."""
        known = [message.id for message in self.stored]
        return live.session.id == self.session and [item.id for item in live.stored[: len(known)]] == known


async def draft(
    live: ConversationState,
    *,
    reason: str,
    focus: str | None = None,
    manual: bool = False,
    preview: bool = False,
    strength: Strength = Strength.NORMAL,
    tokens: int | None = None,
    background: bool = False,
) -> Draft:
    """Ask the engine. Nothing is changed by it, except that what was spent is accounted for."""
    session, stored, bodies = live.session.id, tuple(live.stored), list(live.bodies)
    size = tokens or live.tokens
    if not preview:
        live.emit(CompactionStarted(session, reason, size, background))
    if background and reason != COLD:
        size = max(size, live.budget.threshold)  # it is made for the moment at which it will be used
    live.engine.pin([note.text for note in await list_pins(live.setup.store, live.session.thread)])
    made = await live.engine.compress(
        bodies, current_tokens=size, focus_topic=focus, system=live.system, tools=live.toolbox.to_come,
        strength=strength, manual=manual, dry_run=preview, ids=[message.id for message in stored],
    )  # fmt: skip
    return Draft(made, session, stored, tuple(bodies))


async def commit(live: ConversationState, made: Draft, *, reason: str, focus: str | None = None) -> str:
    """Continue the session with the compacted context; why it was not, empty where it was.

    Once begun it comes to its end, whoever goes away meanwhile.
    """
    cost = await finish(_accounted(live, made))
    try:
        await live.setup.hooks.before_compaction(live.session.id)
    except Exception as error:  # noqa: BLE001 - it is told; what must outlive the compaction is not risked
        why = f"what must outlive a compaction could not be written down ({type(error).__name__}: {error})"
        live.emit(CompactionFailed(live.session.id, why))
        return why
    return await finish(_continue(live, made, reason, focus, cost))


async def _accounted(live: ConversationState, made: Draft) -> Decimal | None:
    await account_lost(live)
    return await account_auxiliary(live, made.compaction.usage, live.session.id)


async def _continue(live: ConversationState, made: Draft, reason: str, focus: str | None, cost: Decimal | None) -> str:
    compaction, old = _as_used(live, made), live.session
    tools = {call.id: call.name for body in made.bodies for call in calls_of(body)}
    for item in compaction.to_store:
        await store_output(live, item, tool=tools.get(item.call_id, ""))
    system = _continued_system(live, compaction)
    left_out = live.toolbox.choice(system)
    record = _record(made, compaction, reason, focus, cost, decision=_decision(live, reason))
    if left_out:
        record = replace(record, figures={**record.figures, LEFT_OUT: list(left_out)})
    continued = await live.setup.store.continue_session(
        old.id,
        _entries(live, made),
        seen=len(made.stored),
        compaction=record,
        system=system,
        nodes=compaction.nodes,
    )
    if not continued.won:
        why = "another process continued this conversation first; its context is used"
        live.emit(CompactionVoid(old.id, why))
        await live.reload()
        return why
    await _switch(live, compaction, left_out, reason=reason, cost=cost)
    return ""


async def discard(live: ConversationState, made: Draft, why: str) -> None:
    """A compaction that is not used: what it cost was spent all the same."""
    await account_lost(live)
    await account_auxiliary(live, made.compaction.usage, made.session)
    live.emit(CompactionVoid(live.session.id, why))


def _as_used(live: ConversationState, made: Draft) -> Compaction:
    """The compaction with the sizes of this moment: what was said since the draft comes along."""
    grown = live.counter.messages(live.bodies[len(made.stored) :])
    after = made.compaction.tokens_after + grown
    return replace(made.compaction, tokens_before=max(live.tokens, made.compaction.tokens_before), tokens_after=after)


async def _switch(
    live: ConversationState,
    compaction: Compaction,
    left_out: Sequence[str],
    *,
    reason: str,
    cost: Decimal | None,
) -> None:
    """Go on in the continuation: tell the engine, then everybody else."""
    old, before = live.session.id, len(live.stored)
    await live.move_to_tip()
    live.toolbox.use(left_out, "a compaction")
    live.compactions += 1
    live.after, live.rhythm = live.tokens, live.rhythm.rewritten()
    live.engine.on_compacted(replace(compaction, reason=_strike_reason(reason)))
    live.engine.on_session_start(live.session.id, reason="compression", previous=old)
    await live.save()
    try:
        await live.setup.hooks.after_compaction(live.session.id, old)
    except Exception as error:  # noqa: BLE001 - it is told; the compaction is committed and holds
        live.emit(Notice(live.session.id, f"After the compaction something failed: {type(error).__name__}: {error}"))
    live.emit(
        CompactionDone(
            live.session.id, old, reason, compaction.tokens_before, live.tokens, before, len(live.stored),
            compaction.author, live.compactions, compaction.verification, compaction.duration, cost,
            compaction.steps, compaction.warnings, _decision(live, reason),
        )
    )  # fmt: skip
    if live.compactions >= FADING:
        live.emit(
            Notice(
                live.session.id,
                f"This conversation was compacted {live.compactions} times; older detail may fade. "
                "/new starts afresh; what must last belongs into memory.",
            )
        )


def _strike_reason(reason: str) -> str:
    """Only automatic compactions are judged by what they bring."""
    return "automatic" if reason in AUTOMATIC else reason


def _decision(live: ConversationState, reason: str) -> str:
    """Why it was done now, where that was weighed."""
    return str(live.economy.decision or "") if reason in AUTOMATIC else ""


def _entries(live: ConversationState, made: Draft) -> list[int | NewMessage]:
    """The compacted context for the store: ids of what stays as it is, and what was made for it."""
    entries: list[int | NewMessage] = []
    for message, index in zip(made.compaction.messages, made.compaction.kept, strict=True):
        if index is None:
            kind: MessageKind = "summary" if is_summary(message) else "derived"
            entries.append(NewMessage(message, kind, tokens=live.counter.message(message)))
        elif message is made.bodies[index]:
            entries.append(made.stored[index].id)
        else:
            source = made.stored[index]
            origin = source.id if source.origin is None else source.origin
            entries.append(NewMessage(message, "derived", tokens=live.counter.message(message), origin=origin))
    return entries


def _record(
    made: Draft, compaction: Compaction, reason: str, focus: str | None, cost: Decimal | None, *, decision: str
) -> NewCompaction:
    figures = asdict(compaction.verification) | {
        "phases": [asdict(phase) for phase in compaction.phases],
        "steps": list(compaction.steps),
        "decision": decision,
    }
    return NewCompaction(
        covered=[made.stored[index].id for index in compaction.covered],
        tokens_before=compaction.tokens_before, tokens_after=compaction.tokens_after, summary=compaction.summary,
        author=compaction.author, figures=figures, warnings=compaction.warnings, reason=reason, focus=focus,
        duration=compaction.duration, cost=cost,
    )  # fmt: skip


def _continued_system(live: ConversationState, compaction: Compaction) -> System:
    """The system prompt, written anew where somebody writes it, and the note that there are summaries."""
    note = note_in(live.system) or compaction.system_note
    fresh = without_note(live.system)
    if callable(live.setup.system):
        try:
            fresh = live.setup.written_system()
        except Exception as error:  # noqa: BLE001 - it is told; the prompt that was there still holds
            said = f"The system prompt could not be written anew, the old one stays: {type(error).__name__}: {error}"
            live.emit(Notice(live.session.id, said))
    return with_note(fresh, note)


# In the background

GRACE = 0.25
"""Seconds a turn waits for a summary it could do without: enough for one that no model writes."""


class Preparation:
    """At most one compaction under way."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self._task: asyncio.Task[Draft] | None = None

    def start(self, reason: str) -> bool:
        """Begin, unless one is under way or ready; whether it was begun now."""
        if self._task is not None:
            return False
        self._task = asyncio.get_running_loop().create_task(draft(self._live, reason=reason, background=True))
        return True

    @property
    def under_way(self) -> bool:
        """Begun, or ready and not taken."""
        return self._task is not None

    @property
    def ready(self) -> bool:
        return self._task is not None and self._task.done()

    async def done(self, *, patience: float | None) -> bool:
        """Whether it is finished within `patience` seconds (None: wait for it)."""
        if self._task is None:
            return True
        finished, _ = await asyncio.wait({self._task}, timeout=patience)
        return bool(finished)

    async def take(self) -> Draft | None:
        """What came of it, once; None where it failed, which is told."""
        task, self._task = self._task, None
        if task is None:
            return None
        try:
            return await task
        except EverthreadError as error:
            self._live.emit(CompactionFailed(self._live.session.id, str(error)))
            return None

    async def drop(self, why: str) -> None:
        """Give up what is under way."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        await account_lost(self._live)
        if task is None or task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            await discard(self._live, task.result(), why)
        else:
            self._live.emit(CompactionFailed(self._live.session.id, str(failure)))
