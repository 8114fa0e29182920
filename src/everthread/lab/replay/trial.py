"""Replay a stored thread with other settings, for the dashboard."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from everthread.config import load_config
from everthread.factory.conversations import make_session_options
from everthread.gateway.dashboard.trial_page import TrialRequest, TrialResult, TrialRun
from everthread.lab.importers.log import Log, LoggedMessage
from everthread.lab.replay.result import Replay
from everthread.lab.replay.run_replay import replay


async def run_trial(request: TrialRequest) -> TrialResult:
    """Replay a thread with other settings, in a process that ends with the replay: it may grow large."""
    loop = asyncio.get_running_loop()
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        return await loop.run_in_executor(pool, replay_with_trial_settings, request)
    finally:
        for process in list(getattr(pool, "_processes", {}).values()):
            process.terminate()  # cancelled, or done
        pool.shutdown(wait=False, cancel_futures=True)


def replay_with_trial_settings(request: TrialRequest) -> TrialResult:
    """Replay a thread as configured, with the settings to try, and without compaction."""
    messages = [
        LoggedMessage(message, timestamp, model=request.model)
        for message, timestamp in request.messages
    ]
    log = Log(
        f"thread {request.source[:12]}",
        "core",
        entries=messages,
        system=request.system,
        tools=[],
        model=request.model,
    )
    options = make_session_options(load_config())
    trial_options = replace(
        options,
        threshold=request.threshold,
        threshold_tokens=None,
        target_ratio=request.ratio,
    )
    configured_replay = replay(
        log,
        window=request.window,
        options=options,
        with_baselines=False,
        with_facts=True,
    )
    trial_replay = replay(log, window=request.window, options=trial_options)
    runs = [
        _make_trial_run("as configured", configured_replay),
        _make_trial_run("with these settings", trial_replay),
        _make_trial_run("without compaction", trial_replay, "cached"),
    ]
    return TrialResult(runs, trial_replay.notes)


def _make_trial_run(
    name: str, replay_result: Replay, strategy_name: str = "everthread"
) -> TrialRun:
    strategy = replay_result.strategy(strategy_name)
    facts = strategy.facts
    compactions = replay_result.compactions if strategy_name == "everthread" else ()
    return TrialRun(
        name,
        [call.use.prompt for call in strategy.calls],
        compacted_calls=[compaction.call for compaction in compactions],
        cost=None if strategy.cost is None else float(strategy.cost),
        facts=(facts.retained, facts.recoverable, facts.lost) if facts is not None else None,
        was_refused=strategy.refused_call is not None,
    )
