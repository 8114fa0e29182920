"""The rhythm of calls: growth, the life of the cache, and how much is still to come."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.costs.call_pattern import CallPattern
from everthread.core.costs.canonical_usage import CanonicalUsage

TTL = 300.0


def call(prompt: int, read: int = 0) -> CanonicalUsage:
    return CanonicalUsage(input_tokens=prompt - read, cache_read_tokens=read)


def pattern_after(*calls: tuple[float, int, int]) -> CallPattern:
    rhythm = CallPattern()
    for at, prompt, read in calls:
        rhythm = rhythm.add_call(call(prompt, read), at, ttl=TTL)
    return rhythm


def test_a_thread_that_has_just_begun_has_no_cache_and_some_calls_to_come() -> None:
    rhythm = CallPattern()
    assert rhythm.is_cold(0.0, ttl=TTL)
    assert rhythm.expected_calls == 8


def test_growth_and_the_cached_share_are_read_from_the_calls() -> None:
    rhythm = pattern_after(
        (0, 1_000, 0),
        (10, 2_000, 1_000),
        (20, 3_000, 2_000),
        (900, 4_000, 0),
        (910, 5_000, 4_000),
    )
    assert rhythm.growth == pytest.approx(1_000)
    assert rhythm.calls == 5
    assert rhythm.read_share == pytest.approx(1.0)
    assert not rhythm.is_cold(1_000, ttl=TTL)
    assert rhythm.is_cold(1_210, ttl=TTL)


class TestLifetime:
    """How long the provider keeps a prefix is read from the calls."""

    def test_a_longer_one_counts_from_the_call_that_asks_for_it(self) -> None:
        rhythm = pattern_after((0, 1_000, 0)).add_call(call(2_000), 10.0, ttl=43_200.0)
        assert not rhythm.is_cold(43_209, ttl=TTL)
        assert rhythm.is_cold(43_210, ttl=TTL)

    def test_writes_for_an_hour_are_kept_for_an_hour(self) -> None:
        written = CanonicalUsage(
            input_tokens=10, cache_write_tokens=990, cache_write_1h_tokens=990
        )
        rhythm = CallPattern().add_call(written, 0.0, ttl=TTL)
        assert not rhythm.is_cold(3_599, ttl=TTL)
        assert rhythm.is_cold(3_600, ttl=TTL)

    def test_a_read_after_a_pause_shows_a_longer_life(self) -> None:
        rhythm = pattern_after((0, 1_000, 0), (900, 2_000, 1_000))
        assert not rhythm.is_cold(900 + 890, ttl=TTL)
        assert rhythm.is_cold(900 + 910, ttl=TTL)

    def test_a_miss_within_that_life_shortens_it_again(self) -> None:
        rhythm = pattern_after((0, 1_000, 0), (900, 2_000, 1_000), (1_500, 3_000, 0))
        assert rhythm.is_cold(1_500 + 600, ttl=TTL)
        assert not rhythm.is_cold(1_500 + 400, ttl=TTL)

    def test_a_miss_after_a_pause_teaches_no_longer_life(self) -> None:
        assert pattern_after((0, 1_000, 0), (900, 2_000, 100)).is_cold(
            900 + TTL, ttl=TTL
        )

    def test_a_compaction_is_no_miss(self) -> None:
        rhythm = (
            pattern_after((0, 10_000, 0), (900, 11_000, 10_000))
            .after_compaction()
            .add_call(call(3_000), 1_500, ttl=TTL)
        )
        assert not rhythm.is_cold(1_500 + 890, ttl=TTL)


def test_a_thread_lasts_as_long_again_within_reason() -> None:
    assert (
        pattern_after(
            *((number, 1_000 + number, 1_000) for number in range(50))
        ).expected_calls
        == 50
    )
    assert (
        pattern_after(
            *((number, 1_000 + number, 1_000) for number in range(500))
        ).expected_calls
        == 400
    )


def test_a_cache_that_is_never_read_is_noticed() -> None:
    assert (
        pattern_after(*((number, 1_000 + number, 0) for number in range(40))).read_share
        < 0.05
    )


def test_what_was_not_counted_and_what_was_rewritten_teach_nothing() -> None:
    rhythm = pattern_after((0, 1_000, 0), (10, 2_000, 1_000))
    assert rhythm.add_call(CanonicalUsage(), 20, ttl=TTL) is rhythm
    compacted = rhythm.after_compaction().add_call(call(500), 20, ttl=TTL)
    assert (compacted.growth, compacted.read_share) == (
        rhythm.growth,
        rhythm.read_share,
    )


def test_another_process_goes_on_with_it() -> None:
    rhythm = pattern_after((0, 1_000, 0), (10, 2_000, 1_000))
    assert CallPattern.load(rhythm.dump()) == rhythm


@pytest.mark.parametrize(
    "state",
    [None, [], {"calls": "many"}, {"last": -1.0}, {"growth": True}, {"growth": 1e300}],
)
def test_garbage_is_as_if_nothing_had_been_seen(state: Any) -> None:
    assert CallPattern.load(state) == CallPattern()
