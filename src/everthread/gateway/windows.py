"""How much a model takes: what is known of it, less what its provider taught."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.conversation.events import LimitLearnt
from everthread.conversation.recovery import lower_window
from everthread.core.overflow import ErrorVerdict
from everthread.gateway.turn import Turn
from everthread.providers.window import window_headers

if TYPE_CHECKING:
    from everthread.gateway.manager import ManagerSetup

_FRESH = 30.0
"""Seconds until the store is asked again what other processes learnt."""


class Windows:
    def __init__(self, setup: ManagerSetup) -> None:
        self._setup = setup
        self._known: dict[tuple[str, str, str], int] = {}
        self._learnt: dict[tuple[str, str, str], tuple[float, int | None]] = {}

    async def of(self, turn: Turn) -> int:
        """The window for a request: the smallest of what is known, learnt and guessed."""
        incoming = turn.incoming
        key = (incoming.upstream, turn.model, window_headers(incoming.headers))
        if key not in self._known:
            self._known[key] = await self._setup.window(incoming.api, turn.model, incoming.upstream)
        asked, learnt = self._learnt.get(key, (float("-inf"), None))
        if self._setup.clock() - asked > _FRESH:
            limit = await self._setup.store.limit_for(key[0], key[1], headers=key[2])
            learnt = None if limit is None else limit.limit
            self._learnt[key] = self._setup.clock(), learnt
        limits = (self._known[key], learnt, turn.memory.guessed)
        return min(limit for limit in limits if limit is not None)

    async def learn(self, turn: Turn, verdict: ErrorVerdict) -> None:
        """After a prompt that was too long: what the provider states is kept, else the next usual window is guessed."""
        incoming, limit = turn.incoming, verdict.context_limit
        key = (incoming.upstream, turn.model, window_headers(incoming.headers))
        tell, thread = self._setup.listener, turn.place.thread
        if limit is not None and limit < turn.window:
            await self._setup.store.learn_limit(key[0], key[1], limit, source=verdict.reason, headers=key[2])
            self._learnt[key] = self._setup.clock(), limit
            turn.window = limit
            tell(LimitLearnt(thread, turn.model, limit, "the provider stated it", stored=True))
        elif limit is None:
            lower = lower_window(turn.window)
            if lower is not None:
                turn.memory.guessed = turn.window = lower
                tell(LimitLearnt(thread, turn.model, lower, "a guess: the provider stated no limit", stored=False))

    async def disprove(self, turn: Turn, prompt: int) -> None:
        """A success above a learnt limit ends it."""
        incoming = turn.incoming
        key = (incoming.upstream, turn.model, window_headers(incoming.headers))
        learnt = self._learnt.get(key, (0.0, None))[1]
        if turn.memory.guessed is not None and prompt > turn.memory.guessed:
            turn.memory.guessed = None
        if learnt is not None and prompt > learnt:
            await self._setup.store.forget_limits(base_url=key[0], model=key[1], below=prompt)
            self._learnt.pop(key)
