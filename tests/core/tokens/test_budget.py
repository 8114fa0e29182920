"""Compute the limits of a window; no settings make them inconsistent."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.tokens.budget import SETTING_RANGES, Budget
from everthread.errors import ConfigError

windows = st.integers(1_000, 10_000_000)
settings = st.fixed_dictionaries(
    {},
    optional={
        "threshold": st.floats(0.0, 1.0),
        "target_ratio": st.floats(0.10, 0.80),
        "protect_last_n": st.integers(1, 1_000),
        "threshold_tokens": st.none() | st.integers(1, 20_000_000),
        "max_output": st.none() | st.integers(1, 20_000_000),
        "result_chars": st.integers(1, 1_000_000),
        "turn_chars": st.integers(1, 1_000_000),
        "preview_chars": st.integers(0, 1_000_000),
        "user_words": st.floats(0.0, 0.50),
    },
)


def figures(budget: Budget) -> dict[str, int]:
    """Return every figure that must not shrink when the window grows."""
    return dataclasses.asdict(budget) | {
        "max_compacted_tokens": budget.max_compacted_tokens,
        "background_start": budget.background_start,
        "hygiene": budget.before_incoming_limit,
        "summary_max": budget.summary_max,
        "summary_min": budget.summary_min,
    }


def test_defaults_for_a_common_window() -> None:
    budget = Budget.for_window(200_000)
    assert figures(budget) == {
        "window": 200_000,
        "threshold": 100_000,
        "prompt_limit": 191_904,
        "tail_tokens": 20_000,
        "protect_last_n": 20,
        "user_words_tokens": 25_000,
        "result_chars": 100_000,
        "max_turn_result_chars": 200_000,
        "preview_chars": 1_500,
        "max_compacted_tokens": 60_000,
        "background_start": 80_000,
        "hygiene": 170_000,
        "summary_max": 10_000,
        "summary_min": 2_000,
    }
    assert not budget.is_small


@pytest.mark.parametrize(
    ("window", "given_", "threshold"),
    [
        (200_000, {"threshold_tokens": 60_000}, 60_000),
        (200_000, {"threshold_tokens": 150_000}, 100_000),
        (200_000, {"max_output": 64_000}, 100_000),
        (200_000, {"max_output": 128_000}, 68_000),
        (200_000, {"threshold": 1.0}, 196_000),
        (200_000, {"threshold": 1.0, "max_output": 32_000}, 164_000),
        (8_191, {"threshold": 1.0}, 8_027),
        (200_000, {"threshold": 0.0}, 10_000),
        (200_000, {"threshold_tokens": 1}, 10_000),
        (1_000_000, {}, 200_000),
        (1_000_000, {"threshold_tokens": None}, 500_000),
        (8_192, {"max_output": 8_192}, 410),
        (8_192, {"max_output": 100_000}, 410),
        (100, {"threshold": 0.29}, 29),
        (1, {}, 1),
    ],
)
def test_threshold_is_the_smallest_of_three_with_a_minimum(
    window: int, given_: dict[str, Any], threshold: int
) -> None:
    assert Budget.for_window(window, **given_).threshold == threshold


@pytest.mark.parametrize(
    ("window", "middle", "size"),
    [
        (200_000, 80_000, 10_000),  # 20 % is 16,000: at most 5 % of the window
        (1_000_000, 400_000, 12_000),  # and never over 12,000
        (200_000, 30_000, 6_000),  # 20 %
        (200_000, 6_000, 2_000),  # not worth less than 2,000
        (200_000, 3_000, 1_500),  # but never over half of the text it replaces
        (8_000, 3_000, 1_000),  # 5 % would be 400: a quarter of T
        (200_000, 0, 0),
        (200_000, -5, 0),
    ],
)
def test_summary_size_grows_with_the_middle_up_to_its_limit(
    window: int, middle: int, size: int
) -> None:
    assert Budget.for_window(window).summary_size(middle) == size


def test_tool_limits_follow_a_small_window() -> None:
    budget = Budget.for_window(1_000, preview_chars=5_000)
    assert (budget.result_chars, budget.max_turn_result_chars, budget.preview_chars) == (
        1_000,
        2_000,
        1_000,
    )


@pytest.mark.parametrize(
    ("window", "small"),
    [
        (8_190, True),
        (8_191, True),
        (8_192, False),
    ],
)
def test_is_small_below_4096(window: int, small: bool) -> None:
    assert Budget.for_window(window).is_small is small


@given(windows, settings, st.integers(0, 20_000_000))
def test_any_settings_give_a_consistent_budget(
    window: int, chosen: dict[str, Any], middle: int
) -> None:
    budget = Budget.for_window(window, **chosen)
    limit = budget.threshold
    assert all(type(value) is int and value >= 0 for value in figures(budget).values())
    assert window * 0.05 <= limit < window
    assert budget.tail_tokens < limit
    assert (
        budget.user_words_tokens <= budget.max_compacted_tokens <= budget.background_start < limit
    )
    assert budget.before_incoming_limit < window
    assert 0 < budget.summary_max <= min(12_000, limit)
    assert budget.preview_chars <= budget.result_chars <= 2 * limit
    assert budget.max_turn_result_chars <= 4 * limit
    size = budget.summary_size(middle)
    assert type(size) is int
    assert 0 <= size <= min(budget.summary_max, middle / 2)
    assert size >= min(2_000, budget.summary_max, middle // 2)


@given(windows, settings)
def test_settings_are_respected(window: int, chosen: dict[str, Any]) -> None:
    budget = Budget.for_window(window, **chosen)
    floor = -(-window // 20)
    for bound in (
        chosen.get("threshold_tokens"),
        window * chosen.get("threshold", 0.5),
    ):
        assert bound is None or budget.threshold <= max(bound + 1e-6, floor)
    output = chosen.get("max_output") or 0
    assert budget.threshold == floor or budget.threshold + output <= window * 0.98
    assert budget.tail_tokens <= budget.threshold * chosen.get("target_ratio", 0.2) + 1e-6
    assert budget.user_words_tokens <= budget.threshold * chosen.get("user_words", 0.25) + 1e-6
    assert budget.result_chars <= chosen.get("result_chars", 100_000)
    assert budget.max_turn_result_chars <= chosen.get("turn_chars", 200_000)
    assert budget.preview_chars <= chosen.get("preview_chars", 1_500)


@given(windows, st.integers(0, 1_000_000), settings, st.integers(0, 1_000_000))
def test_larger_window_never_allows_less(
    window: int, more: int, chosen: dict[str, Any], middle: int
) -> None:
    small = Budget.for_window(window, **chosen)
    large = Budget.for_window(window + more, **chosen)
    for name, value in figures(small).items():
        assert figures(large)[name] >= value, name
    assert large.summary_size(middle) >= small.summary_size(middle)
    assert small.summary_size(middle + more) >= small.summary_size(middle)


KEYWORDS = {
    "model.context_length": "window",
    "model.max_tokens": "max_output",
}
ELSEWHERE = {"compression.tools_share"}
"""Settings with limits that no budget is made from."""


@pytest.mark.parametrize("key", sorted(SETTING_RANGES.keys() - ELSEWHERE))
def test_refuses_values_out_of_range(key: str) -> None:
    low, high = SETTING_RANGES[key]
    name = KEYWORDS.get(key, key.partition(".")[2])
    # first, so that what is remembered of 1 is not taken for True
    for value in (low, high if high < 10**10 else low + 10**6):
        arguments = {"window": 200_000, name: value}
        assert Budget.for_window(arguments.pop("window"), **arguments).threshold > 0
    wrong: list[Any] = [
        low - 1,
        "1",
        True,
        float("nan"),
        -(10**400),
        *([high + 1] if high < 10**10 else []),
    ]
    wrong += [1.5] if isinstance(low, int) else []
    for value in wrong:
        arguments = {"window": 200_000, name: value}
        with pytest.raises(ConfigError) as caught:
            Budget.for_window(arguments.pop("window"), **arguments)
        message = str(caught.value)
        assert message.startswith(f"{key}: {value!r} is not allowed")
        assert f"{low:,}" in message


def test_error_message_for_a_value_out_of_range() -> None:
    with pytest.raises(ConfigError) as caught:
        Budget.for_window(200_000, target_ratio=0.05)
    assert str(caught.value) == (
        "compression.target_ratio: 0.05 is not allowed; it must be a number, from 0.1 to 0.8."
    )
    with pytest.raises(ConfigError) as caught:
        Budget.for_window(200_000, protect_last_n=0)
    assert str(caught.value) == (
        "compression.protect_last_n: 0 is not allowed; it must be a whole number, 1 or more."
    )


def test_a_budget_is_a_value() -> None:
    budget = Budget.for_window(32_000)
    assert budget == Budget.for_window(32_000)
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.tail_tokens = 1  # type: ignore[misc]  # the error under test
