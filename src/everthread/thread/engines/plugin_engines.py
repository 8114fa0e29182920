"""Run a third-party engine in a thread of this process, with its summariser and events in the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from everthread.compaction.engine import ReportProgress
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.summarizers.summarizer import (
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)
from everthread.core.tokens import TokenCounter
from everthread.errors import EngineError
from everthread.thread.engines.summary_wait import SummaryWait, make_late_draft

T = TypeVar("T")


class LoopSummarizer:
    """Lets an engine that runs in another thread use a summariser of this event loop.

    The journal needs no event loop, so it is written in the engine's thread.
    """

    def __init__(self, summarizer: Summarizer, counter: TokenCounter) -> None:
        self.summarizer = summarizer
        self.wait = SummaryWait()
        """Limits the wait for the summary of the current compaction."""
        self._counter = counter
        self._loop = asyncio.get_running_loop()

    @property
    def name(self) -> str:
        return self.summarizer.name

    async def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a function that uses this summariser in a thread. If the caller is cancelled, cancel the summary too."""
        try:
            return await run_in_thread(function)
        except asyncio.CancelledError:
            await self.wait.cancel()
            raise

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Write the journal in this thread, or ask the summariser in its own event loop."""
        if isinstance(self.summarizer, JournalWriter):
            return self.summarizer.write(request)
        coroutine = self._ask(request)
        if asyncio.get_running_loop() is self._loop:
            draft = await coroutine
        else:
            draft = await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            )
        if draft.is_from_model or draft.sections:
            return draft
        journal = JournalWriter(self._counter).write(request)
        return replace(journal, warnings=draft.warnings, usage=draft.usage)

    async def _ask(self, request: SummaryRequest) -> SummaryDraft:
        draft = await self.wait.limit_wait(self.summarizer.summarize(request))
        return make_late_draft(self.summarizer) if draft is None else draft


async def run_in_thread(function: Callable[[], Awaitable[T]]) -> T:
    """Run work in a thread with a separate event loop.

    If the caller is cancelled, the work is cancelled too and ends at its next step. The caller does not wait for that.
    """
    result_future: concurrent.futures.Future[T] = concurrent.futures.Future()
    result_future.set_running_or_notify_cancel()  # only the thread may settle it after this
    started_tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []
    is_cancelled = False

    async def main() -> T:
        task = asyncio.ensure_future(_await_result(function))
        started_tasks.append((asyncio.get_running_loop(), task))
        if is_cancelled:
            task.cancel()
        return await task

    def run() -> None:
        try:
            result_future.set_result(asyncio.run(main()))
        except asyncio.CancelledError:
            result_future.set_exception(EngineError("the compaction was cancelled"))
        except BaseException as failure:  # noqa: BLE001 - the caller gets it
            result_future.set_exception(failure)

    threading.Thread(
        target=contextvars.copy_context().run,
        args=(run,),
        name="compaction",
        daemon=True,
    ).start()
    try:
        return await asyncio.wrap_future(result_future)
    except asyncio.CancelledError:
        is_cancelled = True
        for loop, task in started_tasks:
            with contextlib.suppress(RuntimeError):  # it ended in the meantime
                loop.call_soon_threadsafe(task.cancel)
        raise


async def _await_result(function: Callable[[], Awaitable[T]]) -> T:
    return await function()


def report_in_loop(events: ReportProgress) -> ReportProgress:
    """Wrap an event function so that any thread can call it; it runs in the caller's event loop."""
    loop = asyncio.get_running_loop()
    home_thread = threading.get_ident()

    def report(kind: str, **details: Any) -> None:
        if loop.is_running() and threading.get_ident() == home_thread:
            events(kind, **details)
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(functools.partial(events, kind, **details))

    return report
