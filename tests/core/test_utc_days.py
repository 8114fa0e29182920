"""Days in UTC and periods of whole days."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from everthread.core.utc_days import DAY_SECONDS, find_period_start, format_utc_day


def test_formats_the_day_in_utc() -> None:
    assert format_utc_day(0.0) == "1970-01-01"
    assert format_utc_day(DAY_SECONDS - 0.5) == "1970-01-01"
    assert format_utc_day(DAY_SECONDS) == "1970-01-02"


@pytest.mark.parametrize(
    ("days", "first_day"),
    [
        (1, 31),
        (2, 30),
        (31, 1),
    ],
)
def test_a_period_begins_at_midnight_of_its_first_day(days: int, first_day: int) -> None:
    end = datetime(2026, 1, 31, 14, 30, tzinfo=UTC)
    start = datetime(2026, 1, first_day, tzinfo=UTC)

    assert find_period_start(end.timestamp(), days) == start.timestamp()
