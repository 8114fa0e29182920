"""Dates in a text, as spans of time: "on 23 May 2023", "5/23/2023", "last Tuesday", "a week ago"."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta

from everthread.core.search.terms import language_data

_DAY = timedelta(days=1)
_WEEKDAYS = (
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
)
_NUMBERS = {
    "a": 1,
    "an": 1,
    "one": 1,
    "two": 2,
    "a couple of": 2,
    "couple of": 2,
    "three": 3,
    "a few": 3,
    "few": 3,
    "several": 4,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
}
_NAMED = {
    "today": (0, 1),
    "tonight": (0, 1),
    "yesterday": (1, 1),
    "last night": (1, 1),
    "day before yesterday": (2, 1),
    "this week": (7, 8),
    "last week": (14, 14),
    "past week": (14, 14),
    "this weekend": (7, 8),
    "last weekend": (9, 9),
    "past weekend": (9, 9),
    "this month": (31, 32),
    "last month": (62, 62),
    "past month": (62, 62),
    "this year": (365, 366),
    "last year": (730, 730),
    "past year": (730, 730),
}
"""How many days ago a span begins, and how many it has: generous, as people are with such words."""
_UNITS = {"day": 1, "weekend": 7, "week": 7, "month": 30, "year": 365}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
"""The month with which it begins, in the north."""
_SEASON_DAYS = 93


def _one_of(words: Iterable[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_RELATIVE = re.compile(
    rf"\b(?:(?P<name>{_one_of(_NAMED)})|(?:last|on|this|past) (?P<weekday>{_one_of(_WEEKDAYS)})|"
    rf"(?P<count>\d{{1,3}}|{_one_of(_NUMBERS)}) (?P<unit>{_one_of(_UNITS)})s? (?:ago|back|earlier)|"
    rf"(?:last|past|previous) (?P<many>\d{{1,3}}|{_one_of(_NUMBERS)}) (?P<units>{_one_of(_UNITS)})s)\b"
)
_SEASON = re.compile(
    rf"\b(?:in|during|this|last|that) (?:the )?(?P<season>{_one_of(_SEASONS)})(?: of)?(?: (?P<year>\d{{4}}))?\b"
)
DAY_NAMES = frozenset({*_WEEKDAYS, "weekend"})
"""Words of a date that a text about that day may hold as well."""
YEARS_BACK = 4
"""Years before this one that a date without a year may mean."""


@dataclass(frozen=True, slots=True)
class DateSpan:
    """A period in seconds since 1970, the end exclusive, and its place in the text."""

    start: float
    end: float
    at: tuple[int, int]

    def __contains__(self, moment: float) -> bool:
        return self.start <= moment < self.end


def named_spans(text: str, now: float) -> list[DateSpan]:
    """Return the dates in a text as spans, wide ones: the time zone is unknown, and events are reported later."""
    text = text.casefold()
    moment = datetime.fromtimestamp(now, UTC)
    seasons = list(_seasons(text, moment))
    season_positions = {index for span in seasons for index in range(*span.at)}
    return [
        *(
            span
            for span in _absolute(text, moment)
            if span.at[0] not in season_positions
        ),
        *seasons,
        *_relative(text, moment),
    ]


def _absolute(text: str, now: datetime) -> Iterator[DateSpan]:
    months = language_data()["months"]
    for match in _pattern().finditer(text):
        fields = {
            key.rstrip("0123456789"): value
            for key, value in match.groupdict().items()
            if value
        }
        month = months.get(fields.get("name", "")) or int(fields.get("month", 0))
        day = int(fields.get("day", 0))
        other = int(fields.get("either", 0))
        # Read 3/4/2026 both ways.
        readings = {(day, other), (other, day)} if other else {(month, day)}
        years = (
            [int(fields["year"])]
            if "year" in fields
            else range(now.year - YEARS_BACK, now.year + 1)
        )
        for year in years:
            for reading in sorted(readings):
                yield from _days(year, *reading, match)


def _days(year: int, month: int, day: int, match: re.Match[str]) -> Iterator[DateSpan]:
    """Return a day, a month or a year; None if the calendar has no such day."""
    try:
        start = datetime(year, month or 1, day or 1, tzinfo=UTC)
    except ValueError:
        return
    length = timedelta(days=1 if day else 37 if month else 366)
    yield _span(start - _DAY, start + length + (_DAY if day else timedelta(0)), match)


def _seasons(text: str, now: datetime) -> Iterator[DateSpan]:
    for match in _SEASON.finditer(text):
        years = (
            [int(match["year"])]
            if match["year"]
            else range(now.year - YEARS_BACK, now.year + 1)
        )
        for year in years:
            if MINYEAR < year < MAXYEAR:
                start = datetime(year, _SEASONS[match["season"]], 1, tzinfo=UTC)
                yield _span(start - _DAY, start + timedelta(days=_SEASON_DAYS), match)


def _relative(text: str, now: datetime) -> Iterator[DateSpan]:
    for match in _RELATIVE.finditer(text):
        if match["name"]:
            back, days = _NAMED[match["name"]]
            first = back + 1.0
            last = float(back - days)
        elif match["weekday"]:
            back = (now.weekday() - _WEEKDAYS.index(match["weekday"])) % 7 or 7
            first = back + 1.0
            last = back - 1.0
        elif match["many"]:
            back = (_NUMBERS.get(match["many"]) or int(match["many"])) * _UNITS[
                match["units"]
            ]
            first = back + 1.0
            last = -1.0
        else:
            unit = _UNITS[match["unit"]]
            back = (_NUMBERS.get(match["count"]) or int(match["count"])) * unit
            first = back + max(unit / 2, 1.0)
            last = back - max(unit / 2, 1.0)
        yield _span(now - timedelta(days=first), now - timedelta(days=last), match)


def _span(start: datetime, end: datetime, match: re.Match[str]) -> DateSpan:
    return DateSpan(start.timestamp(), end.timestamp(), match.span())


@functools.cache
def _pattern() -> re.Pattern[str]:
    """Dates. Without a year they need a day or a preposition, else they are too often something else ("may")."""
    month = "|".join(sorted(language_data()["months"], key=len, reverse=True))
    of_word = r"(?:de |of )?"
    ordinal = r"(?:st|nd|rd|th|\.)?"
    separator = r"(?:, ?| )"
    preposition = r"(?:in|im|en|since|during|of|last|for|until)"
    return re.compile(
        rf"\b(?P<name1>{month}) (?P<day1>\d{{1,2}}){ordinal}{separator}(?P<year1>\d{{4}})\b|"
        rf"\b(?P<day2>\d{{1,2}}){ordinal} {of_word}(?P<name2>{month}){separator}{of_word}(?P<year2>\d{{4}})\b|"
        rf"\b(?P<name3>{month}){separator}{of_word}(?P<year3>\d{{4}})\b|"
        r"\b(?P<year4>\d{4})[-/.](?P<month4>\d{1,2})[-/.](?P<day4>\d{1,2})(?:\b|(?=t\d))|"
        r"\b(?P<day5>\d{1,2})[/.](?P<either5>\d{1,2})[/.](?P<year5>\d{4})\b|"
        r"(?:(?P<year6>\d{4})年)?(?P<month6>\d{1,2})月(?:(?P<day6>\d{1,2})日)?|"
        rf"\b(?:on|by|before|after|from|{preposition}) (?P<name7>{month}) (?P<day7>\d{{1,2}}){ordinal}"
        rf"(?!\w|{separator}\d{{4}})|"
        rf"\b(?P<day8>\d{{1,2}}){ordinal} {of_word}(?P<name8>{month})\b|"
        rf"\b{preposition} (?:early |late |mid[- ])?(?P<name9>{month})\b(?!{separator}{of_word}\d)|"
        rf"\b{preposition} (?P<year9>(?:19|20)\d\d)\b(?![-/.]\d)"
    )
