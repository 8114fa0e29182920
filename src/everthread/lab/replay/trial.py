"""Other settings on a stored thread: replayed in a process of its own, so that nobody else waits for it."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from everthread.gateway.dashboard.reader import TrialRequest, TrialResult, TrialRun

if TYPE_CHECKING:
    from everthread.lab.replay.result import Replay


class Trials:
    """Replays threads, one after the other. The process ends with each replay: it may have grown large."""

    async def run(self, request: TrialRequest) -> TrialResult:
        loop = asyncio.get_running_loop()
        pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        try:
            return await loop.run_in_executor(pool, replay_twice, request)
        finally:
            for process in list(getattr(pool, "_processes", {}).values()):
                process.terminate()  # given up, or done
            pool.shutdown(wait=False, cancel_futures=True)


def replay_twice(request: TrialRequest) -> TrialResult:
    """The thread as configured, with the settings tried, and without compaction."""
    from everthread.config import load_config  # noqa: PLC0415 - in the process that replays
    from everthread.factory.conversation import session_options  # noqa: PLC0415
    from everthread.lab.importers.log import Log, LoggedMessage  # noqa: PLC0415
    from everthread.lab.replay import replay  # noqa: PLC0415

    said = [LoggedMessage(message, at, model=request.model) for message, at in request.said]
    log = Log(f"thread {request.source[:12]}", "core", said, request.system, [], request.model)
    options = session_options(load_config())
    tried = replace(options, threshold=request.threshold, threshold_tokens=None, target_ratio=request.ratio)
    now = replay(log, window=request.window, options=options, compared=False, judged=True)
    then = replay(log, window=request.window, options=tried)
    runs = [_run("as configured", now), _run("with these settings", then), _run("without compaction", then, "cached")]
    return TrialResult(runs, then.notes)


def _run(name: str, found: Replay, way: str = "everthread") -> TrialRun:
    held = found.way(way)
    facts = held.facts
    return TrialRun(
        name,
        [call.use.prompt for call in held.calls],
        [made.call for made in found.compactions] if way == "everthread" else [],
        None if held.cost is None else float(held.cost),
        (facts.retained, facts.recoverable, facts.lost) if facts is not None else None,
        held.refused is not None,
    )
