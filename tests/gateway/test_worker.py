"""A compaction runs beside the event loop; what belongs to the loop is used there."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from everthread.core.summary import SummaryDraft
from everthread.gateway.worker import CompactionWorker, LoopSummarizer, report_in_loop


class Here:
    """A summariser that says in which thread it was asked."""

    name = "here"

    async def summarize(self, _request: Any) -> SummaryDraft:
        await asyncio.sleep(0)
        return SummaryDraft({}, str(threading.get_ident()))


async def test_work_is_done_in_a_thread_and_models_are_asked_in_the_loop() -> None:
    beside, main = CompactionWorker(), threading.get_ident()
    told: list[tuple[str, int]] = []
    summarizer = LoopSummarizer(Here())
    events = report_in_loop(lambda kind, **_: told.append((kind, threading.get_ident())))
    request: Any = None

    async def work() -> tuple[int, str]:
        events("begun")
        draft = await summarizer.summarize(request)
        time.sleep(0.2)  # noqa: ASYNC251  what takes long and never waits
        return threading.get_ident(), draft.author

    ticks = 0
    doing = asyncio.create_task(beside.run(work))
    while not doing.done():
        await asyncio.sleep(0.01)
        ticks += 1
    there, asked = await doing
    assert there != main
    assert asked == str(main)
    assert told == [("begun", main)]
    assert ticks >= 5, "others were served meanwhile"
    beside.close()


async def test_what_is_given_up_ends() -> None:
    beside = CompactionWorker()
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    doing = asyncio.create_task(beside.run(work))
    await asyncio.to_thread(begun.wait, 10)
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert await asyncio.to_thread(ended.wait, 10)
    beside.close()
