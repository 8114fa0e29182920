"""A compaction runs beside the event loop, in a process or a thread; what belongs to the loop is used there."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import pytest

from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import ContextEngine
from everthread.compaction.summary import SummaryDraft, SummaryRequest
from everthread.context.worker import CompactionWorker, DeferringFloor, EngineSetup, WorkItem, report_in_loop
from everthread.core.tokens.budget import Budget
from everthread.errors import EngineError

REQUEST = SummaryRequest([{"role": "user", "content": "Mind the gap."}], [], 500)


class LoopOnly:
    """A summariser that says in which thread it was asked."""

    name = "loop"

    async def summarize(self, _request: Any) -> SummaryDraft:
        await asyncio.sleep(0)
        return SummaryDraft({"Goal": f"{os.getpid()} {threading.get_ident()}"}, self.name)


class Failing:
    name = "failing"

    async def summarize(self, _request: Any) -> SummaryDraft:
        raise ValueError("nobody expects this")


async def busy(engine: ContextEngine, seconds: float) -> tuple[int, int, str, str]:
    """Report, ask for a summary, then take long without ever waiting."""
    services = engine._services  # type: ignore[attr-defined]
    services.events("begun", pid=os.getpid())
    draft = await services.summarizer.summarize(REQUEST)
    time.sleep(seconds)  # noqa: ASYNC251
    return os.getpid(), threading.get_ident(), draft.author, str(draft.sections.get("Goal", ""))


async def fail(engine: ContextEngine, _argument: Any) -> None:
    raise KeyError(engine.name)


async def end(_engine: ContextEngine, _argument: Any) -> None:
    os._exit(3)


def item(work: Any, argument: Any = None) -> WorkItem:
    return WorkItem(EngineSetup(ContextCompressor, "gpt-4o", Budget.for_window(8_000)), work, argument)


def ignore(kind: str, **details: Any) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("portable", [True, False])
def test_others_are_served_meanwhile_and_models_are_asked_in_the_loop(portable: bool) -> None:
    async def run() -> None:
        worker, main = CompactionWorker(portable=portable), threading.get_ident()
        events: list[tuple[str, int, Any]] = []
        doing = asyncio.create_task(
            worker.run(
                item(busy, 0.2),
                LoopOnly(),
                lambda kind, **details: events.append((kind, threading.get_ident(), details["pid"])),
            )
        )
        ticks = 0
        while not doing.done():
            await asyncio.sleep(0.01)
            ticks += 1
        pid, _, author, asked_in = await doing
        assert (pid != os.getpid()) == portable
        assert (author, asked_in) == ("loop", f"{os.getpid()} {main}")
        assert events == [("begun", main, pid)]
        assert ticks >= 5
        again = await worker.run(item(busy, 0), DeferringFloor(), ignore)
        assert again[2] == "journal", "the journal is written there"
        assert (again[0] == pid) or not portable, "a process serves again"
        await worker.close(10)

    asyncio.run(run())


@pytest.mark.parametrize("portable", [True, False])
def test_an_engine_that_fails_is_told_and_the_process_serves_on(portable: bool) -> None:
    async def run() -> None:
        worker = CompactionWorker(portable=portable)
        with pytest.raises((EngineError, KeyError), match="compressor"):
            await worker.run(item(fail), DeferringFloor(), ignore)
        assert (await worker.run(item(busy, 0), DeferringFloor(), ignore))[2] == "journal"
        await worker.close(10)

    asyncio.run(run())


def test_a_summariser_that_fails_leaves_the_journal() -> None:
    async def run() -> None:
        worker = CompactionWorker(portable=True)
        assert (await worker.run(item(busy, 0), Failing(), ignore))[2] == "journal"
        await worker.close(10)

    asyncio.run(run())


def test_what_takes_too_long_is_ended_with_its_process() -> None:
    async def run() -> None:
        worker = CompactionWorker(portable=True, seconds=8.0)
        pids: list[int] = []
        started = time.monotonic()
        with pytest.raises(EngineError, match="longer than 8 s"):
            await worker.run(item(busy, 600), DeferringFloor(), lambda kind, **details: pids.append(details["pid"]))  # noqa: ARG005
        assert time.monotonic() - started < 60
        for _ in range(500):
            if not alive(pids[0]):
                break
            await asyncio.sleep(0.02)
        assert not alive(pids[0])
        await worker.close(10)

    asyncio.run(run())


def test_a_process_that_dies_is_told_and_replaced() -> None:
    async def run() -> None:
        worker = CompactionWorker(portable=True)
        with pytest.raises(EngineError, match="process of the compaction ended"):
            await worker.run(item(end), DeferringFloor(), ignore)
        assert (await worker.run(item(busy, 0), DeferringFloor(), ignore))[2] == "journal"
        await worker.close(10)

    asyncio.run(run())


def test_events_of_a_loop_that_ended_are_dropped() -> None:
    kept: list[Any] = []
    heard: list[str] = []

    async def run() -> None:
        kept.append(report_in_loop(lambda kind, **_details: heard.append(kind)))
        kept[0]("in time")

    asyncio.run(run())
    kept[0]("late")
    assert heard == ["in time"]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
