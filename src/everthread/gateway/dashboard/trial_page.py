"""The page to try settings on a thread by comparing replays of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import Message
from everthread.errors import InputError
from everthread.gateway.dashboard.charts import (
    Chart,
    Limit,
    Line,
    Mark,
    draw_chart,
    pick_points,
)
from everthread.gateway.dashboard.login import Viewer
from everthread.gateway.dashboard.page_text import clean
from everthread.gateway.dashboard.thread_costs import ThreadCosts
from everthread.gateway.dashboard.thread_reader import ThreadReader
from everthread.store.records import ThreadRow


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A stored thread, to be replayed with other settings."""

    source: str
    model: str
    window: int
    system: Any
    messages: Sequence[tuple[Message, float]]
    threshold: float
    ratio: float


@dataclass(frozen=True, slots=True)
class TrialRun:
    """The figures of one replay."""

    name: str
    prompt_sizes: Sequence[int]
    compacted_calls: Sequence[int]
    """Indexes of the calls after each compaction."""
    cost: float | None
    facts: tuple[int, int, int] | None = None
    """Numbers of facts that are in the context at the end, found by search, and lost."""
    was_refused: bool = False


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The replays of a thread, to compare."""

    runs: Sequence[TrialRun]
    """The replays with the configured settings, with the settings to try, and without compaction."""
    notes: Sequence[str] = ()


RunTrial = Callable[[TrialRequest], Awaitable[TrialResult]]

MAX_TRIAL_SECONDS = 300.0
_LOG = logging.getLogger("everthread.gateway.dashboard")


class TrialPage:
    """The form to try settings, and the result of one replay at a time."""

    def __init__(
        self,
        threads: ThreadReader,
        costs: ThreadCosts,
        run_trial: RunTrial | None,
        *,
        threshold: float,
        ratio: float,
    ) -> None:
        """Create the page with the configured `threshold` and `ratio`, with which the form begins."""
        self._threads = threads
        self._costs = costs
        self._run_trial = run_trial
        self._threshold = round(100 * threshold)
        self._ratio = round(100 * ratio)
        self._lock = asyncio.Lock()

    async def load_form(self, viewer: Viewer, thread_id: str) -> dict[str, Any]:
        """Return the values of the page before a replay."""
        row = await self._threads.load_thread(viewer, thread_id)
        return await self._make_page(row, self._threshold, self._ratio)

    async def run(
        self, viewer: Viewer, thread_id: str, threshold: int, ratio: int
    ) -> dict[str, Any]:
        """Replay a thread with settings in per cent, and return the values of the page."""
        row = await self._threads.load_thread(viewer, thread_id)
        result = None
        problem = ""
        if self._lock.locked():
            problem = "Another replay is running. Try again in a moment."
        elif self._run_trial is not None:
            try:
                async with self._lock, asyncio.timeout(MAX_TRIAL_SECONDS):
                    result = await self._run_trial(await self._make_request(row, threshold, ratio))
            except InputError as error:
                problem = clean(str(error))
            except TimeoutError:
                problem = "The replay was stopped after five minutes."
            except Exception as error:  # noqa: BLE001 - a replay may fail in any way; logged and shown
                _LOG.warning("a replay failed: %s: %s", type(error).__name__, error)
                problem = "The replay failed. The log of this process has the details."
        return await self._make_page(row, threshold, ratio, result=result, problem=problem)

    async def _make_request(self, row: ThreadRow, threshold: int, ratio: int) -> TrialRequest:
        model, size = await self._costs.load_window(row)
        history = await self._threads.store.load_history(row.tip.id)
        return TrialRequest(
            row.first.id,
            model,
            window=size.tokens,
            system=row.first.system,
            messages=[(message.body, message.created) for message in history],
            threshold=threshold / 100,
            ratio=ratio / 100,
        )

    async def _make_page(
        self,
        row: ThreadRow,
        threshold: int,
        ratio: int,
        *,
        result: TrialResult | None = None,
        problem: str = "",
    ) -> dict[str, Any]:
        _, size = await self._costs.load_window(row)
        chart = ""
        if result is not None:
            chart = draw_trial(result, size.tokens, round(size.tokens * threshold / 100))
        return {
            "thread": row.first,
            "title": await self._threads.load_title(row),
            "threshold": threshold,
            "ratio": ratio,
            "window": size.tokens,
            "is_possible": self._run_trial is not None,
            "problem": problem,
            "chart": chart,
            "result": result,
        }


def draw_trial(result: TrialResult, window: int, threshold: int) -> str:
    """Draw the prompt size of each call in several replays of a thread."""
    call_count = max((len(run.prompt_sizes) for run in result.runs), default=0)
    point_call_indexes = pick_points(call_count)
    lines = []
    for run, style in zip(result.runs, "cab", strict=False):
        sizes = [
            run.prompt_sizes[call_index]
            for call_index in point_call_indexes
            if call_index < len(run.prompt_sizes)
        ]
        lines.append(Line(run.name, style, sizes))
    trial_run = result.runs[1] if len(result.runs) > 1 else result.runs[0]
    point_by_call_index = {call_index: point for point, call_index in enumerate(point_call_indexes)}
    marks = [
        Mark(point_by_call_index[call_index], "compaction with these settings")
        for call_index in trial_run.compacted_calls
        if call_index in point_by_call_index
    ]
    limits = [Limit("window", window), Limit("compaction from here on", threshold)]
    description = " ".join(
        f"{run.name}: at most {max(run.prompt_sizes, default=0):,} tokens." for run in result.runs
    )
    names = [f"{call_index + 1:,}" for call_index in point_call_indexes]
    return draw_chart(
        Chart(
            "trial-chart",
            "Context, call by call",
            description=description,
            unit="tokens",
            lines=lines,
            limits=limits,
            marks=marks,
            names=names,
        )
    )
