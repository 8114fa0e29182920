"""Days in UTC, by which usage is counted and limited."""

from __future__ import annotations

from datetime import UTC, datetime

DAY_SECONDS = 86_400


def format_utc_day(seconds: float) -> str:
    """Return the day as text, such as `2026-01-31`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def find_period_start(end_time: float, days: int) -> float:
    """Return the start of a period of whole days; `end_time` is in the last one."""
    return (end_time // DAY_SECONDS - days + 1) * DAY_SECONDS
