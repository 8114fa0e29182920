"""Read times that a person types, and format times for tables."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from everthread.errors import InputError

if TYPE_CHECKING:
    pass


MINUTE = 60
HOUR = 3_600
DAY = 86_400
UNITS = {"s": 1, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
RELATIVE_DAYS = 30

_AGO = re.compile(r"(\d{1,6}) ?(s|m|min|h|d|w)")


def local_time(seconds: float) -> datetime | None:
    """Return the local time; None if the date does not exist."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def format_iso(seconds: float | None) -> str | None:
    """Format the local time with its UTC offset, for programs."""
    at = None if seconds is None else local_time(seconds)
    return None if at is None else at.isoformat(timespec="milliseconds")


def format_age(seconds: float, now: float) -> str:
    """Format how long ago, up to a month; then the day. A clock may be a minute ahead."""
    age = now - seconds
    if not -MINUTE < age < RELATIVE_DAYS * DAY:
        at = local_time(seconds)
        return "unknown" if at is None else f"{at:%Y-%m-%d}"
    if age < MINUTE:
        return "just now"
    size, unit = next(
        (size, unit)
        for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"))
        if age >= size
    )
    return f"{age // size:.0f} {unit} ago"


def parse_time(text: str | None, now: float) -> float | None:
    """Read a time: `2026-01-31`, `2026-01-31T14:30`, or `7d`, `12h`, `30m` before now."""
    if text is None:
        return None
    relative = _AGO.fullmatch(text.strip().lower())
    if relative:
        return now - int(relative[1]) * UNITS[relative[2]]
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            f"{text!r} is not a time: give a date (2026-01-31), a time (2026-01-31T14:30), or an age (7d, 12h, 30m)"
        ) from error
