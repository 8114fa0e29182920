"""A compaction runs beside the event loop: built-in engines in processes, others in a thread of this process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.engine_input import CompactionInput, RefitInput
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.lossless import LosslessEngine
from everthread.compaction.summarizers.chain import SummarizerChain
from everthread.compaction.summarizers.summarizer import (
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Messages
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.errors import EngineError
from everthread.testing import ScriptedSummarizer
from everthread.thread.engines.engine_jobs import CompactionRunner, EngineSetup
from everthread.thread.engines.plugin_engines import report_in_loop
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import tool_turns

CONVERSATION = [
    user_message("Tidy up."),
    assistant_message("I will."),
    *tool_turns(0, 30),
    assistant_message("Done."),
    user_message("Go on."),
    *tool_turns(30, 4),
]
MODEL = "gpt-4o"
BUDGET = Budget.for_window(16_000)
NO_MODEL = SummarizerChain([], clock=lambda: 0.0)


@dataclass(frozen=True)
class Job:
    """Compact a list and return the id of the process that did it."""

    messages: Messages

    def restore_engine(self, engine: ContextEngine) -> None:
        engine.pin(["Keep the tests green."])

    def read(self) -> CompactionInput:
        return CompactionInput(self.messages)

    def make_result(
        self, engine: ContextEngine, given: CompactionInput, compaction: Compaction
    ) -> tuple[Compaction, int, int]:
        assert len(given.messages) == len(self.messages)
        engine.on_compacted(compaction)
        return compaction, os.getpid(), threading.get_ident()


@dataclass(frozen=True)
class RefitJob:
    """Uses a prepared compaction after further messages."""

    prepared: Compaction
    start: int
    since: Messages

    def restore_engine(self, engine: ContextEngine) -> None:
        engine.pin([])

    def read(self) -> RefitInput:
        return RefitInput(self.prepared, self.since, self.start)

    def make_result(
        self, _engine: ContextEngine, _input: RefitInput, compaction: Compaction
    ) -> Compaction:
        return compaction


class LoopOnly:
    """A summariser that says in which thread it was asked."""

    name = "loop"

    async def summarize(self, _request: Any) -> SummaryDraft:
        await asyncio.sleep(0)
        goal = f"asked in {os.getpid()} {threading.get_ident()}"
        return SummaryDraft({"Goal": goal}, self.name)


class FailingJob:
    name = "failing"

    async def summarize(self, _request: Any) -> SummaryDraft:
        raise ValueError("nobody expects this")


class MinimalEngine(ContextEngine):
    """An engine with nothing but the abstract methods; it keeps the last message."""

    name = "only-compress"

    def __init__(self, services: Services) -> None:
        self._services = services

    def update_from_response(self, usage: CanonicalUsage) -> None: ...

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return bool(prompt_tokens)

    async def compress(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,  # noqa: ARG002
        **_how: Any,
    ) -> Compaction:
        self._services.events("begun", pid=os.getpid())
        draft = await self._services.summarizer.summarize(SummaryRequest(messages, [], 500))
        return Compaction(
            messages=[messages[-1]],
            summary="",
            tokens_before=2,
            tokens_after=1,
            kept=(len(messages) - 1,),
            author=draft.author,
            warnings=(str(draft.sections.get("Goal", "")),),
        )


def setup_of(engine: Any = ContextCompressor) -> EngineSetup:
    return EngineSetup(engine, MODEL, BUDGET)


async def run(
    runner: CompactionRunner,
    summarizer: Summarizer,
    engine: Any = ContextCompressor,
    conversation: Messages = CONVERSATION,
) -> tuple[Compaction, int, int]:
    try:
        return await runner.run(setup_of(engine), Job(conversation), summarizer)
    finally:
        await runner.close(10)


@pytest.mark.parametrize("engine", [ContextCompressor, LosslessEngine])
@pytest.mark.parametrize("has_model", [True, False])
async def test_a_worker_process_makes_the_same_compaction_as_the_engine(
    engine: type[ContextCompressor | LosslessEngine], *, has_model: bool
) -> None:
    def writer() -> Summarizer:
        sections = {
            "Goal": "Tidy the modules.",
            "Critical Context": "None is lost.",
        }
        return ScriptedSummarizer(sections) if has_model else JournalWriter(TokenCounter(MODEL))

    made, pid, _ = await run(
        CompactionRunner(uses_processes=True),
        writer(),
        engine,
    )
    assert pid != os.getpid()
    services = Services(
        writer(),
        TokenCounter(MODEL),
        BUDGET,
        clock=lambda: 0.0,
        is_stored=True,
    )
    own = engine(services)
    own.pin(["Keep the tests green."])
    direct = await own.compress(CONVERSATION)
    assert made.changed
    assert made.messages == direct.messages
    assert made.author == direct.author
    assert made.state == direct.state
    assert made.author == ("scripted" if has_model else "journal")


async def test_a_model_is_called_in_the_event_loop_which_stays_responsive() -> None:
    doing = asyncio.create_task(run(CompactionRunner(uses_processes=True), LoopOnly()))
    ticks = 0
    while not doing.done():
        await asyncio.sleep(0.01)
        ticks += 1
    made, _, _ = await doing
    assert f"asked in {os.getpid()} {threading.get_ident()}" in made.summary
    assert ticks >= 5


@pytest.mark.parametrize("is_built_in", [True, False])
async def test_the_journal_replaces_a_failing_summariser(*, is_built_in: bool) -> None:
    made, _, _ = await run(CompactionRunner(uses_processes=is_built_in), FailingJob())
    assert made.author == "journal"
    assert any("nobody expects this" in warning for warning in made.warnings)


async def test_an_engine_with_only_compress_runs_in_a_thread_of_this_process() -> None:
    runner = CompactionRunner()
    events: list[tuple[str, int, int]] = []

    def hear(kind: str, **details: Any) -> None:
        events.append((kind, details["pid"], threading.get_ident()))

    made, pid, thread = await runner.run(
        setup_of(MinimalEngine),
        Job(CONVERSATION),
        LoopOnly(),
        events=hear,
    )
    await asyncio.sleep(0)
    here = threading.get_ident()
    assert pid == os.getpid()
    assert thread != here
    assert events == [("begun", os.getpid(), here)]
    assert made.warnings == (f"asked in {os.getpid()} {here}",)
    journal, _, _ = await runner.run(setup_of(MinimalEngine), Job(CONVERSATION), NO_MODEL)
    assert journal.author == "journal", "the journal is written there"


@pytest.mark.parametrize("is_built_in", [True, False])
async def test_refits_a_compaction_to_later_messages(*, is_built_in: bool) -> None:
    runner = CompactionRunner(uses_processes=is_built_in)
    made, _, _ = await runner.run(setup_of(), Job(CONVERSATION), NO_MODEL)
    since = [assistant_message("All tidy."), user_message("Thanks!")]
    refitted = await runner.run(setup_of(), RefitJob(made, len(CONVERSATION), since))
    assert refitted.messages[-2:] == since
    assert refitted.summary == made.summary
    await runner.close(10)


async def test_raises_the_failure_of_an_engine() -> None:
    with pytest.raises(EngineError, match="compressor failed"):
        await run(
            CompactionRunner(uses_processes=True),
            LoopOnly(),
            conversation=["?"],  # type: ignore[list-item]
        )
    with pytest.raises(EngineError, match="does not plan"):
        await run(
            CompactionRunner(uses_processes=True),
            LoopOnly(),
            MinimalEngine,
        )


async def test_a_compaction_that_takes_too_long_raises_an_error() -> None:
    class Hanging:
        name = "hanging"

        async def summarize(self, _request: Any) -> SummaryDraft:
            await asyncio.Event().wait()
            raise AssertionError

    runner = CompactionRunner(seconds=0.2)
    with pytest.raises(EngineError, match=r"longer than 0 s"):
        await run(runner, Hanging())


def test_events_of_a_loop_that_ended_are_dropped() -> None:
    reports: list[Any] = []
    received: list[str] = []

    async def report() -> None:
        reports.append(report_in_loop(lambda kind, **_details: received.append(kind)))
        reports[0]("in time")

    asyncio.run(report())
    reports[0]("late")
    assert received == ["in time"]
