"""When a compaction pays: at the threshold, at a cold moment, or not yet."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.costs.call_pattern import CallPattern
from everthread.core.costs.compaction_economics import (
    MIN_THRESHOLD_SHARE,
    CompactionCase,
    Rates,
    decide_compaction,
)
from everthread.core.costs.prices import Prices

CLAUDE = Rates(input=3e-6, output=15e-6, read=0.3e-6, write=3.75e-6)
UNCACHED = Rates(input=1e-6, output=4e-6, read=1e-6, write=1e-6)
STEADY = CallPattern(calls=60, last=0.0, prompt=100_000, growth=1_000.0)
AT_T = CompactionCase(
    tokens=101_000,
    tokens_after=30_000,
    fixed_tokens=8_000,
    threshold=100_000,
    limit=170_000,
    summary_cost=0.07,
    rates=CLAUDE,
    call_pattern=STEADY,
)


def test_compacts_a_long_thread_at_the_threshold() -> None:
    decision = decide_compaction(AT_T)
    assert decision.timing == "now"
    # The summary, and 22,000 tokens written instead of read.
    assert decision.cost == Decimal("0.145900")
    assert decision.savings == Decimal("1.278000")  # 71,000 tokens less to read, 60 times
    assert decision.cheaper_calls == 60
    assert (
        "costs $0.1459 (summary $0.0700, cache $0.0759) and saves $1.2780 in about 60 calls"
        in str(decision)
    )


def test_waits_for_the_end_of_the_turn() -> None:
    in_turn = replace(AT_T, is_mid_turn=True)
    assert decide_compaction(in_turn).timing == "later"
    assert "the end of the turn or 125,000 tokens" in decide_compaction(in_turn).reason
    assert decide_compaction(replace(in_turn, tokens=125_000)).timing == "now"
    assert decide_compaction(replace(in_turn, limit=101_000)).timing == "now", (
        "the limit comes first"
    )
    assert decide_compaction(replace(in_turn, cold_reason="the tools changed")).timing == "now"
    assert decide_compaction(replace(in_turn, rates=UNCACHED)).timing == "now", (
        "without a cache there is no moment to wait for"
    )


def test_never_compacts_without_a_gain() -> None:
    useless = replace(AT_T, tokens_after=101_000)
    assert decide_compaction(useless).reason == "a compaction would take nothing out"
    assert decide_compaction(replace(useless, tokens=170_000)).timing == "now"


def test_compacts_earlier_on_a_cold_cache() -> None:
    early = replace(AT_T, tokens=60_000)
    assert decide_compaction(early).timing == "later"
    cold = decide_compaction(replace(early, cold_reason="400 s passed"))
    assert cold.timing == "now"
    assert "the cache is cold: 400 s passed" in cold.reason
    assert cold.cost == Decimal("0.070000"), "only the summary: the cache is lost anyway"
    assert (
        decide_compaction(replace(early, tokens=49_000, cold_reason="400 s passed")).timing
        == "later"
    ), "detail is worth something"
    dear = decide_compaction(replace(early, summary_cost=5.0, cold_reason="400 s passed"))
    assert dear.timing == "later"
    assert "not worth it yet" in dear.reason


def test_without_a_cache_discount_ignores_a_cold_cache() -> None:
    plain = replace(AT_T, rates=UNCACHED)
    assert decide_compaction(plain).timing == "now"
    assert decide_compaction(plain).cost == Decimal("0.070000")
    assert (
        decide_compaction(replace(plain, tokens=60_000, cold_reason="400 s passed")).timing
        == "later"
    )
    unread = replace(
        AT_T,
        tokens=60_000,
        cold_reason="400 s passed",
        call_pattern=replace(STEADY, read_share=0.0),
    )
    assert decide_compaction(unread).timing == "later", "a cache that is never read saves nothing"


@given(
    tokens=st.integers(0, 250_000),
    after=st.integers(0, 250_000),
    summary=st.floats(0, 5),
    growth=st.floats(0, 50_000),
    calls=st.integers(0, 1_000),
    is_mid_turn=st.booleans(),
    cold=st.sampled_from(["", "the pause"]),
)
def test_compacts_at_the_limit_and_never_early_while_warm(
    *,
    tokens: int,
    after: int,
    summary: float,
    growth: float,
    calls: int,
    is_mid_turn: bool,
    cold: str,
) -> None:
    rhythm = CallPattern(calls=calls, last=0.0, prompt=1, growth=growth)
    case = replace(
        AT_T,
        tokens=tokens,
        tokens_after=after,
        summary_cost=summary,
        call_pattern=rhythm,
        cold_reason=cold,
        is_mid_turn=is_mid_turn,
    )
    decision = decide_compaction(case)
    if tokens >= case.limit:
        assert decision.timing == "now"
    elif tokens < case.threshold and (not cold or tokens < MIN_THRESHOLD_SHARE * case.threshold):
        assert decision.timing == "later"
    elif tokens < case.threshold and decision.timing == "now":
        assert decision.savings > decision.cost
    elif tokens >= case.threshold and not is_mid_turn and after < tokens:
        assert decision.timing == "now"


@pytest.mark.parametrize("prices", [None, Prices(), Prices(input=Decimal(3))])
def test_unknown_prices_have_no_rates(prices: Prices | None) -> None:
    assert Rates.from_prices(prices) is None


def test_rates_follow_the_prices() -> None:
    prices = Prices(
        input=Decimal(3),
        output=Decimal(15),
        cache_read=Decimal("0.3"),
        cache_write_5m=Decimal("3.75"),
        cache_write_1h=Decimal(6),
    )
    five = Rates.from_prices(prices)
    hour = Rates.from_prices(prices, ttl="1h")
    unmarked = Rates.from_prices(prices, bills_cache_writes=False)
    assert five is not None
    assert hour is not None
    assert unmarked is not None
    assert [rate.write for rate in (five, hour, unmarked)] == pytest.approx([3.75e-6, 6e-6, 3e-6])
    plain = Rates.from_prices(Prices(input=Decimal(1), output=Decimal(2)))
    assert plain is not None
    assert not plain.has_cache_discount


def test_miss_cost_is_the_write_surcharge() -> None:
    assert CLAUDE.miss_cost(100_000) == pytest.approx(0.345)
    assert CLAUDE.at_read_share(0.0).miss_cost(100_000) == UNCACHED.miss_cost(100_000) == 0.0
