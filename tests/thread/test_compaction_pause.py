"""Two compactions in a row that hardly help pause the next ones (no thrashing)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everthread.thread.policy.compaction_pause import CompactionPause
from everthread.thread.policy.learnt_usage import LearntUsage

BEFORE = 20_000
HARDLY_LESS = 19_000
MUCH_LESS = 9_000
JUST_EFFECTIVE = 18_000


def pause_after(*reports: int, at: float = 1_000.0) -> CompactionPause:
    """Return a pause that knows the effect of this many compactions."""
    pause = CompactionPause()
    for reported in reports:
        pause.unjudged_tokens_before = BEFORE
        pause.begin_if_ineffective(reported, at)
    return pause


def test_pauses_after_two_ineffective_compactions() -> None:
    pause = pause_after(HARDLY_LESS)
    assert not pause.is_active(BEFORE, 1_000)
    pause.unjudged_tokens_before = BEFORE
    assert pause.begin_if_ineffective(HARDLY_LESS, 1_000), "the pause begins"
    assert pause.is_active(20_500, 1_001)
    assert not pause.is_active(21_000, 1_002), "grown by a tenth"
    assert not pause.is_active(20_500, 1_003), "it is over"


@pytest.mark.parametrize(
    ("seconds", "holds"),
    [
        (0, True),
        (299, True),
        (300, False),
        (-1, False),
    ],
)
def test_the_pause_ends_after_five_minutes(seconds: int, holds: bool) -> None:
    assert pause_after(HARDLY_LESS, HARDLY_LESS).is_active(HARDLY_LESS, 1_000 + seconds) is holds


@pytest.mark.parametrize("effective", [MUCH_LESS, JUST_EFFECTIVE])
def test_an_effective_compaction_resets_the_count(effective: int) -> None:
    """A compaction to nine tenths of the prompt is still effective."""
    assert not pause_after(HARDLY_LESS, effective, HARDLY_LESS).is_active(BEFORE, 1_000)


def test_judges_only_the_first_prompt_after_a_compaction() -> None:
    pause = pause_after(HARDLY_LESS)
    assert not pause.begin_if_ineffective(BEFORE, 1_000)
    assert pause.ineffective_count == 1


def test_the_pause_is_stored_with_the_thread() -> None:
    state = LearntUsage(pause=pause_after(HARDLY_LESS, HARDLY_LESS))
    state.pause.unjudged_tokens_before = 7
    other = LearntUsage.load(json.loads(json.dumps(state.dump())))
    assert other.pause == state.pause
    assert other.pause.is_active(BEFORE, 1_001)


@pytest.mark.parametrize(
    "state",
    [
        None,
        {
            "paused_at": "x",
            "ineffective_count": None,
        },
    ],
)
def test_ignores_an_invalid_stored_pause(state: Any) -> None:
    assert CompactionPause.load(state) == CompactionPause()
