"""Days a text speaks of, as spans of time: "on 23 May 2023", "2023-05-23", "in June 2023", "yesterday", "last week"."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from everthread.core.inflection import language_data

_DAY = timedelta(days=1)
_RELATIVE = re.compile(
    r"\b(?:(?P<name>today|yesterday|this week|last week|this month|last month|last year)|"
    r"(?P<count>\d{1,3}|a|an|one|two|three|four|five|six) (?P<unit>day|week|month|year)s? ago)\b"
)
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_NAMED = {
    "today": (0, 1), "yesterday": (1, 1), "this week": (7, 8), "last week": (14, 14), "this month": (31, 32),
    "last month": (62, 62), "last year": (730, 730),
}  # fmt: skip
"""How many days ago a span begins, and how many it has: generous, as people are with such words."""
_UNITS = {"day": 1, "week": 7, "month": 30, "year": 365}


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds since 1970, the end exclusive; and where the text speaks of it."""

    start: float
    end: float
    at: tuple[int, int]

    def __contains__(self, moment: float) -> bool:
        return self.start <= moment < self.end


def named_spans(text: str, now: float) -> list[Span]:
    """What the text speaks of. Nobody says in which time zone, and what happened is told later: a day is not sharp."""
    text = text.casefold()
    return [*_absolute(text), *_relative(text, datetime.fromtimestamp(now, UTC))]


def _absolute(text: str) -> Iterator[Span]:
    months = language_data()["months"]
    for found in _pattern().finditer(text):
        known = {key: value for key, value in found.groupdict().items() if value}
        month = months.get(known.get("m1") or known.get("m2") or known.get("m3") or "") or int(known.get("month", 0))
        day = int(known.get("d1") or known.get("d2") or known.get("day") or 0)
        year = int(known.get("y1") or known.get("y2") or known.get("y3") or known.get("year") or 0)
        try:
            start = datetime(year, month, day or 1, tzinfo=UTC)
        except ValueError:
            continue
        yield _span(start - _DAY, start + (2 * _DAY if day else timedelta(days=38)), found)


def _relative(text: str, now: datetime) -> Iterator[Span]:
    for found in _RELATIVE.finditer(text):
        if found["name"]:
            back, days = _NAMED[found["name"]]
            start = now - timedelta(days=back)
            yield _span(start - _DAY, start + timedelta(days=days), found)
        else:
            count = _NUMBERS.get(found["count"]) or int(found["count"])
            unit = timedelta(days=_UNITS[found["unit"]])
            middle = now - count * unit
            yield _span(middle - max(unit / 2, _DAY), middle + max(unit / 2, _DAY), found)


def _span(start: datetime, end: datetime, found: re.Match[str]) -> Span:
    return Span(start.timestamp(), end.timestamp(), found.span())


@functools.cache
def _pattern() -> re.Pattern[str]:
    """Dates with their year: without it they are too often something else."""
    month = "|".join(sorted(language_data()["months"], key=len, reverse=True))
    of = r"(?:de |of )?"
    return re.compile(
        rf"\b(?P<m1>{month}) (?P<d1>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y1>\d{{4}})\b|"
        rf"\b(?P<d2>\d{{1,2}})(?:st|nd|rd|th|\.)? {of}(?P<m2>{month}),? {of}(?P<y2>\d{{4}})\b|"
        rf"\b(?P<m3>{month}),? {of}(?P<y3>\d{{4}})\b|"
        r"\b(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})\b"
    )
