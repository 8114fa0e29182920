"""The status line of a chat."""

from __future__ import annotations

from decimal import Decimal

import pytest

from everthread.agent.turn_events import Delegated
from everthread.cli.chat.status_line import ChatStatus, format_thousands
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.thread import events
from tests.cli.chat.event_builders import compaction_done


def test_the_status_line_follows_events() -> None:
    status = ChatStatus("gpt-4o", 0, 128_000)
    assert status.as_line() == "gpt-4o · 0 of 128K (0%)"
    usage = CanonicalUsage(
        input_tokens=2_000,
        cache_read_tokens=6_000,
        output_tokens=10,
    )
    status.update(events.UsageRecorded("s", "gpt-4o", "main", usage, Decimal("0.02")))
    status.update(
        events.Estimated(
            "s",
            32_000,
            window=128_000,
            threshold=64_000,
            is_reported=True,
        )
    )
    assert status.as_line() == "gpt-4o · 32K of 128K (25%) · cache 75% · $0.0200"
    status.update(events.UsageRecorded("s", "x", "auxiliary", CanonicalUsage(), None))
    status.update(compaction_done(count=2))
    assert status.as_line().endswith("cost $0.0200 + unknown · 2 compactions")


def test_a_subagents_usage_counts_and_its_window_does_not() -> None:
    status = ChatStatus("m", 10, 100)
    estimate = events.Estimated(
        "sub",
        90,
        window=100,
        threshold=50,
        is_reported=True,
    )
    status.update(Delegated("s", "t2", estimate))
    usage = CanonicalUsage(input_tokens=5)
    call = events.UsageRecorded(
        "sub",
        "m",
        task="main",
        usage=usage,
        cost=Decimal("0.5"),
    )
    status.update(Delegated("s", "t2", call))
    assert status.as_line() == "m · 10 of 100 (10%) · cache 0% · $0.5000"


def test_an_unknown_price_is_not_zero() -> None:
    status = ChatStatus("m", 10, 100)
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
