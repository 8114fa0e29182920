"""The status line of a chat."""

from __future__ import annotations

from decimal import Decimal

import pytest

from everthread.agent.turn_events import Delegated
from everthread.cli.chat.status_line import Status, format_thousands
from everthread.compaction.summarizers.summarizer import Verification
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.thread import events


def test_the_status_line_follows_events() -> None:
    status = Status("gpt-4o", 0, 128_000)
    assert status.as_line() == "gpt-4o · 0 of 128K (0%)"
    usage = CanonicalUsage(input_tokens=2_000, cache_read_tokens=6_000, output_tokens=10)
    status.update(events.UsageRecorded("s", "gpt-4o", "main", usage, Decimal("0.02")))
    status.update(events.Estimated("s", 32_000, 128_000, 64_000, True))
    assert status.as_line() == "gpt-4o · 32K of 128K (25%) · cache 75% · $0.0200"
    status.update(events.UsageRecorded("s", "x", "auxiliary", CanonicalUsage(), None))
    compaction = events.CompactionDone("s2", "s", "manual", 9, 5, 9, 5, "x", 2, Verification(), 0.1)
    status.update(compaction)
    assert status.as_line().endswith("cost $0.0200 + unknown · 2 compactions")


def test_a_subagents_usage_counts_and_its_window_does_not() -> None:
    status = Status("m", 10, 100)
    status.update(Delegated("s", "t2", events.Estimated("sub", 90, 100, 50, True)))
    usage = CanonicalUsage(input_tokens=5)
    status.update(
        Delegated(
            "s",
            "t2",
            events.UsageRecorded("sub", "m", "main", usage, Decimal("0.5")),
        )
    )
    assert status.as_line() == "m · 10 of 100 (10%) · cache 0% · $0.5000"


def test_an_unknown_price_is_not_zero() -> None:
    status = Status("m", 10, 100)
    status.update(events.UsageRecorded("s", "m", "main", CanonicalUsage(input_tokens=5), None))
    assert "cost unknown" in status.as_line()


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (0, "0"),
        (950, "950"),
        (12_345, "12.3K"),
        (200_000, "200K"),
        (1_000_000, "1M"),
    ],
)
def test_token_counts_are_shortened(tokens: int, text: str) -> None:
    assert format_thousands(tokens) == text
