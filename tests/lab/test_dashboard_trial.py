"""Other settings on a stored thread: replayed in a process of its own."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from everthread.errors import InputError
from everthread.gateway.dashboard.trial_page import TrialRequest
from everthread.lab.replay.trial import replay_with_trial_settings, run_trial
from tests.chat_messages import user_message
from tests.lab.recorded_histories import make_history

MODEL = "claude-sonnet-4-5"


def request(turns: int = 24, threshold: float = 0.25) -> TrialRequest:
    messages = [
        (message, 1_700_000_000.0 + 20 * at) for at, message in enumerate(make_history(turns))
    ]
    return TrialRequest(
        "0123456789abcdef",
        MODEL,
        window=24_000,
        system="Be brief.",
        messages=messages,
        threshold=threshold,
        ratio=0.20,
    )


def test_a_trial_compares_configured_settings_and_no_compaction() -> None:
    result = replay_with_trial_settings(request())
    now, tried, without = result.runs
    assert len(now.prompt_sizes) == len(tried.prompt_sizes) == 48
    assert len(tried.compacted_calls) > len(now.compacted_calls)
    assert max(tried.prompt_sizes) < max(now.prompt_sizes)
    assert without.was_refused
    assert len(without.prompt_sizes) < 48
    assert None not in (now.cost, tried.cost, without.cost)
    assert sum(tried.facts or ()) == sum(now.facts or ()) > 0


async def test_runs_in_its_own_process() -> None:
    result = await run_trial(request(6))
    assert [run.name for run in result.runs] == [
        "as configured",
        "with these settings",
        "without compaction",
    ]


def test_refuses_a_thread_without_answers() -> None:
    question = (user_message("Hello"), 1.0)
    nothing = replace(request(), messages=[question])
    with pytest.raises(InputError, match="no call to replay") as refused:
        replay_with_trial_settings(nothing)
    assert str(copy.copy(refused.value)) == str(refused.value), "it can be sent out of a process"
