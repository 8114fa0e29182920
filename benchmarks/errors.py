"""Classified errors: the label, the stated limit, and false alarms.

81 real errors of providers and 60 further texts, each in two halves split by hash, and the
project's own table, which was made while building. The further texts are from public issue
threads and from a reader who wrote errors in wording that no provider uses; only their
first half was looked at.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.shared import HALVES, find_shared, half_of
from benchmarks.table import Row, format_section, make_absent_row
from everthread.core.provider_errors.classification import classify_error

FURTHER_TEXTS = Path(__file__).parents[1] / "tests" / "core" / "error_texts.jsonl"
OWN_TABLE = Path(__file__).parents[1] / "tests" / "core" / "error_cases.jsonl"
HARMLESS_KINDS = ("rate_limit", "other")


def run() -> list[Row]:
    path = find_shared("provider_errors.jsonl")
    rows = (
        [make_absent_row("real errors")] if path is None else _measure_halves("real errors", path)
    )
    rows += _measure_halves("further texts", FURTHER_TEXTS)
    return rows + _rows("the project's own table, tuned on", _read_cases(OWN_TABLE))


def _measure_halves(name: str, path: Path) -> list[Row]:
    cases = _read_cases(path)
    return [
        row
        for half in HALVES
        for row in _rows(f"{name}, {half}", [case for case in cases if half_of(str(case)) == half])
    ]


def _read_cases(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _rows(name: str, cases: list[dict[str, Any]]) -> list[Row]:
    verdicts = [
        classify_error(
            status=case.get("status"),
            body=case.get("body"),
            message=case.get("message"),
        )
        for case in cases
    ]
    pairs = list(zip(cases, verdicts, strict=True))
    right = sum(case["label"] == verdict.kind for case, verdict in pairs)
    limits = [
        verdict.context_limit == case["context_limit"]
        for case, verdict in pairs
        if "context_limit" in case
    ]
    invented = sum(
        "context_limit" not in case and verdict.context_limit is not None for case, verdict in pairs
    )
    alarms = sum(
        case["label"] in HARMLESS_KINDS and verdict.kind not in HARMLESS_KINDS
        for case, verdict in pairs
    )
    return [
        _make_share_row(f"{name}: label", right, len(cases), 97),
        _make_share_row(f"{name}: stated limit", sum(limits), len(limits), 95),
        Row(f"{name}: limit where none is stated", str(invented), "0", invented == 0),
        Row(
            f"{name}: rate limit or other taken for overflow",
            str(alarms),
            "0",
            alarms == 0,
        ),
    ]


def _make_share_row(name: str, hits: int, total: int, goal: int) -> Row:
    percent = 100 * hits / total
    return Row(name, f"{hits} of {total} ({percent:.1f} %)", f"≥ {goal} %", percent >= goal)


if __name__ == "__main__":
    sys.stdout.write(format_section("errors", run()))
