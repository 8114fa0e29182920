"""A replay predicts what a recorded session cost: from its first call, its times and its misses, nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.lab.importers.log import ClientCompaction, Log, LoggedMessage
from everthread.lab.importers.read_logs import read_log
from everthread.lab.replay import Replay, replay
from tests.lab.recorded_histories import PLAIN, make_history
from tests.shared_data import shared_path

CLAUDE = "claude-sonnet-4-5"
FIRST = CanonicalUsage(
    input_tokens=10,
    cache_read_tokens=9_000,
    cache_write_tokens=6_000,
    cache_write_1h_tokens=6_000,
)
WARM = CanonicalUsage(
    input_tokens=5, cache_read_tokens=19_900, cache_write_tokens=95, output_tokens=40
)
MISSED = CanonicalUsage(
    input_tokens=5, cache_read_tokens=2_000, cache_write_tokens=17_995, output_tokens=40
)


def _recorded(usages: list[CanonicalUsage]) -> Log:
    left = list(usages)
    entries = [
        LoggedMessage(message, 1_000.0 + 10 * number, left.pop(0), model=CLAUDE)
        if message["role"] == "assistant"
        else LoggedMessage(message, 1_000.0 + 10 * number)
        for number, message in enumerate(make_history(len(usages) // 2))
    ]
    return Log("log", "claude-code", entries, model=CLAUDE)


def _scale(usage: CanonicalUsage, factor: float) -> CanonicalUsage:
    """Scale the prompt of a usage; cached tokens and output stay."""
    names = (
        "input_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "cache_write_1h_tokens",
    )
    return replace(usage, **{name: round(getattr(usage, name) * factor) for name in names})


def _factor(number: int) -> float:
    return 0.3 + number * 7 % 10 / 4


def _figures(result: Replay) -> list[object]:
    return [[call.use for call in result.strategy(name).calls] for name in ("everthread", "cached")]


def test_reads_system_prompt_cache_and_lifetime_from_the_first_call() -> None:
    result = replay(_recorded([FIRST, *[WARM] * 9]), options=PLAIN)
    first = result.strategy("cached").calls[0].use
    assert first.prompt == pytest.approx(15_010, rel=0.01)
    assert first.read == pytest.approx(9_000, rel=0.01)
    assert first.write_1h == first.write > 0
    assert result.everthread.calls[0].use.prompt == first.prompt
    assert (
        replay(_recorded([FIRST, *[WARM] * 9]), options=PLAIN, ttl="5m")
        .strategy("cached")
        .calls[0]
        .use.write_1h
        == 0
    )


def test_misses_only_at_the_recorded_calls() -> None:
    log = _recorded([FIRST, WARM, WARM, MISSED, WARM, WARM, WARM, WARM])
    slow = replace(
        log,
        entries=[replace(entry, timestamp=1_000 * (entry.timestamp or 0)) for entry in log.entries],
    )
    for recorded, kept in ((log, 9_000), (slow, 0)):
        calls = replay(recorded, options=PLAIN).strategy("cached").calls
        assert [
            number
            for number, call in enumerate(calls)
            if number and call.use.read < calls[number - 1].use.prompt - 9
        ] == [3]
        assert calls[3].use.read == pytest.approx(kept, rel=0.01), (
            "the system prompt stays cached, but not for hours"
        )


def test_a_part_of_an_uncached_system_prompt_stays_cached_when_a_call_misses() -> None:
    cold = replace(FIRST, cache_read_tokens=0, cache_write_tokens=15_000)
    result = replay(_recorded([cold, WARM, WARM, MISSED, *[WARM] * 4]), options=PLAIN)
    calls = result.strategy("cached").calls
    assert calls[0].use.read == 0
    assert calls[3].use.read == pytest.approx(0.4 * 15_000, rel=0.05)


def test_later_prompt_and_cache_counts_are_not_read() -> None:
    usages = [FIRST, WARM, MISSED, *[WARM] * 7, MISSED, *[WARM] * 5]
    scrambled = [
        usages[0],
        *(_scale(usage, _factor(number)) for number, usage in enumerate(usages[1:])),
    ]
    assert [usage.prompt_tokens for usage in scrambled] != [usage.prompt_tokens for usage in usages]
    assert _figures(replay(_recorded(scrambled), options=PLAIN)) == _figures(
        replay(_recorded(usages), options=PLAIN)
    )


def test_a_recorded_session_is_predicted_the_same_with_scrambled_counts() -> None:
    log = read_log(str(shared_path("logs", "claude-code-63_bd3f9b02f2_1.jsonl.gz")))
    first = next(number for number, entry in enumerate(log.entries) if entry.usage is not None)
    entries = [
        replace(entry, usage=_scale(entry.usage, _factor(number)))
        if entry.usage and number > first
        else entry
        for number, entry in enumerate(log.entries)
    ]
    scrambled = replace(log, entries=entries)
    assert _figures(replay(scrambled, options=PLAIN)) == _figures(replay(log, options=PLAIN))


def test_agreement_ends_at_the_clients_own_compaction() -> None:
    log = replace(
        _recorded([FIRST, *[WARM] * 9]),
        compactions=[ClientCompaction(12, "A summary.")],
    )
    result = replay(log, options=PLAIN)
    assert result.agreement is not None
    assert result.agreement.calls == 6
    assert [call.use.prompt for call in result.strategy("recorded").calls] == [
        15_010,
        *[20_000] * 9,
    ]
    assert result.as_dict()["agreement"]["prompt_recorded"] == 15_010 + 5 * 20_000
    plain = replay(make_history(3), model=CLAUDE, options=PLAIN)
    assert plain.agreement is None
    assert "recorded" not in [way.name for way in plain.strategies]


@pytest.mark.parametrize(
    "name",
    [
        "claude-code-13_340918e71b_0",
        "claude-code-b0_2936744f3b_0",
        "claude-code-spotter",
        "codex-0b9f2ac6f3aa",
    ],
)
def test_predicts_recorded_sessions_within_five_percent(name: str) -> None:
    agreement = replay(
        read_log(str(shared_path("logs", f"{name}.jsonl.gz"))), options=PLAIN
    ).agreement
    assert agreement is not None
    assert agreement.input_error is not None
    assert abs(agreement.prompt_error) < 0.05
    assert abs(agreement.input_error) < 0.05
