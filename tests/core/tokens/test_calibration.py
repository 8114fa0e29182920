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


def observe_growth(calibration: Calibration, model: str) -> None:
    """Report a prompt that grows by 1,500 tokens for each 1,000 estimated ones."""
    for step in range(40):
        reported = 1_000 + step * 1_500
        estimate = 1_000 + step * 1_000
        calibration.observe(model, reported, estimate)


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
    expected = 5_000 + truth * estimate
    max_error = 0.25 * truth * growth[-1] + 2
    assert abs(calibration.project("m", estimate) - expected) <= max_error


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
    calibration.observe("m", 10_000, 9_000)
    calibration.observe("m", 0, 19_000)
    calibration.observe("m", 34_000, 29_000)
    assert calibration.factor("m") == pytest.approx(26_000 / 22_000)


@pytest.mark.parametrize(
    ("reported", "estimate"),
    [
        pytest.param(6_000, 5_000, id="compacted"),
        pytest.param(10_050, 9_900, id="dropped unseen"),
        pytest.param(19_000, 9_900, id="added unseen"),
        pytest.param(9_800, 9_900, id="shrank"),
        pytest.param(10_500, 9_000, id="nothing estimated"),
    ],
)
def test_jumps_reset_the_base_without_learning(reported: int, estimate: int) -> None:
    calibration = Calibration()
    calibration.observe("m", 10_000, 9_000)
    calibration.observe("m", reported, estimate)
    assert calibration.factor("m") == 1.0
    assert calibration.project("m", estimate + 100) == reported + 100


def test_keeps_a_factor_per_model() -> None:
    calibration = Calibration()
    observe_growth(calibration, "a")
    learnt = calibration.factor("a")
    assert learnt > 1.4
    assert Calibration.load(calibration.dump()).factor("a") == learnt
    assert calibration.project("b", 50_000) == 50_000
    calibration.observe("b", 30_000, 40_000)
    assert calibration.factor("b") == 1.0
    assert calibration.project("a", 1_000) == round(learnt * 1_000)


def test_reset_keeps_the_factor() -> None:
    calibration = Calibration()
    observe_growth(calibration, "m")
    factor = calibration.factor("m")
    calibration.reset()
    assert calibration.factor("m") == factor
    assert calibration.project("m", 10_000) == round(factor * 10_000)


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
    stored_text = json.dumps(calibration.dump())
    loaded = Calibration.load(json.loads(stored_text))
    for model in ("a", "b", None):
        projection = calibration.project(model, estimate)
        assert projection >= 0
        assert loaded.project(model, estimate) == projection


@pytest.mark.parametrize(
    "state",
    [
        None,
        7,
        [],
        {},
        {"evidence": 3, "last": "x"},
        {
            "evidence": {"m": "ab"},
            "last": ["m", 1],
        },
        {
            "evidence": {"m": [1, -1]},
            "last": ["m", "1", 2],
        },
        {
            "evidence": {"m": [1, 2, 3]},
            "last": ["m", math.nan, 2],
        },
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
            error = calibration.project(model, estimate) - prompt
            errors.append(abs(error) / prompt)
        calibration.observe(model, prompt, estimate)
        reports.append(prompt)
        estimates.append(estimate)
    mean_error = sum(errors) / len(errors)
    estimated_growth = estimates[-1] - estimates[0]
    reported_growth = reports[-1] - reports[0]
    return mean_error, abs(estimated_growth / reported_growth - 1)


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
    mean, _ = _mean_error(f"support-claude45-{index}.json", "claude-sonnet-4-5")
    assert mean <= 0.05


def test_has_report_only_for_the_last_model() -> None:
    calibration = Calibration()
    assert not calibration.has_report("gpt-5")
    calibration.observe("gpt-5", 100, 120)
    assert calibration.has_report("gpt-5")
    assert not calibration.has_report("other")
