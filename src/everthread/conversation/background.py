"""A summary that is written while the conversation goes on, and swapped in between two calls."""

from __future__ import annotations

import asyncio

from everthread.conversation.accounting import account_lost
from everthread.conversation.compacting import Draft, discard, draft
from everthread.conversation.events import CompactionFailed
from everthread.conversation.live import Live
from everthread.errors import EverthreadError

GRACE = 0.25
"""Seconds a turn waits for a summary it could do without: enough for one that no model writes."""


class Preparation:
    """At most one compaction under way."""

    def __init__(self, live: Live) -> None:
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
