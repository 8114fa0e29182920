"""Before a call: is it time to compact, and can the turn go on without waiting for it?"""

from __future__ import annotations

from dataclasses import dataclass, field

from everthread.conversation.compaction import COLD, GRACE, Draft, Preparation, commit, discard, draft
from everthread.conversation.events import CompactionFailed, Estimated, Notice, Planned
from everthread.conversation.options import Timer
from everthread.conversation.state import ConversationState
from everthread.core.economics import EARLIEST, Decision
from everthread.errors import EverthreadError

GROWTH = 1.10
"""After a compaction that could make nothing smaller, the next automatic one waits for this growth."""
HYGIENE_MESSAGES = 4
NEARLY_COLD = 0.8
"""Share of the time a cache is kept after which a summary is written from it, while reading it is still cheap."""


@dataclass(slots=True)
class Pressure:
    """Watches the size of one conversation's context."""

    live: ConversationState
    preparation: Preparation = field(init=False)
    _futile: int = 0
    _told_fixed: bool = False
    _told_waiting: bool = False
    _resting: Timer | None = None

    def __post_init__(self) -> None:
        self.preparation = Preparation(self.live)

    async def relieve(self, *, reason: str) -> None:
        """Compact if the next prompt reaches the threshold. Waits only where the turn cannot go on without."""
        live = self.live
        tokens, threshold = live.tokens, live.budget.threshold
        live.emit(Estimated(live.session.id, tokens, live.window, threshold, live.reported))
        if live.setup.options.enabled and tokens >= threshold and self._filled():
            return
        decision = self._decided(tokens)
        early = decision is not None and decision.action == "now" and tokens < threshold
        if early and self._at_once():
            reason, tokens = COLD, threshold
        if (decision is not None and self._waits(decision, tokens)) or not self._due(tokens):
            return
        if decision is not None:
            self._told_waiting = False
            self._tell(decision)
        await self._relieved(reason)

    async def settle_tools(self) -> None:
        """Before a session's first request: leave tools out where they press on the window."""
        live = self.live
        if live.toolbox.settled:
            return
        fixed = live.fixed
        live.toolbox.settle()
        if fixed >= live.budget.threshold > live.fixed:
            self._tell_fixed(fixed, f"{len(live.toolbox.out)} tools that it does not use are left out.")
        if live.toolbox.out:
            await live.save()

    async def compact(self, reason: str) -> None:
        """A compaction that is waited for. An engine that fails is told; the call goes on with what there is."""
        live = self.live
        await self.preparation.drop("another compaction takes its place")
        made: Draft | None = None
        try:
            made = await draft(live, reason=reason)
        except EverthreadError as error:
            live.emit(CompactionFailed(live.session.id, str(error)))
        await self._use(made, reason)

    def prepare_ahead(self) -> None:
        """From 80 % of the threshold on a summary may be written beside the conversation."""
        live = self.live
        if not self._may_prepare or live.tokens < live.budget.background_start:
            return
        size = max(live.tokens, live.budget.threshold)
        decision = live.economy.weigh(size)
        if (decision is None or decision.action == "now") and self._due(size):
            self.preparation.start("in-loop")

    # Between turns

    def rest(self) -> None:
        """The turn is over. Shortly before the provider forgets the prompt, a summary is written if that will pay."""
        self.wake()
        live = self.live
        if self._may_prepare and live.tokens >= EARLIEST * live.budget.threshold:
            self._resting = live.setup.timer(NEARLY_COLD * live.economy.ttl, self._prepare_cold)

    def wake(self) -> None:
        """The conversation goes on, or ends."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def _prepare_cold(self) -> None:
        live = self.live
        self._resting = None
        if not self._may_prepare or not live.economy.pays_when_cold(live.tokens):
            return
        if self._due(max(live.tokens, live.budget.threshold)):
            self.preparation.start(COLD)

    async def hygiene(self) -> None:
        """The safety net before an incoming message, at 85 % of the window. Its failure blocks nothing."""
        live = self.live
        if not live.setup.options.enabled or len(live.stored) < HYGIENE_MESSAGES or live.tokens < live.budget.hygiene:
            return
        futile = self._futile
        try:
            await self.compact("hygiene")
        except EverthreadError as error:
            live.emit(CompactionFailed(live.session.id, str(error)))
        self._futile = min(self._futile, futile)

    def forget(self) -> None:
        """Another model, or a person's own compaction: nothing is in vain yet."""
        self._futile, self._told_fixed = 0, False

    # Whether

    @property
    def _may_prepare(self) -> bool:
        return self.live.setup.options.background and not self.preparation.under_way

    def _decided(self, tokens: int) -> Decision | None:
        """What the economics say; below half the threshold nobody asks them."""
        live = self.live
        return live.economy.weigh(tokens) if tokens >= EARLIEST * live.budget.threshold else None

    def _waits(self, decision: Decision, tokens: int) -> bool:
        """Whether a compaction that is due is put off; said once."""
        if decision.action == "now" or tokens < self.live.budget.threshold:
            return False
        if not self._told_waiting:
            self._told_waiting = True
            self._tell(decision)
        return True

    def _at_once(self) -> bool:
        """Whether an early compaction keeps nobody waiting: it is prepared, or no model has to write it."""
        live = self.live
        return not live.setup.options.background or self.preparation.ready or live.economy.free_summary

    def _due(self, tokens: int) -> bool:
        live = self.live
        if not live.setup.options.enabled or tokens < self._futile:
            return False
        if not live.engine.should_compress(tokens):
            return False
        if self._filled():
            return False
        return self.preparation.under_way or live.engine.has_content_to_compress(live.bodies)

    def _tell(self, decision: Decision) -> None:
        live, made = self.live, decision
        live.emit(Planned(live.session.id, made.action, made.why, live.tokens, made.cost, made.saves, made.calls))

    def _filled(self) -> bool:
        """Whether system prompt and tools alone reach the threshold, whatever is left out; said once."""
        live = self.live
        if live.fixed < live.budget.threshold or live.toolbox.relieves():
            return False
        self._tell_fixed(live.fixed, "Offer fewer tools, or use a model with a larger window.")
        return True

    def _tell_fixed(self, fixed: int, done: str) -> None:
        live = self.live
        if self._told_fixed:
            return
        self._told_fixed = True
        share = round(100 * fixed / live.window)
        live.emit(
            Notice(
                live.session.id,
                f"System prompt and tools alone take {fixed:,} tokens ({share} % of the window): compacting the "
                f"history cannot help. {done}",
            )
        )

    # How

    async def _relieved(self, reason: str) -> None:
        live = self.live
        if not live.setup.options.background:
            await self.compact(reason)
            return
        begun = self.preparation.start(reason)
        must = live.tokens >= live.hard_limit
        if not await self.preparation.done(patience=None if must else GRACE if begun else 0):
            return
        made = await self.preparation.take()
        if made is not None and made.compaction.changed and not self._usable(made):
            await discard(live, made, "the conversation changed or outgrew it meanwhile")
            await self.compact(reason)
        else:
            await self._use(made, reason)

    def _usable(self, made: Draft) -> bool:
        live = self.live
        grown = live.counter.messages(live.bodies[len(made.stored) :])
        return made.still_holds(live) and made.compaction.tokens_after + grown < live.budget.threshold

    async def _use(self, made: Draft | None, reason: str) -> None:
        """Commit a compaction; one that failed or could make nothing smaller is not tried again at once."""
        live = self.live
        if made is not None and made.compaction.changed:
            before = live.session.id
            await commit(live, made, reason=reason)
            self._futile = 0 if live.session.id != before else round(live.tokens * GROWTH)
            return
        self._futile = round(live.tokens * GROWTH)
        if made is not None:
            await discard(live, made, made.compaction.reason)
