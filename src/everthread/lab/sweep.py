"""A grid of settings over recorded conversations: what each costs, and what is still known at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from itertools import product
from multiprocessing import get_context
from typing import Any

from everthread.compaction.registry import find_engine
from everthread.config import Config, home_directory
from everthread.conversation.options import SessionOptions
from everthread.factory.conversations import session_options
from everthread.lab.logs.base import Log
from everthread.lab.replay import Facts, replay
from everthread.lab.replay.result import total

NEAR = 0.05
"""A setting that keeps at most so much less of the facts in the context than another may be preferred for its price."""
BEAT = 0.5
"""Seconds after which is told again how far it is, so that a bar can be drawn while the first replays run."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
    threshold: float
    ratio: float
    engine: str

    def __str__(self) -> str:
        return f"{self.engine}, threshold {self.threshold:g}, ratio {self.ratio:g}"


@dataclass(frozen=True, slots=True)
class Run:
    """One conversation at one setting."""

    source: str
    setting: Setting
    model: str
    calls: int
    refused: bool
    """It ended before its end: a request did not fit into the window."""
    cost: Decimal | None
    prompt_tokens: int
    peak: int
    compactions: int
    facts: Facts
    seconds: float


@dataclass(frozen=True, slots=True)
class Point:
    """All conversations with one model at one setting."""

    setting: Setting
    model: str
    runs: Sequence[Run]

    @property
    def cost(self) -> Decimal | None:
        return total(run.cost for run in self.runs)

    @property
    def prompt_tokens(self) -> int:
        return sum(run.prompt_tokens for run in self.runs)

    @property
    def compactions(self) -> int:
        return sum(run.compactions for run in self.runs)

    @property
    def peak(self) -> int:
        return max(run.peak for run in self.runs)

    @property
    def refused(self) -> int:
        return sum(run.refused for run in self.runs)

    @property
    def retained(self) -> float:
        """The part of the facts that is in the context at the end."""
        return self._share(sum(run.facts.retained for run in self.runs))

    @property
    def known(self) -> float:
        """The part that is there or found by a search."""
        return self._share(sum(run.facts.retained + run.facts.recoverable for run in self.runs))

    @property
    def price(self) -> Decimal:
        """What settings are compared by: dollars, or tokens where the model has no price."""
        return Decimal(self.prompt_tokens) if self.cost is None else self.cost

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.setting),
            "model": self.model,
            "cost": None if self.cost is None else round(float(self.cost), 6),
            "prompt_tokens": self.prompt_tokens,
            "peak": self.peak,
            "compactions": self.compactions,
            "refused": self.refused,
            "facts": {
                name: sum(getattr(run.facts, name) for run in self.runs) for name in ("retained", "recoverable", "lost")
            },
            "conversations": [
                {
                    "source": run.source, "calls": run.calls, "refused": run.refused, "compactions": run.compactions,
                    "cost": None if run.cost is None else round(float(run.cost), 6), "retained": run.facts.retained,
                    "recoverable": run.facts.recoverable, "lost": run.facts.lost, "seconds": round(run.seconds, 3),
                }
                for run in self.runs
            ],
        }  # fmt: skip

    def _share(self, count: int) -> float:
        whole = sum(run.facts.total for run in self.runs)
        return count / whole if whole else 1.0


@dataclass(frozen=True, slots=True)
class Sweep:
    points: Sequence[Point]

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(point.model for point in self.points))

    def of(self, model: str) -> list[Point]:
        return [point for point in self.points if point.model == model]

    def front(self, model: str) -> list[Point]:
        """Those that no other beats: none is cheaper and keeps as much. The cheapest first."""
        found: list[Point] = []
        for point in sorted(self._whole(model), key=lambda point: (point.price, -point.retained)):
            if not found or point.retained > found[-1].retained:
                found.append(point)
        return found

    def best(self, model: str) -> Point | None:
        """The cheapest of those that keep nearly as many facts in the context as any; none that was refused."""
        front = self.front(model)
        most = max((point.retained for point in front), default=0.0)
        return next((point for point in front if point.retained >= most - NEAR), None)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        chosen = {model: self.best(model) for model in self.models}
        return {
            "best": {model: None if point is None else asdict(point.setting) for model, point in chosen.items()},
            "front": {model: [asdict(point.setting) for point in self.front(model)] for model in self.models},
            "points": [point.as_dict() for point in self.points],
        }

    def _whole(self, model: str) -> list[Point]:
        return [point for point in self.of(model) if not point.refused]


@dataclass(frozen=True, slots=True)
class _Task:
    log: int
    setting: Setting
    model: str | None
    window: int | None
    options: SessionOptions
    engine_options: dict[str, Any]


def sweep(  # noqa: PLR0913 - what a sweep may be told, one by one
    logs: Sequence[Log],
    *,
    thresholds: Sequence[float] = (0.3, 0.5, 0.7),
    ratios: Sequence[float] = (0.2,),
    engines: Sequence[str] = ("compressor",),
    models: Sequence[str | None] = (None,),
    window: int | None = None,
    options: SessionOptions | None = None,
    engine_options: Mapping[str, dict[str, Any]] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Replay every conversation at every setting, in processes beside each other.

    `ratios`: which part of the threshold the kept end is, `compression.target_ratio`. `models`: None is whom a log
    names. `workers`: how many processes; 1 works in this one, None: one for each processor.
    """
    for engine in engines:
        find_engine(engine, home=home_directory())
    base = options or session_options(Config())
    tasks = [
        _Task(
            log, Setting(threshold, ratio, engine), model, window,
            replace(base, threshold=threshold, threshold_tokens=None, target_ratio=ratio),
            dict((engine_options or {}).get(engine, {})),
        )
        for model, engine, threshold, ratio, log in product(models, engines, thresholds, ratios, range(len(logs)))
    ]  # fmt: skip
    runs: dict[int, Run] = {}

    def beat() -> None:
        if progress is not None:
            progress(len(runs), len(tasks))

    for number, run in _finished(tasks, logs, workers or os.cpu_count() or 1, beat):
        runs[number] = run
        beat()
    points: dict[tuple[str, Setting], list[Run]] = {}
    for number in range(len(tasks)):
        points.setdefault((runs[number].model, runs[number].setting), []).append(runs[number])
    return Sweep([Point(setting, model, found) for (model, setting), found in points.items()])


def _finished(
    tasks: Sequence[_Task], logs: Sequence[Log], workers: int, beat: Callable[[], None]
) -> Iterator[tuple[int, Run]]:
    """Each task's number with what it gave, as they are done. `beat` is called now and then while nothing is."""
    count = min(workers, len(tasks))
    if count <= 1:
        yield from ((number, _run(task, logs[task.log], lambda *_: beat())) for number, task in enumerate(tasks))
        return
    # A fresh interpreter each: a copy of this one could hold locks of threads that it lacks.
    pool = ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin, initargs=(list(logs),))
    try:
        numbers = {pool.submit(_run_there, task): number for number, task in enumerate(tasks)}
        left = set(numbers)
        while left:
            done, left = wait(left, BEAT, FIRST_COMPLETED)
            yield from ((numbers[one], one.result()) for one in done)
            beat()
    finally:
        pool.shutdown(cancel_futures=True)


_logs: list[Log] = []


def _begin(logs: list[Log]) -> None:
    """In each process once: what is replayed there. Ctrl-C is for the one that waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _logs.extend(logs)


def _run_there(task: _Task) -> Run:
    return _run(task, _logs[task.log])


def _run(task: _Task, log: Log, progress: Progress | None = None) -> Run:
    found = replay(
        log, model=task.model, window=task.window, options=task.options, engine=task.setting.engine,
        engine_options=task.engine_options, compared=False, judged=True, progress=progress,
    )  # fmt: skip
    ours = found.ours
    return Run(
        found.source, task.setting, found.model, len(ours.calls), ours.refused is not None, ours.cost,
        ours.read + ours.written + ours.uncached, ours.peak, len(found.compactions), ours.facts or Facts(),
        found.seconds,
    )  # fmt: skip
