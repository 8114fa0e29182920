"""How figures, times and foreign text are written for people."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.cli.commands.insights import sum_usage_by_period
from everthread.cli.formats import shorten_id
from everthread.cli.output import console, encode_json, escape_controls
from everthread.cli.tables import draw_bar, print_table
from everthread.cli.times import HOUR_SECONDS, format_age, format_iso, parse_time
from everthread.core.utc_days import DAY_SECONDS
from everthread.errors import InputError
from everthread.store.usage_records import UsageRow

NOW = 1_800_000_000.0


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


ANY_TEXT = st.text(st.characters(exclude_categories=[]))


@pytest.mark.parametrize(
    ("passed", "words"),
    [
        (0, "just now"),
        (-30, "just now"),
        (59, "just now"),
        (60, "1 min ago"),
        (7_199, "1 h ago"),
        (7_200, "2 h ago"),
        (3 * DAY_SECONDS, "3 d ago"),
        (30 * DAY_SECONDS, "2026-12-16"),
        (-2 * DAY_SECONDS, "2027-01-17"),
        (1e30, "unknown"),
        (float("nan"), "unknown"),
    ],
)
def test_ages_are_formatted(passed: float, words: str, utc: None) -> None:
    assert format_age(NOW - passed, NOW) == words


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("7d", NOW - 7 * DAY_SECONDS),
        ("12h", NOW - 12 * HOUR_SECONDS),
        ("30m", NOW - 1_800),
        (" 2W ", NOW - 14 * DAY_SECONDS),
        ("90 s", NOW - 90),
        ("2026-01-31T00:00:00Z", 1_769_817_600.0),
        ("2026-01-31T01:00+01:00", 1_769_817_600.0),
    ],
)
def test_times_are_parsed(text: str, moment: float) -> None:
    assert parse_time(text, NOW) == moment


@pytest.mark.parametrize(
    "text",
    ["", "soon", "7x", "-7d", "2026-13-01", "99999999d", "0001-01-01T00:00+14:00", "d"],
)
def test_a_bad_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a time"):
        parse_time(text, NOW)


def test_a_date_is_the_local_one() -> None:
    moment = parse_time("2026-01-31", NOW)
    assert moment is not None
    assert (format_iso(moment) or "").startswith("2026-01-31T00:00:00.000")


def test_only_own_ids_are_shortened() -> None:
    assert shorten_id("0123456789abcdef0123456789abcdef") == "01234567"
    assert shorten_id("telegram:42") == "telegram:42"
    assert shorten_id("a\x1b[2Jb") == "a␛[2Jb"


def test_bars_are_drawn_in_eighths() -> None:
    assert draw_bar(0, 100, 10) == ""
    assert draw_bar(100, 100, 10) == "█" * 10
    assert draw_bar(1, 10_000, 10) == "▏"
    assert draw_bar(45, 100, 10) == "████▌"
    assert draw_bar(5, 0, 10) == ""


@given(ANY_TEXT)
def test_control_characters_are_made_visible(text: str) -> None:
    printable = escape_controls(text)
    printable.encode()
    assert not re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202a-\u202e\u2066-\u2069]", printable
    )


def test_ordinary_text_is_unchanged() -> None:
    text = "tab\tline\n你好 👩‍👩‍👧 é [bold]x[/bold] :fire:"
    assert escape_controls(text) == text
    assert escape_controls("a\r\nb\rc") == "a\nb␍c"


@given(st.dictionaries(ANY_TEXT, ANY_TEXT))
def test_json_escapes_what_cannot_be_printed(value: dict[str, str]) -> None:
    text = encode_json(value)
    text.encode()
    assert json.loads(text) == value
    assert not any(0x7F <= ord(c) < 0xA0 or c == "\u202e" for c in text)


def row(day: str, tokens: int) -> UsageRow:
    return UsageRow(
        day,
        calls=1,
        input=tokens,
        cost=Decimal(tokens),
    )


def test_the_chart_has_no_gaps_and_begins_with_the_first_use() -> None:
    unit, rows = sum_usage_by_period(
        [row("2026-01-03", 5), row("2026-01-06", 7)], date(2026, 1, 1), 7
    )
    assert unit == "day"
    assert [(r.key[-5:], r.input) for r in rows] == [
        ("01-03", 5),
        ("01-04", 0),
        ("01-05", 0),
        ("01-06", 7),
        ("01-07", 0),
    ]


@pytest.mark.parametrize(
    ("days", "unit", "sums"),
    [
        (90, "week", {"2026-01-26": 5, "2026-02-02": 7 + 9}),
        (1_000, "month", {"2026-01": 5, "2026-02": 16}),
    ],
)
def test_many_days_are_summed_by_week_or_month(days: int, unit: str, sums: dict[str, int]) -> None:
    given_rows = [row("2026-01-31", 5), row("2026-02-03", 7), row("2026-02-05", 9)]
    found, rows = sum_usage_by_period(given_rows, date(2026, 1, 31), days)
    assert found == unit
    assert {r.key: r.input for r in rows if r.input} == sums
    assert sum(r.cost for r in rows) == 21
    assert sum(r.calls for r in rows) == 3


@pytest.mark.parametrize("columns", [30, 60])
def test_blocks_of_a_narrow_table_break_between_values(
    columns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = ["name", *(f"figure {number}>" for number in range(9))]
    with patch.object(console, "_width", columns):
        print_table("Wide", heads, [("row", *range(1_000_000, 9_000_001, 1_000_000))] * 7)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  figure")]
    assert len(lines) >= 7
    for line in lines:
        for value in line.split(" · "):
            assert re.fullmatch(r"figure \d [\d,]+", value.strip()), "a name stays beside its value"
