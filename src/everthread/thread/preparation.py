"""A compaction that is made ahead, while its thread continues."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic

from everthread.thread.engines.summary_wait import SummaryWait, Timer
from everthread.thread.managed_prompt import DraftT


class Preparation(Generic[DraftT]):
    """The draft of a thread's next compaction while it is made; at most one per thread."""

    def __init__(self) -> None:
        self.task: asyncio.Task[DraftT] | None = None
        """The task that makes the draft, or None if none was started or the draft was taken."""
        self.idle_timer: Timer | None = None
        """A timer that fires shortly before the provider's cache expires."""
        self.idle_task: asyncio.Task[None] | None = None
        """The compaction or the summary that the idle timer has started."""
        self._wait: SummaryWait | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a draft was started and not taken yet."""
        return self.task is not None

    @property
    def is_planned(self) -> bool:
        """Whether a draft was started, or will be if the thread stays idle."""
        return self.is_under_way or self.idle_timer is not None or self.idle_task is not None

    @property
    def is_ready(self) -> bool:
        return self.task is not None and self.task.done()

    def cancel_idle_timer(self) -> None:
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        self.idle_timer = None

    def start(
        self, coroutine: Coroutine[Any, Any, DraftT], wait: SummaryWait | None = None
    ) -> None:
        """Start making a draft. `wait`: limits the wait for a model, unless the coroutine limits it itself."""
        self._wait = wait
        self.task = asyncio.get_running_loop().create_task(coroutine)

    async def wait_for_model(self, seconds: float) -> bool:
        """Wait for the draft; return False once a model has been writing for `seconds`."""
        if self.task is None or self._wait is None:
            return True
        return await self._wait.wait_for(self.task, seconds)

    def leave_to_journal(self) -> None:
        """Stop waiting for a model, so that the journal writes the summary."""
        if self._wait is not None:
            self._wait.end()

    async def take(self) -> DraftT | None:
        """Wait for the draft and return it, or None if none was started.

        Raise any error that occurred while making the draft.
        """
        task = self.task
        self.task = None
        return None if task is None else await task

    async def cancel(self) -> asyncio.Task[DraftT] | None:
        """Stop making the draft; return the ended task, or None if there was none."""
        task = self.task
        self.task = None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        return task
