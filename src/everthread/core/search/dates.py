"""Dates in a text, as spans of time: "on 23 May 2023", "5/23/2023", "last Tuesday", "a week ago"."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta

from everthread.core.search.word_forms import load_language_data

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
_NUMBER_BY_WORD = {
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
_DAYS_BY_PHRASE = {
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
"""How many days ago each span begins, and its length in days; generous, because people use such words loosely."""
_DAYS_BY_UNIT = {"day": 1, "weekend": 7, "week": 7, "month": 30, "year": 365}
_FIRST_MONTH_BY_SEASON = {
    "spring": 3,
    "summer": 6,
    "autumn": 9,
    "fall": 9,
    "winter": 12,
}
"""First month of each season, in the northern hemisphere."""
_SEASON_DAYS = 93


def _any_of(words: Iterable[str]) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


_RELATIVE_DATE_PATTERN = re.compile(
    rf"\b(?:(?P<name>{_any_of(_DAYS_BY_PHRASE)})|(?:last|on|this|past) (?P<weekday>{_any_of(_WEEKDAYS)})|"
    rf"(?P<count>\d{{1,3}}|{_any_of(_NUMBER_BY_WORD)}) (?P<unit>{_any_of(_DAYS_BY_UNIT)})s? (?:ago|back|earlier)|"
    rf"(?:last|past|previous) (?P<many>\d{{1,3}}|{_any_of(_NUMBER_BY_WORD)}) (?P<units>{_any_of(_DAYS_BY_UNIT)})s)\b"
)
_SEASON_PHRASE_PATTERN = re.compile(
    rf"\b(?:in|during|this|last|that) (?:the )?(?P<season>{_any_of(_FIRST_MONTH_BY_SEASON)})"
    r"(?: of)?(?: (?P<year>\d{4}))?\b"
)
DAY_NAMES = frozenset({*_WEEKDAYS, "weekend"})
"""Words of a date that a text about that day may contain too."""
MAX_YEARS_BACK = 4
"""How many years back a date without a year is looked for."""


@dataclass(frozen=True, slots=True)
class DateSpan:
    """A period in seconds since 1970, the end exclusive, and its start and end position in the text."""

    start: float
    end: float
    position: tuple[int, int]

    def __contains__(self, moment: float) -> bool:
        return self.start <= moment < self.end


def find_dates(text: str, now: float) -> list[DateSpan]:
    """Return the dates in a text as generous spans: the time zone is unknown, and events are reported later."""
    text = text.casefold()
    moment = datetime.fromtimestamp(now, UTC)
    seasons = list(_find_seasons(text, moment))
    season_positions = {index for span in seasons for index in range(*span.position)}
    return [
        *(
            span
            for span in _find_absolute_dates(text, moment)
            if span.position[0] not in season_positions
        ),
        *seasons,
        *_find_relative_dates(text, moment),
    ]


def _find_absolute_dates(text: str, now: datetime) -> Iterator[DateSpan]:
    months = load_language_data()["months"]
    for match in _compile_date_pattern().finditer(text):
        fields = {
            key.rstrip("0123456789"): value for key, value in match.groupdict().items() if value
        }
        month = months.get(fields.get("name", "")) or int(fields.get("month", 0))
        day = int(fields.get("day", 0))
        second_number = int(fields.get("either", 0))
        # Read 3/4/2026 both ways.
        month_day_pairs = (
            {(day, second_number), (second_number, day)} if second_number else {(month, day)}
        )
        for year in _list_years(fields.get("year"), now):
            for month_and_day in sorted(month_day_pairs):
                yield from _find_calendar_span(year, *month_and_day, match)


def _find_calendar_span(
    year: int, month: int, day: int, match: re.Match[str]
) -> Iterator[DateSpan]:
    """Yield the span of a day, a month or a year, or nothing if the calendar has no such day."""
    try:
        start = datetime(year, month or 1, day or 1, tzinfo=UTC)
    except ValueError:
        return
    if day:
        days = 2
    elif month:
        days = 37
    else:
        days = 366
    yield _make_span(start - _DAY, start + timedelta(days=days), match)


def _list_years(year: str | None, now: datetime) -> Iterable[int]:
    """Return the stated year; if none is stated, the last ones."""
    return [int(year)] if year else range(now.year - MAX_YEARS_BACK, now.year + 1)


def _find_seasons(text: str, now: datetime) -> Iterator[DateSpan]:
    for match in _SEASON_PHRASE_PATTERN.finditer(text):
        for year in _list_years(match["year"], now):
            if MINYEAR < year < MAXYEAR:
                start = datetime(year, _FIRST_MONTH_BY_SEASON[match["season"]], 1, tzinfo=UTC)
                yield _make_span(start - _DAY, start + timedelta(days=_SEASON_DAYS), match)


def _find_relative_dates(text: str, now: datetime) -> Iterator[DateSpan]:
    for match in _RELATIVE_DATE_PATTERN.finditer(text):
        if match["name"]:
            days_ago, day_count = _DAYS_BY_PHRASE[match["name"]]
            start_days_ago = days_ago + 1.0
            end_days_ago = float(days_ago - day_count)
        elif match["weekday"]:
            days_ago = (now.weekday() - _WEEKDAYS.index(match["weekday"])) % 7 or 7
            start_days_ago = days_ago + 1.0
            end_days_ago = days_ago - 1.0
        elif match["many"]:
            days_ago = (_NUMBER_BY_WORD.get(match["many"]) or int(match["many"])) * _DAYS_BY_UNIT[
                match["units"]
            ]
            start_days_ago = days_ago + 1.0
            end_days_ago = -1.0
        else:
            unit_days = _DAYS_BY_UNIT[match["unit"]]
            days_ago = (_NUMBER_BY_WORD.get(match["count"]) or int(match["count"])) * unit_days
            start_days_ago = days_ago + max(unit_days / 2, 1.0)
            end_days_ago = days_ago - max(unit_days / 2, 1.0)
        yield _make_span(
            now - timedelta(days=start_days_ago),
            now - timedelta(days=end_days_ago),
            match,
        )


def _make_span(start: datetime, end: datetime, match: re.Match[str]) -> DateSpan:
    return DateSpan(start.timestamp(), end.timestamp(), match.span())


@functools.cache
def _compile_date_pattern() -> re.Pattern[str]:
    """Return the pattern of dates.

    A date without a year needs a day or a preposition: a month's name alone is too often another word ("may").
    """
    month = "|".join(sorted(load_language_data()["months"], key=len, reverse=True))
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
