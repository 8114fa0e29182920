"""Read times that a person types, and format times for tables."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from everthread.core.utc_days import DAY_SECONDS
from everthread.errors import InputError

MINUTE_SECONDS = 60
HOUR_SECONDS = 3_600
UNIT_SECONDS = {
    "s": 1,
    "m": MINUTE_SECONDS,
    "min": MINUTE_SECONDS,
    "h": HOUR_SECONDS,
    "d": DAY_SECONDS,
    "w": 7 * DAY_SECONDS,
}
MAX_RELATIVE_DAYS = 30

_AGE_PATTERN = re.compile(r"(\d{1,6}) ?(s|m|min|h|d|w)")


def make_local_time(seconds: float) -> datetime | None:
    """Return the local time; None if the date does not exist."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def format_iso(seconds: float | None) -> str | None:
    """Format the local time with its UTC offset, for programs."""
    date = None if seconds is None else make_local_time(seconds)
    return None if date is None else date.isoformat(timespec="milliseconds")


def format_age(seconds: float, now: float) -> str:
    """Format how long ago a time was, or its day if it is more than a month ago. A clock may be a minute ahead."""
    age = now - seconds
    if not -MINUTE_SECONDS < age < MAX_RELATIVE_DAYS * DAY_SECONDS:
        date = make_local_time(seconds)
        return "unknown" if date is None else f"{date:%Y-%m-%d}"
    if age < MINUTE_SECONDS:
        return "just now"
    unit_seconds, unit = next(
        (unit_seconds, unit)
        for unit_seconds, unit in (
            (DAY_SECONDS, "d"),
            (HOUR_SECONDS, "h"),
            (MINUTE_SECONDS, "min"),
        )
        if age >= unit_seconds
    )
    return f"{age // unit_seconds:.0f} {unit} ago"


def parse_time(text: str | None, now: float) -> float | None:
    """Read a time: `2026-01-31`, `2026-01-31T14:30`, or `7d`, `12h`, `30m` before now."""
    if text is None:
        return None
    age = _AGE_PATTERN.fullmatch(text.strip().lower())
    if age:
        return now - int(age[1]) * UNIT_SECONDS[age[2]]
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            f"{text!r} is not a time: give a date (2026-01-31), a time (2026-01-31T14:30), or an age (7d, 12h, 30m)"
        ) from error
