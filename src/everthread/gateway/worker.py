"""A compaction beside the event loop: reading a long history takes seconds, and other clients have answers to get."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from everthread.compaction.engine import Events
from everthread.compaction.summarizers.extractive import ExtractiveSummarizer
from everthread.core.summary import Summarizer, SummaryDraft, SummaryRequest

T = TypeVar("T")
_MOST = 16
"""Compactions at the same time; most of them wait for a model."""


class CompactionWorker:
    """The threads compactions run in."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST, thread_name_prefix="compaction")
        self._running: set[asyncio.Future[Any]] = set()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the work; whoever gives it up ends it, at its next step."""
        begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

        async def main() -> T:
            task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work())
            begun.append((asyncio.get_running_loop(), task))
            return await task

        running = asyncio.get_running_loop().run_in_executor(self._pool, lambda: asyncio.run(main()))
        self._running.add(running)
        running.add_done_callback(self._ended)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            for loop, task in begun:
                with contextlib.suppress(RuntimeError):  # it ended at this very moment
                    loop.call_soon_threadsafe(task.cancel)
            raise

    async def settle(self, seconds: float) -> None:
        """Until what was given up has ended, at most so long."""
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # who waits for it is told; who gave it up does not ask

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class LoopSummarizer:
    """A summariser of the gateway's loop, for an engine in a thread. The extract needs no loop and is made there."""

    def __init__(self, summarizer: Summarizer) -> None:
        self._summarizer = summarizer
        self._loop = asyncio.get_running_loop()

    @property
    def name(self) -> str:
        return self._summarizer.name

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        if isinstance(self._summarizer, ExtractiveSummarizer):
            return await self._summarizer.summarize(request)
        asked = asyncio.run_coroutine_threadsafe(self._summarizer.summarize(request), self._loop)
        return await asyncio.wrap_future(asked)


def report_in_loop(events: Events) -> Events:
    """The same events, told in the loop of whoever asks."""
    loop = asyncio.get_running_loop()

    def tell(kind: str, **details: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the gateway has ended; nobody listens
            loop.call_soon_threadsafe(functools.partial(events, kind, **details))

    return tell
