"""Compact a history off the event loop.

A built-in engine runs `plan` and `finish` in worker processes for a gateway, and in a thread for a conversation. In
between, the summariser runs in the event loop. Plug-in engines, and all engines of a framework's agents, run in a
thread of this process.
"""

from __future__ import annotations

import asyncio
import pickle  # nosec B403  our own plans, between our own processes
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine, ReportProgress, Services, ignore_event
from everthread.compaction.engine_input import CompactionInput, RefitInput
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.planning_engine import (
    Plan,
    PlanningEngine,
    as_planning_engine,
)
from everthread.compaction.summarizers.summarizer import (
    Summarizer,
    SummaryDraft,
    SummaryRequest,
    may_call_model,
)
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.tokens.tokenizers import load_tokenizer
from everthread.errors import EngineError
from everthread.thread.engines.engine_failures import (
    SafeEngine,
    check_compaction,
    run_engine,
    wrap_failure,
)
from everthread.thread.engines.plugin_engines import (
    LoopSummarizer,
    report_in_loop,
)
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.engines.worker_processes import MAX_PROCESSES, WorkerProcesses

T = TypeVar("T")
Input = TypeVar("Input", CompactionInput, RefitInput)
MAX_THREADS = 16
"""Third-party engines that run at the same time; most of them wait for a model."""
DEFAULT_COMPACTION_SECONDS = 120.0
"""Default limit for one compaction with its summary; `serve` passes a share of `manage_seconds`."""


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The settings to create an engine in any process."""

    make_engine: Callable[[Services], ContextEngine]
    model: str
    budget: Budget
    summary_key: bytes = b""

    def create(
        self, summarizer: Summarizer | None = None, events: ReportProgress = ignore_event
    ) -> ContextEngine:
        """Create the engine. Without a summariser, the journal writes the summary."""
        counter = TokenCounter(self.model)
        return self.make_engine(
            Services(
                summarizer or JournalWriter(counter),
                counter,
                self.budget,
                clock=time.monotonic,
                events=events,
                is_stored=True,
                summary_key=self.summary_key,
            )
        )


@dataclass(frozen=True, slots=True)
class CompactionSummarizer:
    """The summariser of a compaction, and its listeners."""

    summarizer: Summarizer
    wait: SummaryWait = field(default_factory=SummaryWait)
    """Used to wait for a model that writes the summary."""
    events: ReportProgress = ignore_event


class EngineJob(Protocol[Input]):
    """A history to compact or to refit, and what to make of the engine's compaction. It can be pickled."""

    def restore_engine(self, engine: ContextEngine) -> None:
        """Load the engine's stored state into it."""
        ...

    def read(self) -> Input:
        """Return the input of the engine."""
        ...

    def make_result(
        self, engine: ContextEngine, engine_input: Input, compaction: Compaction
    ) -> Any:
        """Return the result of the job."""
        ...


@dataclass(frozen=True, slots=True)
class PausedPlan:
    """A plan that waits for drafts of summaries. It stays pickled here, because only the worker reads it."""

    requests: Sequence[SummaryRequest]
    data: bytes


class CompactionRunner:
    """Run the compactions of callers' histories, in worker processes or threads."""

    def __init__(
        self,
        *,
        uses_processes: bool = False,
        seconds: float = DEFAULT_COMPACTION_SECONDS,
        processes: int = MAX_PROCESSES,
    ) -> None:
        self._uses_processes = uses_processes
        self._max_seconds = seconds
        self._processes = WorkerProcesses(processes)
        self._threads = asyncio.Semaphore(MAX_THREADS)

    async def run(
        self, setup: EngineSetup, job: EngineJob[Input], source: CompactionSummarizer | None = None
    ) -> Any:
        """Run a job and return its result. End the job if it takes too long or its caller is cancelled.

        Without a source, the journal writes the summary.
        """
        source = source or CompactionSummarizer(JournalWriter(TokenCounter(setup.model)))
        async with self._limit_time():
            if self._uses_processes:
                return await self._run_in_processes(setup, job, source)
            async with self._threads:
                loop_summarizer = LoopSummarizer(source.summarizer, TokenCounter(setup.model))
                loop_summarizer.wait = source.wait
                engine = setup.create(loop_summarizer, report_in_loop(source.events))
                return await loop_summarizer.run(lambda: run_job(engine, job))

    @asynccontextmanager
    async def _limit_time(self) -> AsyncIterator[None]:
        """Raise `EngineError` if the work inside takes longer than a compaction may."""
        try:
            async with asyncio.timeout(self._max_seconds):
                yield
        except TimeoutError as error:
            raise EngineError(
                f"the compaction took longer than {self._max_seconds:,.0f} s and was ended"
            ) from error

    def start_ahead(self, setup: EngineSetup) -> None:
        """Start a process and load the engine's code there, so that the first compaction need not wait for it."""
        if self._uses_processes:
            self._processes.call_soon(load_engine_code, setup)

    async def call_if_free(self, function: Callable[..., T], *values: Any) -> T | None:
        """Call a function in an idle process and return its result; None if no process is idle or the call fails."""
        return await self._processes.call_if_free(function, *values)

    async def close(self, seconds: float = 1.0) -> None:
        """End the processes. Cancelled compactions get `seconds` to end."""
        await self._processes.close(seconds)

    async def _run_in_processes(
        self, setup: EngineSetup, job: EngineJob[Input], source: CompactionSummarizer
    ) -> Any:
        """Run a job step by step in worker processes, and ask for drafts in between."""
        has_model = may_call_model(source.summarizer)
        step = await self._processes.call(run_job_step, setup, job, has_model)
        while isinstance(step, PausedPlan):
            drafts = await source.wait.ask(source.summarizer, step.requests)
            step = await self._processes.call(
                run_job_step, setup, job, has_model, step.data, drafts
            )
        return step


def load_engine_code(setup: EngineSetup) -> None:
    """Load the code of an engine and the tables of its tokenizer."""
    setup.create()
    load_tokenizer(setup.model)


async def run_job(engine: ContextEngine, job: EngineJob[Input]) -> Any:
    """Run a job with the engine's `compress` or `refit`, and return its result."""
    with wrap_failure(engine.name):
        job.restore_engine(engine)
        engine_input = job.read()
        compaction = await run_engine(engine, engine_input)
        return job.make_result(engine, engine_input, compaction)


def run_job_step(
    setup: EngineSetup,
    job: EngineJob[Input],
    has_model: bool,  # noqa: FBT001 - called in a worker
    paused_plan: bytes = b"",
    drafts: Sequence[SummaryDraft] = (),
) -> Any:
    """Run a job until it needs drafts, and return the paused plan; or until its end, and return its result.

    `paused_plan`: the plan to continue with the drafts that it requested; empty to start the job.
    """
    engine = _create_planning_engine(setup)
    step: Compaction | Plan
    with wrap_failure(engine.name):
        job.restore_engine(engine)
        if paused_plan:
            engine_input, plan = pickle.loads(paused_plan)  # noqa: S301  # nosec B301  a plan of our own
            step = engine.finish(plan, drafts)
        else:
            engine_input = job.read()
            if isinstance(engine_input, RefitInput):
                step = engine.refit_with_state(engine_input, engine.current_state())
            else:
                history = replace(engine_input, has_model=has_model)
                step = engine.plan(history, engine.current_state())
        while not isinstance(step, Compaction):
            if step.requests:
                return PausedPlan(step.requests, pickle.dumps((engine_input, step)))
            step = engine.finish(step, ())
        check_compaction(engine.name, step, engine_input.message_count)
        return job.make_result(engine, engine_input, step)


def _create_planning_engine(setup: EngineSetup) -> PlanningEngine:
    """Create the setup's engine. Raise `EngineError` if it cannot compact in the two steps, plan and finish."""
    engine = setup.create()
    planning_engine = as_planning_engine(engine)
    if planning_engine is None:
        raise EngineError(f"the context engine {engine.name} does not plan and finish")
    return planning_engine


async def compress_off_loop(
    engine: SafeEngine,
    engine_input: CompactionInput,
    summarizer: LoopSummarizer,
    wait: SummaryWait,
) -> Compaction:
    """Compact the history of a conversation whose engine lives in this process."""
    summarizer.wait = wait
    planning_engine = engine.planning
    if planning_engine is None:
        return await summarizer.run(lambda: engine_input.run_on(engine))
    engine_input = replace(engine_input, has_model=may_call_model(summarizer))
    with wrap_failure(engine.name):
        compaction = await planning_engine.run_plan(
            engine_input, partial(wait.ask, summarizer.summarizer), asyncio.to_thread
        )
    check_compaction(engine.name, compaction, engine_input.message_count)
    return compaction


async def refit_off_loop(
    engine: SafeEngine, engine_input: RefitInput, summarizer: LoopSummarizer
) -> Compaction:
    """Refit a compaction of a conversation whose engine lives in this process."""
    planning_engine = engine.planning
    if planning_engine is None:
        return await summarizer.run(lambda: engine_input.run_on(engine))
    with wrap_failure(engine.name):
        state = await planning_engine.read_state(engine_input.to_compaction_input())
        compaction = await asyncio.to_thread(planning_engine.refit_with_state, engine_input, state)
    check_compaction(engine.name, compaction, engine_input.message_count)
    return compaction
