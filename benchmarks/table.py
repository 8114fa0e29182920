"""What a benchmark answers with: rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `goal` is what it should reach, in words; `met` whether it does (None: nothing to reach).

    A run that misses a `required` goal fails.
    """

    what: str
    figure: str
    goal: str = ""
    met: bool | None = None
    required: bool = False

    @property
    def is_failed(self) -> bool:
        return self.required and self.met is False


def absent(what: str) -> Row:
    return Row(what, "real material is absent (set EVERTHREAD_DATA)")


def markdown(title: str, rows: Iterable[Row], note: str = "") -> str:
    """`note`: what was measured, on which material."""
    lines = [
        f"### {title}",
        "",
        *([note, ""] if note else []),
        "| what | figure | goal | met |",
        "| --- | --- | --- | --- |",
    ]
    marks = {True: "yes", False: "no", None: ""}
    for row in rows:
        met = "FAILED" if row.is_failed else marks[row.met]
        lines.append(f"| {row.what} | {row.figure} | {row.goal} | {met} |")
    return "\n".join(lines) + "\n"
