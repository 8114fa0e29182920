"""How soon one compaction may follow another, and how long one may be put off."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.tokens import TokenCounter
from everthread.thread.policy.call_prices import CallPrices
from everthread.thread.policy.compaction_policy import CompactionPolicy
from everthread.thread.policy.compaction_reason import CompactionReason
from everthread.thread.policy.context_options import ContextOptions
from everthread.thread.policy.learnt_usage import LearntUsage
from everthread.thread.policy.prompt_size import PromptSize

JOURNAL = JournalWriter(TokenCounter("gpt-4o"))


def policy(**options: Any) -> CompactionPolicy:
    return CompactionPolicy(ContextOptions(**options), lambda: 1_700_000_000.0)


def compacted_state(calls: int) -> LearntUsage:
    """Return the state of a thread with this many calls since its last compaction."""
    state = LearntUsage(tokens_after_compaction=3_000)
    state.call_pattern = state.call_pattern.after_compaction()
    for number in range(calls):
        state.observe(CanonicalUsage(3_000 + 400 * number, 10), 1_700_000_000.0, ttl=300.0)
    return state


def decide(
    window: int,
    tokens: int,
    state: LearntUsage,
    model: str = "gpt-4o",
    *,
    is_mid_turn: bool = False,
    **options: Any,
) -> str:
    budget = ContextOptions(**options).budget(window)
    size = PromptSize(tokens, 300, budget, is_mid_turn=is_mid_turn)
    prices = CallPrices(model, "auto", uses_marks=False, summarizer=JOURNAL)
    return policy(**options).decide(size, state, prices, reason=CompactionReason.IN_LOOP).timing


@pytest.mark.parametrize("model", ["gpt-4o", "a-model-without-a-price"])
def test_waits_eight_calls_after_a_compaction_in_a_small_window(model: str) -> None:
    assert decide(12_000, 6_200, compacted_state(3), model) == "later"
    assert decide(12_000, 6_200, compacted_state(8), model) == "now"
    assert decide(12_000, 6_200, LearntUsage(), model) == "now", "the first one waits for nothing"


def test_waits_twenty_calls_after_a_compaction_at_64k() -> None:
    assert decide(64_000, 33_000, compacted_state(19)) == "later"
    assert decide(64_000, 33_000, compacted_state(20)) == "now"


def test_never_delays_a_compaction_beyond_the_limit() -> None:
    for tokens in range(6_000, 12_000, 50):
        size = PromptSize(tokens, 300, ContextOptions().budget(12_000))
        if tokens >= size.max_delayed_tokens:
            assert decide(12_000, tokens, compacted_state(1)) == "now"
    assert PromptSize(0, 0, ContextOptions().budget(1_000_000)).max_delayed_tokens == 340_000, (
        "1.7 times the threshold"
    )
    asks = PromptSize(0, 0, ContextOptions(max_tokens=32_000).budget(64_000), output_cap=32_000)
    assert asks.max_delayed_tokens <= 64_000 - 16_000, "the answer has its quarter of the window"


def test_waits_for_the_end_of_a_turn() -> None:
    state = compacted_state(20)
    assert decide(64_000, 33_000, state, is_mid_turn=True) == "later"
    assert decide(64_000, 33_000, state) == "now"
    assert decide(64_000, 40_000, state, is_mid_turn=True) == "now", (
        "from 1.25 times the threshold on"
    )
    assert decide(64_000, 33_000, state, is_mid_turn=True, economics=False) == "now"


def test_compacts_at_the_threshold_without_economics() -> None:
    assert decide(12_000, 6_200, compacted_state(3), economics=False) == "now"


def test_never_prepares_a_journal_ahead() -> None:
    """It takes milliseconds; prepared ahead, it would lack the messages since then."""
    size = PromptSize(5_500, 300, ContextOptions().budget(12_000))
    prices = CallPrices("gpt-4o", "auto", uses_marks=False, summarizer=JOURNAL)
    assert not policy().should_prepare(size, LearntUsage(), prices)
    assert not policy().should_prepare_when_idle(size, LearntUsage(), prices)


def cold_state(calls: int) -> LearntUsage:
    """The state of a thread whose cache expired after its last call."""
    state = compacted_state(calls)
    state.note_cache_change("the tools changed")
    return state


def test_a_cold_cache_compacts_early_only_after_as_many_calls() -> None:
    assert decide(64_000, 24_000, cold_state(19)) == "not_due"
    assert decide(64_000, 24_000, cold_state(20)) == "now"


@pytest.mark.parametrize(
    ("tokens", "options", "expected"),
    [
        (4_000, {"compact_when_idle": True}, True),
        (2_900, {"compact_when_idle": True}, False),
        (4_000, {}, False),
        (
            4_000,
            {
                "compact_when_idle": True,
                "enabled": False,
            },
            False,
        ),
    ],
)
def test_an_idle_thread_is_compacted_from_half_the_threshold_on(
    tokens: int, options: dict[str, Any], expected: bool
) -> None:
    size = PromptSize(tokens, 300, ContextOptions().budget(12_000))
    assert policy(**options).should_compact_when_idle(size, LearntUsage()) is expected


def test_raises_the_threshold_if_system_prompt_and_tools_reach_it() -> None:
    options = ContextOptions()
    assert options.budget(100_000).threshold == 50_000
    assert options.budget(100_000, fixed_tokens=60_000).threshold == 85_000
    assert ContextOptions(max_tokens=90_000).budget(100_000).threshold == 50_000, (
        "a cap counts as a quarter at most"
    )
