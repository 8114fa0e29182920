"""Dollars: exact where every used bucket has a price, nothing otherwise."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.costs.prices import (
    Prices,
    compute_call_cost,
    compute_cost,
    configure_prices,
    describe_price_source,
    find_in_fallback_table,
    find_listed_window,
    format_dollars,
    make_missing_price_notice,
    prices_for,
)
from everthread.providers.local import SMOLLM2
from tests.shared_data import shared_path

AT = datetime(2026, 2, 1, 12, tzinfo=UTC)
SONNET = "claude-sonnet-4-5"
USAGE = CanonicalUsage(1_000_000, 100_000, 0, 0)


def test_each_bucket_has_its_own_price() -> None:
    prices = Prices(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"), Decimal(6))
    usage = CanonicalUsage(
        input_tokens=1_000,
        output_tokens=2_000,
        cache_read_tokens=3_000,
        cache_write_tokens=5_000,
        cache_write_1h_tokens=1_000,
        reasoning_tokens=1_999,
    )
    assert compute_cost(usage, prices) == Decimal("0.003") + Decimal("0.03") + Decimal(
        "0.0009"
    ) + Decimal("0.015") + Decimal("0.006")


@pytest.mark.parametrize(
    "usage",
    [
        CanonicalUsage(input_tokens=1),
        CanonicalUsage(output_tokens=1),
        CanonicalUsage(cache_read_tokens=1),
        CanonicalUsage(cache_write_tokens=1),
        CanonicalUsage(cache_write_tokens=1, cache_write_1h_tokens=1),
    ],
)
def test_missing_price_of_a_used_bucket_makes_the_cost_unknown(
    usage: CanonicalUsage,
) -> None:
    assert compute_cost(usage, Prices()) is None
    assert compute_cost(CanonicalUsage(), Prices()) == 0


def test_zero_is_a_price() -> None:
    assert compute_cost(CanonicalUsage(input_tokens=5), Prices(input=Decimal(0))) == 0


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_cost_grows_with_usage(first: int, second: int) -> None:
    prices = Prices(Decimal("1.25"), Decimal(10))
    one = CanonicalUsage(first, second)
    other = CanonicalUsage(second, first)
    together = compute_cost(one + other, prices)
    apart = (compute_cost(one, prices), compute_cost(other, prices))
    assert None not in (together, *apart)
    assert together == sum(filter(None, apart))


def test_prices_of_a_known_model() -> None:
    prices = prices_for(SONNET, time=AT)
    assert prices == Prices(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"), Decimal(6))
    assert compute_call_cost(CanonicalUsage(1_000, 1_000), SONNET, time=AT) == Decimal("0.018")


def test_long_prompt_uses_the_higher_tier() -> None:
    short, long = (prices_for(SONNET, time=AT, prompt_tokens=size) for size in (200_000, 200_001))
    assert short is not None
    assert long is not None
    assert (short.input, long.input) == (Decimal(3), Decimal(6))
    assert compute_call_cost(CanonicalUsage(300_000), SONNET, time=AT) == Decimal("1.8")


def test_price_depends_on_the_time() -> None:
    day, night = (prices_for("deepseek-chat", time=AT.replace(hour=hour)) for hour in (12, 20))
    assert day is not None
    assert night is not None
    assert day.input != night.input


@pytest.mark.parametrize(
    "name",
    [
        "anthropic/claude-sonnet-4.5",
        "litellm_proxy/anthropic/claude-sonnet-4-5",
        "gateway/claude-sonnet-4-5",
    ],
)
def test_accepts_prefixes_of_a_model_name(name: str) -> None:
    assert prices_for(name, time=AT) == prices_for(SONNET, time=AT)


def test_given_provider_decides() -> None:
    there = prices_for("anthropic/claude-sonnet-4.5", time=AT, provider="openrouter")
    assert there is not None
    assert there.input == Decimal(3)
    assert there.cache_write_1h is None
    assert prices_for("anthropic/claude-sonnet-4-5", time=AT, provider="anthropic") == prices_for(
        SONNET, time=AT
    )
    assert prices_for(SONNET, time=AT, provider="no such provider") is None
    assert prices_for("anthropic/no/such-model", time=AT, provider="anthropic") is None


@pytest.mark.parametrize("name", ["", "/", "a/b/c", "my-own-model", "claude"])
def test_unknown_model_has_no_cost(name: str) -> None:
    assert compute_call_cost(USAGE, name, time=AT) is None


def test_model_without_a_needed_price_has_no_cost() -> None:
    assert compute_call_cost(CanonicalUsage(10, 10), "gpt-5", time=AT) is not None
    assert compute_call_cost(CanonicalUsage(10, 10, cache_write_tokens=1), "gpt-5", time=AT) is None


def test_cost_of_a_recorded_session() -> None:
    calls = json.loads(shared_path("transcripts", "coding-long-claude.json").read_text("utf-8"))[
        "usage"
    ]
    for call in calls:
        dollars = compute_call_cost(normalize_usage(call), call["model"], time=AT)
        assert dollars is not None
        assert float(dollars) == pytest.approx(call["cost_usd"], abs=1e-9)


def test_window_in_a_price_table() -> None:
    assert find_listed_window("claude-sonnet-4-5") in (None, 200_000, 1_000_000)
    assert find_listed_window("no-such-model") is None


@pytest.mark.parametrize(
    ("dollars", "words"),
    [
        (None, "unknown"),
        ("0", "$0.00"),
        ("0.00001", "< $0.0001"),
        ("0.0012", "$0.0012"),
        ("1234.567", "$1,234.57"),
        ("-0.25", "−$0.2500"),
        ("-3", "−$3.00"),
    ],
)
def test_formats_dollars(dollars: str | None, words: str) -> None:
    assert format_dollars(None if dollars is None else Decimal(dollars)) == words


def count_calls(model: str) -> int:
    """Calls of functions that the price of a model takes."""
    calls = 0
    before = sys.getprofile()

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        assert prices_for(model, time=AT) is None
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("model", ["a/" * 16_000, "a/" * 150])
def test_bounds_the_lookups_for_a_long_path(
    model: str,
) -> None:
    """An attack: every slash cost another lookup and a copy of the name."""
    prices_for("gpt-4o", time=AT)
    assert count_calls(model) <= 2 * count_calls("a/" * 8 + f"x{len(model)}")


@pytest.mark.parametrize(
    "model",
    ["claude-mythos-5", "gemini-3.1-pro", "qwen3.7-max", "dashscope/qwen3.7-max"],
)
def test_falls_back_to_the_second_table(model: str) -> None:
    now = datetime.now(UTC)
    prices = prices_for(model, time=now)
    assert prices is not None
    assert prices.input
    assert prices.output
    assert describe_price_source(model, time=now)


def test_names_the_source_of_a_price() -> None:
    now = datetime.now(UTC)
    assert describe_price_source("gpt-4o", time=now) == "genai-prices"
    assert describe_price_source("claude-mythos-5", time=now).startswith(
        ("LiteLLM, 20", "models.dev, 20")
    )
    assert describe_price_source("orchid-unheard-of", time=now) == ""
    assert find_listed_window("qwen3.7-max") == 991_808
    assert find_in_fallback_table("m" * 10_000) is None


def test_configured_prices_take_precedence() -> None:
    mine = Prices(input=Decimal(1), output=Decimal(2))
    wide = Prices(input=Decimal(3), output=Decimal(4))
    now = datetime(2026, 11, 1, tzinfo=UTC)
    try:
        configure_prices(
            {
                "nobody-*": wide,
                "nobody-knows": mine,
                "gpt-4o": mine,
            }
        )
        assert prices_for("nobody-knows", time=now) == mine
        assert prices_for("nobody-else", time=now) == wide
        assert prices_for("gpt-4o", time=now) == mine
        assert describe_price_source("gpt-4o", time=now) == "the configuration (prices)"
    finally:
        configure_prices({})
    assert prices_for("nobody-knows", time=now) is None
    assert "prices.nobody-knows.input" in make_missing_price_notice("nobody-knows")


def test_local_model_is_free_unless_priced() -> None:
    assert compute_call_cost(USAGE, "my-file", time=AT, provider="local") == 0
    assert compute_call_cost(USAGE, SMOLLM2.name, time=AT) == 0
    configure_prices({"my-file": Prices(input=Decimal(1))})
    try:
        usage = CanonicalUsage(1_000_000)
        assert compute_call_cost(usage, "my-file", time=AT, provider="local") == 1
    finally:
        configure_prices({})
