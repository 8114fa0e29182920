"""Projections build on the last report and learn how far estimates of later messages are off."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.tokens import TokenCounter
from everthread.core.tokens.calibration import Calibration
from tests.shared_data import shared_path


def test_without_a_report_the_projection_is_the_estimate() -> None:
    assert Calibration().project("m", 1_234) == 1_234


def test_adds_new_tokens_to_the_last_report() -> None:
    calibration = Calibration()
    calibration.observe("m", 10_000, 7_000)
    assert calibration.project("m", 7_500) == 10_500
    assert calibration.project(None, 7_500) == 7_500


@given(
    st.floats(min_value=0.5, max_value=2.0),
    st.lists(st.integers(500, 5_000), min_size=6, max_size=8),
)
def test_learns_the_factor_of_a_model(truth: float, growth: list[int]) -> None:
    calibration = Calibration()
    estimate = 1_000
    for step in growth * 10:
        calibration.observe("m", round(5_000 + truth * estimate), estimate)
        estimate += step
    assert calibration.factor("m") == pytest.approx(truth, rel=0.2)
    assert (
        abs(calibration.project("m", estimate) - (5_000 + truth * estimate))
        <= 0.25 * truth * growth[-1] + 2
    )


def test_older_evidence_fades() -> None:
    calibration = Calibration()
    reported = 0.0
    estimate = 0
    for truth in (0.7, 1.4):
        for _ in range(300):
            reported = reported + truth * 1_000
            estimate = estimate + 1_000
            calibration.observe("m", reported, estimate)
    assert calibration.factor("m") == pytest.approx(1.4, rel=0.05)


@pytest.mark.parametrize(
    "report", [None, 0, -5, 3, "12", True, math.nan, math.inf, 10**400, [], {}]
)
def test_ignores_reports_of_partial_prompts(report: Any) -> None:
    calibration = Calibration()
    calibration.observe("m", 10_000, 9_000)
    calibration.observe("m", report, 9_500)
    assert calibration.project("m", 10_000) == 11_000
    assert calibration.factor("m") == 1.0


def test_compares_with_the_last_valid_report() -> None:
    calibration = Calibration()
    for reported, estimate in ((10_000, 9_000), (0, 19_000), (34_000, 29_000)):
        calibration.observe("m", reported, estimate)
    assert calibration.factor("m") == pytest.approx(26_000 / 22_000)


@pytest.mark.parametrize(
    ("reported", "estimate"),
    [(6_000, 5_000), (10_050, 9_900), (19_000, 9_900), (9_800, 9_900), (10_500, 9_000)],
    ids=["compacted", "dropped unseen", "added unseen", "shrank", "nothing estimated"],
)
def test_jumps_reset_the_base_without_learning(reported: int, estimate: int) -> None:
    calibration = Calibration()
    calibration.observe("m", 10_000, 9_000)
    calibration.observe("m", reported, estimate)
    assert calibration.factor("m") == 1.0
    assert calibration.project("m", estimate + 100) == reported + 100


def test_keeps_a_factor_per_model() -> None:
    calibration = Calibration()
    for step in range(40):
        calibration.observe("a", 1_000 + step * 1_500, 1_000 + step * 1_000)
    learnt = calibration.factor("a")
    assert learnt > 1.4
    assert Calibration.load(calibration.dump()).factor("a") == learnt
    assert calibration.project("b", 50_000) == 50_000
    calibration.observe("b", 30_000, 40_000)
    assert calibration.factor("b") == 1.0
    assert calibration.project("a", 1_000) == round(learnt * 1_000)


def test_reset_keeps_the_factor() -> None:
    calibration = Calibration()
    for step in range(40):
        calibration.observe("m", 1_000 + step * 1_500, 1_000 + step * 1_000)
    calibration.reset()
    assert calibration.project("m", 10_000) == round(calibration.factor("m") * 10_000)


def test_only_the_change_since_the_last_report_is_unreported() -> None:
    calibration = Calibration()
    assert calibration.count_unreported_tokens("m", 7_000) == 7_000, "nothing is reported yet"
    calibration.observe("m", 10_000, 7_000)
    assert calibration.count_unreported_tokens("m", 7_000) == 0
    assert calibration.count_unreported_tokens("m", 7_500) == 500
    assert calibration.count_unreported_tokens("m", 6_800) == 200, (
        "what was removed is an estimate too"
    )
    assert calibration.count_unreported_tokens("other", 7_500) == 7_500
    calibration.reset()
    assert calibration.count_unreported_tokens("m", 7_500) == 7_500


def test_a_projection_is_never_negative() -> None:
    calibration = Calibration()
    calibration.observe("m", 4_000, 10_000)
    assert calibration.project("m", 0) == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.one_of(st.none(), st.integers(-10, 10**6), st.floats()),
            st.integers(0, 10**6),
        )
    ),
    st.integers(0, 10**6),
)
def test_the_state_survives_json(reports: list[tuple[str | None, Any, int]], estimate: int) -> None:
    calibration = Calibration()
    for model, reported, then in reports:
        calibration.observe(model, reported, then)
    again = Calibration.load(json.loads(json.dumps(calibration.dump())))
    for model in ("a", "b", None):
        assert again.project(model, estimate) == calibration.project(model, estimate) >= 0


@pytest.mark.parametrize(
    "state",
    [
        None,
        7,
        [],
        {},
        {"evidence": 3, "last": "x"},
        {"evidence": {"m": "ab"}, "last": ["m", 1]},
        {"evidence": {"m": [1, -1]}, "last": ["m", "1", 2]},
        {"evidence": {"m": [1, 2, 3]}, "last": ["m", math.nan, 2]},
    ],
)
def test_ignores_a_state_of_another_shape(state: Any) -> None:
    assert Calibration.load(state) == Calibration()


def _mean_error(name: str, model: str) -> tuple[float, float]:
    """Mean error of the projections, call by call, and error of the summed uncalibrated deltas."""
    data = json.loads(shared_path("transcripts", name).read_text("utf-8"))
    counter = TokenCounter(model)
    calibration = Calibration()
    errors: list[float] = []
    reports: list[int] = []
    estimates: list[int] = []
    for call in data["usage"]:
        prompt = call.get("prompt") or call["input"] + call["cache_read"] + call["cache_write"]
        estimate = counter.messages(data["messages"][: call["before_message"]])
        if reports:
            errors.append(abs(calibration.project(model, estimate) - prompt) / prompt)
        calibration.observe(model, prompt, estimate)
        reports.append(prompt)
        estimates.append(estimate)
    return sum(errors) / len(errors), abs(
        (estimates[-1] - estimates[0]) / (reports[-1] - reports[0]) - 1
    )


def test_projects_a_recorded_claude_session() -> None:
    mean, total = _mean_error("coding-long-claude.json", "claude-sonnet-4-5")
    assert mean <= 0.02
    assert total <= 0.05


@pytest.mark.parametrize("index", range(6))
def test_projects_recorded_gpt_conversations(index: int) -> None:
    mean, total = _mean_error(f"support-gpt41-{index}.json", "gpt-4.1")
    assert mean <= 0.03
    assert total <= 0.03


@pytest.mark.parametrize("index", range(6))
def test_projects_recorded_conversations_with_dropped_thinking(
    index: int,
) -> None:
    assert _mean_error(f"support-claude45-{index}.json", "claude-sonnet-4-5")[0] <= 0.05


def test_has_report_only_for_the_last_model() -> None:
    calibration = Calibration()
    assert not calibration.has_report("gpt-5")
    calibration.observe("gpt-5", 100, 120)
    assert calibration.has_report("gpt-5")
    assert not calibration.has_report("other")
