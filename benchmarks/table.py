"""The rows of a benchmark's table, and its Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `goal`: the value to reach, in words; `met`: whether it is reached, None without a goal.

    A run that misses a `required` goal fails.
    """

    name: str
    figure: str
    goal: str = ""
    met: bool | None = None
    required: bool = False

    @property
    def is_failed(self) -> bool:
        return self.required and self.met is False


def make_absent_row(name: str) -> Row:
    return Row(name, "real material is absent (set EVERTHREAD_DATA)")


def format_section(title: str, rows: Iterable[Row], note: str = "") -> str:
    """Format a section. `note`: a description of the measurement and its material."""
    lines = [
        f"### {title}",
        "",
        *([note, ""] if note else []),
        "| what | figure | goal | met |",
        "| --- | --- | --- | --- |",
    ]
    marks = {True: "yes", False: "no", None: ""}
    for row in rows:
        met_text = "FAILED" if row.is_failed else marks[row.met]
        lines.append(f"| {row.name} | {row.figure} | {row.goal} | {met_text} |")
    return "\n".join(lines) + "\n"
