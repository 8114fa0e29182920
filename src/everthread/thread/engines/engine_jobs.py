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
from typing import Any, Protocol, TypeVar

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine, Events, Services, ignore_event
from everthread.compaction.engine_input import CompactionInput, RefitInput
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.planning_engine import (
    Plan,
    PlanningEngine,
    as_planning_engine,
    may_call_model,
)
from everthread.compaction.summarizers.summarizer import (
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.tokens.tokenizers import load_tokenizer
from everthread.errors import EngineError
from everthread.thread.engines.engine_failures import (
    SafeEngine,
    check_compaction,
    wrap_failure,
)
from everthread.thread.engines.plugin_engines import (
    LoopSummarizer,
    report_in_loop,
    run_in_thread,
)
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.engines.worker_processes import MAX_PROCESSES, WorkerProcesses

T = TypeVar("T")
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
        self, summarizer: Summarizer | None = None, events: Events = ignore_event
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
class SummarySource:
    """The summariser of a compaction, and its listeners."""

    summarizer: Summarizer
    wait: SummaryWait = field(default_factory=SummaryWait)
    """Used to wait for a model that writes the summary."""
    events: Events = ignore_event


class EngineJob(Protocol):
    """A history to compact, and a method that turns the engine's compaction into a result. It can be pickled."""

    def restore_engine(self, engine: ContextEngine) -> None:
        """Load the engine's stored state into it."""
        ...

    def read(self) -> CompactionInput:
        """Return the history."""
        ...

    def make_result(
        self,
        engine: ContextEngine,
        engine_input: CompactionInput,
        compaction: Compaction,
    ) -> Any:
        """Return the result of the job."""
        ...


class RefitJob(Protocol):
    """A prepared compaction and the messages since, to be fitted together by an engine. It can be pickled."""

    def restore_engine(self, engine: ContextEngine) -> None:
        """Load the engine's stored state into it."""
        ...

    def read(self) -> RefitInput:
        """Return the messages."""
        ...

    def make_result(self, engine_input: RefitInput, compaction: Compaction) -> Any:
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

    async def run(self, setup: EngineSetup, job: EngineJob, source: SummarySource) -> Any:
        """Run a job and return its result. End the job if it takes too long or its caller is cancelled."""
        async with self._limit_time():
            if self._uses_processes:
                return await self._plan_and_finish(setup, job, source)
            async with self._threads:
                counter = TokenCounter(setup.model)
                loop_summarizer = LoopSummarizer(source.summarizer, counter)
                loop_summarizer.wait = source.wait
                engine = setup.create(loop_summarizer, report_in_loop(source.events))
                return await loop_summarizer.run(lambda: compress_job(engine, job))

    async def refit(self, setup: EngineSetup, job: RefitJob) -> Any:
        """Run a refit, which needs no model, and return its result."""
        async with self._limit_time():
            if self._uses_processes:
                return await self._processes.call(refit_job, setup, job)
            async with self._threads:
                engine = setup.create()
                return await run_in_thread(lambda: refit_plugin_job(engine, job))

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

    async def _plan_and_finish(
        self, setup: EngineSetup, job: EngineJob, source: SummarySource
    ) -> Any:
        """Run a job step by step in worker processes, and ask for drafts in between."""
        call = self._processes.call
        step = await call(plan_job, setup, job, may_call_model(source.summarizer))
        while isinstance(step, PausedPlan):
            drafts = await source.wait.ask(source.summarizer, step.requests)
            step = await call(finish_job, setup, job, step.data, drafts)
        return step


def load_engine_code(setup: EngineSetup) -> None:
    """Load the code of an engine and the tables of its tokenizer."""
    setup.create()
    load_tokenizer(setup.model)


def plan_job(setup: EngineSetup, job: EngineJob, has_model: bool) -> Any:  # noqa: FBT001 - called in a worker
    """Plan a job, and finish it if no draft is needed."""
    engine = _create_planning_engine(setup)
    with wrap_failure(engine.name):
        job.restore_engine(engine)
        engine_input = replace(job.read(), has_model=has_model)
        plan = engine.plan(engine_input, engine.current_state())
        return _continue_job(engine, job, engine_input, plan)


def finish_job(
    setup: EngineSetup, job: EngineJob, data: bytes, drafts: Sequence[SummaryDraft]
) -> Any:
    """Continue a job with the drafts that its plan requested."""
    engine = _create_planning_engine(setup)
    with wrap_failure(engine.name):
        job.restore_engine(engine)
        engine_input, plan = pickle.loads(data)  # noqa: S301  # nosec B301  a plan of our own
        return _continue_job(engine, job, engine_input, engine.finish(plan, drafts))


def refit_job(setup: EngineSetup, job: RefitJob) -> Any:
    """Run a refit with a built-in engine."""
    engine = _create_planning_engine(setup)
    with wrap_failure(engine.name):
        job.restore_engine(engine)
        engine_input = job.read()
        compaction = engine.refit_with_state(engine_input, engine.current_state())
        check_compaction(
            engine.name,
            compaction,
            engine_input.prepared_count + len(engine_input.new_messages),
        )
        return job.make_result(engine_input, compaction)


def _continue_job(
    engine: PlanningEngine,
    job: EngineJob,
    engine_input: CompactionInput,
    step: Compaction | Plan,
) -> Any:
    """Return the result of a finished job, or the plan that waits for drafts, pickled."""
    while not isinstance(step, Compaction):
        if step.requests:
            return PausedPlan(step.requests, pickle.dumps((engine_input, step)))
        step = engine.finish(step, ())
    check_compaction(engine.name, step, len(engine_input.messages))
    return job.make_result(engine, engine_input, step)


def _create_planning_engine(setup: EngineSetup) -> PlanningEngine:
    """Create an engine that plans and finishes."""
    engine = setup.create()
    planning_engine = as_planning_engine(engine)
    if planning_engine is None:
        raise EngineError(f"the context engine {engine.name} does not plan and finish")
    return planning_engine


async def compress_job(engine: ContextEngine, job: EngineJob) -> Any:
    """Run a job with a plug-in engine, which may only have `compress`."""
    with wrap_failure(engine.name):
        job.restore_engine(engine)
        engine_input = job.read()
        compaction = await engine.compress(
            engine_input.messages, **engine_input.compress_arguments()
        )
        check_compaction(engine.name, compaction, len(engine_input.messages))
        return job.make_result(engine, engine_input, compaction)


async def refit_plugin_job(engine: ContextEngine, job: RefitJob) -> Any:
    """Run a refit with a plug-in engine."""
    with wrap_failure(engine.name):
        job.restore_engine(engine)
        engine_input = job.read()
        compaction = await engine.refit(
            engine_input.prepared,
            engine_input.new_messages,
            **engine_input.refit_arguments(),
        )
        check_compaction(
            engine.name,
            compaction,
            engine_input.prepared_count + len(engine_input.new_messages),
        )
        return job.make_result(engine_input, compaction)


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
        return await summarizer.run(
            lambda: engine.compress(engine_input.messages, **engine_input.compress_arguments())
        )
    engine_input = replace(engine_input, has_model=may_call_model(summarizer))
    with wrap_failure(engine.name):
        state = await planning_engine.read_state(engine_input)
        plan = await asyncio.to_thread(planning_engine.plan, engine_input, state)
        while True:
            drafts = await wait.ask(summarizer.summarizer, plan.requests)
            step = await asyncio.to_thread(planning_engine.finish, plan, drafts)
            if isinstance(step, Compaction):
                break
            plan = step
    check_compaction(engine.name, step, len(engine_input.messages))
    return step


async def refit_off_loop(
    engine: SafeEngine, engine_input: RefitInput, summarizer: LoopSummarizer
) -> Compaction:
    """Run the `refit` of a conversation whose engine lives in this process."""
    planning_engine = engine.planning
    if planning_engine is None:
        return await summarizer.run(
            lambda: engine.refit(
                engine_input.prepared,
                engine_input.new_messages,
                **engine_input.refit_arguments(),
            )
        )
    with wrap_failure(engine.name):
        state = await planning_engine.read_state(engine_input.to_compaction_input())
        compaction = await asyncio.to_thread(planning_engine.refit_with_state, engine_input, state)
    check_compaction(
        engine.name,
        compaction,
        engine_input.prepared_count + len(engine_input.new_messages),
    )
    return compaction
