"""Learn from calls: growth, the lifetime of the cache, and the number of calls to expect."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.costs.call_pattern import CallPattern
from everthread.core.costs.canonical_usage import CanonicalUsage

TTL = 300.0


def call(prompt: int, read: int = 0) -> CanonicalUsage:
    return CanonicalUsage(input_tokens=prompt - read, cache_read_tokens=read)


def pattern_after(*calls: tuple[float, int, int]) -> CallPattern:
    pattern = CallPattern()
    for time, prompt, read in calls:
        usage = call(prompt, read)
        pattern = pattern.add_call(usage, time, ttl=TTL)
    return pattern


def test_new_thread_is_cold_and_expects_some_calls() -> None:
    pattern = CallPattern()
    assert pattern.is_cold(0.0, ttl=TTL)
    assert pattern.expected_calls == 8


def test_learns_growth_and_read_share() -> None:
    pattern = pattern_after(
        (0, 1_000, 0),
        (10, 2_000, 1_000),
        (20, 3_000, 2_000),
        (900, 4_000, 0),
        (910, 5_000, 4_000),
    )
    assert pattern.growth == pytest.approx(1_000)
    assert pattern.calls == 5
    assert pattern.read_share == pytest.approx(1.0)
    assert not pattern.is_cold(1_000, ttl=TTL)
    assert pattern.is_cold(1_210, ttl=TTL)


class TestLifetime:
    """How long the provider keeps a prefix is read from the calls."""

    def test_longer_ttl_counts_from_its_call(self) -> None:
        pattern = pattern_after((0, 1_000, 0)).add_call(call(2_000), 10.0, ttl=43_200.0)
        assert not pattern.is_cold(43_209, ttl=TTL)
        assert pattern.is_cold(43_210, ttl=TTL)

    def test_one_hour_writes_live_an_hour(self) -> None:
        written = CanonicalUsage(input_tokens=10, cache_write_tokens=990, cache_write_1h_tokens=990)
        pattern = CallPattern().add_call(written, 0.0, ttl=TTL)
        assert not pattern.is_cold(3_599, ttl=TTL)
        assert pattern.is_cold(3_600, ttl=TTL)

    def test_read_after_a_pause_extends_the_lifetime(self) -> None:
        pattern = pattern_after(
            (0, 1_000, 0),
            (900, 2_000, 1_000),
        )
        assert not pattern.is_cold(900 + 890, ttl=TTL)
        assert pattern.is_cold(900 + 910, ttl=TTL)

    def test_miss_within_the_lifetime_shortens_it(self) -> None:
        pattern = pattern_after(
            (0, 1_000, 0),
            (900, 2_000, 1_000),
            (1_500, 3_000, 0),
        )
        assert pattern.is_cold(1_500 + 600, ttl=TTL)
        assert not pattern.is_cold(1_500 + 400, ttl=TTL)

    def test_miss_after_a_pause_does_not_extend_it(self) -> None:
        pattern = pattern_after(
            (0, 1_000, 0),
            (900, 2_000, 100),
        )
        assert pattern.is_cold(900 + TTL, ttl=TTL)

    def test_compaction_is_not_a_miss(self) -> None:
        pattern = pattern_after(
            (0, 10_000, 0),
            (900, 11_000, 10_000),
        )
        pattern = pattern.after_compaction()
        pattern = pattern.add_call(call(3_000), 1_500, ttl=TTL)
        assert not pattern.is_cold(1_500 + 890, ttl=TTL)


def test_expects_as_many_calls_again_within_bounds() -> None:
    calls = [(number, 1_000 + number, 1_000) for number in range(500)]
    assert pattern_after(*calls[:50]).expected_calls == 50
    assert pattern_after(*calls).expected_calls == 400


def test_notices_a_cache_that_is_never_read() -> None:
    calls = [(number, 1_000 + number, 0) for number in range(40)]
    assert pattern_after(*calls).read_share < 0.05


def test_ignores_missing_usage_and_rewritten_prompts() -> None:
    pattern = pattern_after((0, 1_000, 0), (10, 2_000, 1_000))
    assert pattern.add_call(CanonicalUsage(), 20, ttl=TTL) is pattern
    compacted = pattern.after_compaction().add_call(call(500), 20, ttl=TTL)
    assert (compacted.growth, compacted.read_share) == (
        pattern.growth,
        pattern.read_share,
    )


def test_survives_dump_and_load() -> None:
    pattern = pattern_after((0, 1_000, 0), (10, 2_000, 1_000))
    assert CallPattern.load(pattern.dump()) == pattern


@pytest.mark.parametrize(
    "state",
    [None, [], {"calls": "many"}, {"last": -1.0}, {"growth": True}, {"growth": 1e300}],
)
def test_loading_garbage_gives_an_empty_pattern(state: Any) -> None:
    assert CallPattern.load(state) == CallPattern()
