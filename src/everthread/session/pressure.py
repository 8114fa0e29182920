"""Before a call: is it time to compact, and can the turn go on without waiting for it?"""

from __future__ import annotations

from dataclasses import dataclass, field

from everthread.errors import EverthreadError
from everthread.session.background import GRACE, Preparation
from everthread.session.compacting import Draft, commit, discard, draft
from everthread.session.events import CompactionFailed, Estimated, Notice
from everthread.session.live import Live

GROWTH = 1.10
"""After a compaction that could make nothing smaller, the next automatic one waits for this growth."""
HYGIENE_MESSAGES = 4


@dataclass(slots=True)
class Pressure:
    """Watches the size of one conversation's context."""

    live: Live
    preparation: Preparation = field(init=False)
    _futile: int = 0
    _told_fixed: bool = False

    def __post_init__(self) -> None:
        self.preparation = Preparation(self.live)

    async def relieve(self, *, reason: str) -> None:
        """Compact if the next prompt reaches the threshold. Waits only where the turn cannot go on without."""
        live = self.live
        tokens = live.tokens
        live.emit(Estimated(live.session.id, tokens, live.window, live.budget.threshold, live.reported))
        if not self._due(tokens):
            return
        if not live.setup.options.background:
            await self.compact(reason)
            return
        begun = self.preparation.start(reason)
        must = tokens >= live.hard_limit
        if not await self.preparation.done(patience=None if must else GRACE if begun else 0):
            return
        made = await self.preparation.take()
        if made is not None and made.compaction.changed and not self._usable(made):
            await discard(live, made, "the conversation changed or outgrew it meanwhile")
            await self.compact(reason)
        else:
            await self._use(made, reason)

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
        if not live.setup.options.background or live.tokens < live.budget.background_start:
            return
        if self._due(max(live.tokens, live.budget.threshold)):
            self.preparation.start("in-loop")

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

    def _due(self, tokens: int) -> bool:
        live = self.live
        if not live.setup.options.enabled or tokens < self._futile:
            return False
        if not live.engine.should_compress(tokens):
            return False
        if live.fixed >= live.budget.threshold:
            self._tell_fixed()
            return False
        return live.engine.has_content_to_compress(live.bodies)

    def _tell_fixed(self) -> None:
        live = self.live
        if self._told_fixed:
            return
        self._told_fixed = True
        share = round(100 * live.fixed / live.window)
        live.emit(
            Notice(
                live.session.id,
                f"System prompt and tools alone take {live.fixed:,} tokens ({share} % of the window): compacting the "
                "history cannot help. Offer fewer tools, or use a model with a larger window.",
            )
        )

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
