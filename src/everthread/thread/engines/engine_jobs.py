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
from dataclasses import dataclass, replace
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
from everthread.thread.engines.engine_failures import check_compaction, wrap_failure
from everthread.thread.engines.plugin_engines import LoopSummarizer, report_in_loop
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.engines.worker_processes import MAX_PROCESSES, WorkerProcesses

T = TypeVar("T")
ResultT_co = TypeVar("ResultT_co", covariant=True)
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


class EngineJob(Protocol[Input, ResultT_co]):
    """A history to compact or to refit, and what to make of the engine's compaction. It can be pickled."""

    def restore_engine(self, engine: ContextEngine) -> None:
        """Load the engine's stored state into it."""
        ...

    def read(self) -> Input:
        """Return the input of the engine."""
        ...

    def make_result(
        self, engine: ContextEngine, engine_input: Input, compaction: Compaction
    ) -> ResultT_co:
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
        self,
        setup: EngineSetup,
        job: EngineJob[Input, ResultT_co],
        summarizer: Summarizer | None = None,
        *,
        wait: SummaryWait | None = None,
        events: ReportProgress = ignore_event,
    ) -> ResultT_co:
        """Run a job and return its result. End the job if it takes too long or its caller is cancelled.

        Without a summariser, the journal writes the summary. `wait`: limits the wait for a model. `events`: called with
        the reports of an engine that runs in this process.
        """
        counter = TokenCounter(setup.model)
        summarizer = summarizer or JournalWriter(counter)
        wait = wait or SummaryWait()
        async with self._limit_time():
            if self._uses_processes:
                return await self._run_in_processes(setup, job, summarizer, wait=wait)
            async with self._threads:
                loop_summarizer = LoopSummarizer(summarizer, counter)
                engine = setup.create(loop_summarizer, report_in_loop(events))
                with wrap_failure(engine.name):
                    engine_input = await asyncio.to_thread(_read_job, engine, job)
                    compaction = await run_engine(engine, engine_input, loop_summarizer, wait)
                    return await asyncio.to_thread(
                        job.make_result, engine, engine_input, compaction
                    )

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
        self,
        setup: EngineSetup,
        job: EngineJob[Input, ResultT_co],
        summarizer: Summarizer,
        *,
        wait: SummaryWait,
    ) -> ResultT_co:
        """Run a job step by step in worker processes, and ask for drafts in between."""
        has_model = may_call_model(summarizer)
        step: ResultT_co | PausedPlan = await self._processes.call(
            run_job_step, setup, job, has_model
        )
        while isinstance(step, PausedPlan):
            drafts = await wait.ask(summarizer, step.requests)
            step = await self._processes.call(
                run_job_step, setup, job, has_model, step.data, drafts
            )
        return step


def load_engine_code(setup: EngineSetup) -> None:
    """Load the code of an engine and the tables of its tokenizer."""
    setup.create()
    load_tokenizer(setup.model)


def _read_job(engine: ContextEngine, job: EngineJob[Input, Any]) -> Input:
    """Restore the engine's state, and return the input of the job."""
    job.restore_engine(engine)
    return job.read()


def run_job_step(
    setup: EngineSetup,
    job: EngineJob[Input, ResultT_co],
    has_model: bool,  # noqa: FBT001 - called in a worker
    paused_plan: bytes = b"",
    drafts: Sequence[SummaryDraft] = (),
) -> ResultT_co | PausedPlan:
    """Run a job until it needs drafts, and return the paused plan; or until its end, and return its result.

    `paused_plan`: the plan to continue with the drafts that it requested; empty to start the job.
    """
    engine = _create_planning_engine(setup)
    with wrap_failure(engine.name):
        if paused_plan:
            job.restore_engine(engine)
            engine_input, plan = pickle.loads(paused_plan)  # noqa: S301  # nosec B301  a plan of our own
            step = engine.resume(plan, drafts)
        else:
            engine_input = _read_job(engine, job)
            if isinstance(engine_input, CompactionInput):
                engine_input = replace(engine_input, has_model=has_model)
            step = engine.start(engine_input, engine.current_state())
        if isinstance(step, Plan):
            return PausedPlan(step.requests, pickle.dumps((engine_input, step)))
        check_compaction(engine.name, step, engine_input.message_count)
        return job.make_result(engine, engine_input, step)


def _create_planning_engine(setup: EngineSetup) -> PlanningEngine:
    """Create the setup's engine. Raise `EngineError` if it cannot compact in the two steps, plan and finish."""
    engine = setup.create()
    planning_engine = as_planning_engine(engine)
    if planning_engine is None:
        raise EngineError(f"the context engine {engine.name} does not plan and finish")
    return planning_engine


async def run_engine(
    engine: ContextEngine,
    engine_input: CompactionInput | RefitInput,
    summarizer: LoopSummarizer,
    wait: SummaryWait,
) -> Compaction:
    """Return the compaction of an engine that works in threads of this process, off the event loop.

    Raise `EngineError` if it fails or is unusable.
    """
    planning_engine = as_planning_engine(engine)
    with wrap_failure(engine.name):
        if planning_engine is None:
            summarizer.wait = wait
            compaction = await summarizer.run(lambda: engine_input.run_on(engine))
        else:
            if isinstance(engine_input, CompactionInput):
                engine_input = replace(engine_input, has_model=may_call_model(summarizer))
            ask = partial(wait.ask, summarizer.summarizer)
            compaction = await planning_engine.run(engine_input, ask, asyncio.to_thread)
    check_compaction(engine.name, compaction, engine_input.message_count)
    return compaction
