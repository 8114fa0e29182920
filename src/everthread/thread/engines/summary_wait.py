"""Limit how long a turn waits for a model's summary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from everthread.compaction.draft_requests import empty_draft, request_drafts
from everthread.compaction.summarizers.chain import TOOK_TOO_LONG, SummarizerChain
from everthread.compaction.summarizers.summarizer import (
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)

MAX_SUMMARY_WAIT_SECONDS = 30.0
"""Maximum wait of a turn for a model's summary; after it the journal writes one."""
OPTIONAL_WAIT_SECONDS = 0.25
"""Maximum wait of a turn that can continue without the summary."""
T = TypeVar("T")


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> object: ...


StartTimer = Callable[[float, Callable[[], None]], Timer]
"""Schedules a call after a number of seconds."""


def call_later(seconds: float, callback: Callable[[], None]) -> Timer:
    """Schedule a call in the running event loop."""
    return asyncio.get_running_loop().call_later(seconds, callback)


class SummaryWait:
    """Calls a summariser for the drafts of one compaction, and limits the wait for them.

    Only time in which a model writes counts: the journal and the engine's own work are always waited for.
    """

    def __init__(self, start_timer: StartTimer = call_later) -> None:
        self._start_timer = start_timer
        self._open_tasks: set[asyncio.Task[Any]] = set()
        self._is_asking = asyncio.Event()
        self._is_over = asyncio.Event()

    async def ask(
        self, summarizer: Summarizer, requests: Sequence[SummaryRequest]
    ) -> list[SummaryDraft]:
        """Return a draft for each request. After `end` the drafts are empty, so that the journal writes."""
        if not requests:
            return []
        drafts = await self.limit_wait(request_drafts(summarizer, requests))
        if drafts is not None:
            return drafts
        return [make_late_draft(summarizer) for _ in requests]

    async def limit_wait(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of asking a model; None after `end`."""
        task = asyncio.ensure_future(coroutine)
        self._open_tasks.add(task)
        self._is_asking.set()
        try:
            if not self._is_over.is_set() and await finishes_first(task, [self._is_over]):
                return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})
            self._open_tasks.discard(task)
            if not self._open_tasks:
                self._is_asking.clear()
        return None

    async def cancel(self) -> None:
        """Cancel the open calls and wait until they have ended."""
        if tasks := list(self._open_tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def end(self) -> None:
        """Stop waiting for models; the journal writes instead."""
        self._is_over.set()

    async def wait_for(self, task: asyncio.Task[Any], seconds: float) -> bool:
        """Wait for a task that uses this wait; return False once a model has been writing for `seconds`."""
        while not await finishes_first(task, [self._is_asking]):
            timeout_event = asyncio.Event()
            timer = self._start_timer(seconds, timeout_event.set)
            try:
                if await finishes_first(task, [timeout_event]):
                    return True
            finally:
                timer.cancel()
            if self._is_asking.is_set():
                return False
        return True


def make_late_draft(summarizer: Summarizer) -> SummaryDraft:
    """Return an empty draft for a summariser that took too long. In a chain, also pause the route that was writing."""
    warning = f"{summarizer.name} wrote no summary: {TOOK_TOO_LONG}"
    if isinstance(summarizer, SummarizerChain):
        warning = summarizer.pause_interrupted()
    return empty_draft([warning] if warning else ())


async def finishes_first(task: asyncio.Task[Any], other_events: Sequence[asyncio.Event]) -> bool:
    """Wait for a task or for one of these events; return whether the task is finished."""
    waiters = [asyncio.ensure_future(event.wait()) for event in other_events]
    try:
        await asyncio.wait({task, *waiters}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in waiters:
            waiter.cancel()
    return task.done()
