"""Numbers with a meaning."""

from __future__ import annotations

import pytest

from everthread.core.values import values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port 5433", ["port 5433"]),
        ("the timeout is set to 30s", ["timeout is set to 30s"]),
        ("Timeout: `45`", ["Timeout: `45"]),
        ("8 passed, 2 failed in 3.2s", ["8 passed, 2 failed", "3.2s"]),
        ("costs $117.50, 99% of 1,024 MB", ["$117.50", "99%", "1,024 MB"]),
        ("p99 latency 412ms", ["412ms"]),
        ("端口 5433，超时 30 秒", ["端口 5433", "超时 30 秒"]),
        ("ポートは8080です", ["ポートは8080"]),
        ("airport 12, report 7", []),
        ("v2 a1b2 x-12 1/2 3.14 and 42", []),
        ("size12", []),
    ],
)
def test_values(text: str, expected: list[str]) -> None:
    assert [value for value, _ in values(text)] == expected


def test_places() -> None:
    text = "use port 5433 or 30s"
    assert [text[place:] for _, place in values(text)] == ["port 5433 or 30s", "30s"]
    assert [place for _, place in values("İ" * 40 + " port 5433")] == [41]
