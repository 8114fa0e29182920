"""Times as people read and write them: local, relative where that says more; exact for programs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

import typer

from everthread.errors import InputError

Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="From then on: 2026-01-31, 2026-01-31T14:30, or 7d, 12h, 30m ago.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")]

MINUTE, HOUR, DAY = 60, 3_600, 86_400
UNITS = {"s": 1, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
RELATIVE_DAYS = 30

_AGO = re.compile(r"(\d{1,6}) ?(s|m|min|h|d|w)")


def moment(seconds: float) -> datetime | None:
    """The local time; None for what no calendar holds."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def iso(seconds: float | None) -> str | None:
    """The local time with its distance from UTC, for programs."""
    at = None if seconds is None else moment(seconds)
    return None if at is None else at.isoformat(timespec="milliseconds")


def ago(seconds: float, now: float) -> str:
    """How long ago, up to a month; then the day. A clock that is a minute ahead is no reason to say so."""
    passed = now - seconds
    if not -MINUTE < passed < RELATIVE_DAYS * DAY:
        at = moment(seconds)
        return "unknown" if at is None else f"{at:%Y-%m-%d}"
    if passed < MINUTE:
        return "just now"
    size, unit = next((size, unit) for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")) if passed >= size)
    return f"{passed // size:.0f} {unit} ago"


def duration(seconds: float) -> str:
    """`1.4 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    big, small, names = (HOUR, MINUTE, ("h", "min")) if seconds >= HOUR else (MINUTE, 1, ("min", "s"))
    whole, rest = divmod(seconds, big)
    return f"{whole:.0f} {names[0]} {rest // small:.0f} {names[1]}"


def read_time(text: str | None, now: float) -> float | None:
    """The moment a person means: `2026-01-31`, `2026-01-31T14:30`, or `7d`, `12h`, `30m` for so long ago."""
    if text is None:
        return None
    relative = _AGO.fullmatch(text.strip().lower())
    if relative:
        return now - int(relative[1]) * UNITS[relative[2]]
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            f"{text!r} is no time: give a date (2026-01-31), a time (2026-01-31T14:30), or how long ago (7d, 12h, 30m)"
        ) from error
