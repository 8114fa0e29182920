"""Tables and bar charts that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import JustifyMethod, OverflowMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from everthread.cli.formats import shorten_path
from everthread.cli.output import console, escape_controls, print_text

MAX_ROWS = 20
"""Rows of a long table that are shown without `--all`."""


MARGIN_WIDTH = 3
"""Terminal columns between two columns of a table."""


MIN_COLUMN_WIDTH = 10
"""The fewest terminal columns of a table column that can shrink."""


MIN_LINE_COLUMN_WIDTH = 24
"""The fewest terminal columns of such a column in `print_one_line_rows`, which rather leaves out other columns."""


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    max_rows: int | None = None,
) -> None:
    """Print a table. A column name ending in `>` is right-aligned, in `…` cut to fit, in `~` folded to fit.

    A column without any value is left out. A table too wide for the terminal is printed row by row as blocks: no
    figure loses digits and no line is wider than the terminal. `max_rows`: rows that are shown without `--all`.
    """
    all_rows = list(rows)
    title = shorten_path(title, console.width)
    cells = [[format_cell(value) for value in row] for row in all_rows[:max_rows]]
    filled_columns = [
        index for index in range(len(columns)) if not cells or any(row[index] for row in cells)
    ]
    names = [columns[index].rstrip(">…~") for index in filled_columns]
    column_marks = [columns[index][-1:] for index in filled_columns]
    cells = [[row[index] for index in filled_columns] for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    is_flexible = [mark in ("…", "~") for mark in column_marks]
    flexible_width = max(_compute_flexible_width(widths, is_flexible), MIN_COLUMN_WIDTH)
    widths = [
        min(width, flexible_width) if flexible else width
        for width, flexible in zip(widths, is_flexible, strict=True)
    ]
    print_text((title, "bold"))
    if sum(widths) + MARGIN_WIDTH * len(widths) > console.width:
        _print_blocks(names, cells)
    else:
        _print_columns(names, column_marks, widths, cells)
    if len(all_rows) > len(cells):
        print_text(f"… and {len(all_rows) - len(cells):,} more (--all shows them)\n")


def print_one_line_rows(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Print a table with one line for each row at any width, in the same form whatever the rows hold.

    Columns are marked as in `print_table`. If they do not fit, the last ones are left out first.
    """
    cells = [[format_cell(value) for value in row] for row in rows]
    names = [name.rstrip(">…~") for name in columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    is_flexible = [name.endswith("…") for name in columns]
    column_count = len(columns)
    while (
        column_count > 1
        and _compute_flexible_width(widths[:column_count], is_flexible[:column_count])
        < MIN_LINE_COLUMN_WIDTH
    ):
        column_count -= 1
    flexible_width = max(
        _compute_flexible_width(widths[:column_count], is_flexible[:column_count]),
        MIN_COLUMN_WIDTH,
    )
    widths = [
        min(width, flexible_width) if flexible else width
        for width, flexible in zip(widths, is_flexible, strict=True)
    ]
    print_text((title, "bold"))
    column_marks = [name[-1:] for name in columns]
    _print_columns(
        names[:column_count],
        column_marks[:column_count],
        widths[:column_count],
        [row[:column_count] for row in cells],
    )


def _compute_flexible_width(widths: Sequence[int], is_flexible: Sequence[bool]) -> int:
    """Return the width that is left for each column that can shrink."""
    fixed_width = sum(
        width for width, flexible in zip(widths, is_flexible, strict=True) if not flexible
    )
    margins = MARGIN_WIDTH * len(widths)
    return (console.width - fixed_width - margins) // max(sum(is_flexible), 1)


def _print_columns(
    names: Sequence[str],
    column_marks: Sequence[str],
    widths: Sequence[int],
    cells: Sequence[Sequence[str]],
) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, mark, width in zip(names, column_marks, widths, strict=True):
        overflow: OverflowMethod = "ellipsis" if mark == "…" else "fold"
        justify: JustifyMethod = "right" if mark == ">" else "left"
        table.add_column(
            Text(name),
            justify=justify,
            no_wrap=mark != "~",
            overflow=overflow,
            width=width,
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table, soft_wrap=False)


def _print_blocks(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print each row as a block: its first value, and below it the other values with their names."""
    for row in cells:
        console.print(Text(row[0], "bold"), soft_wrap=False)
        lines = [""]
        for value in (
            f"{name} {text}" for name, text in zip(names[1:], row[1:], strict=True) if text
        ):
            if lines[-1] and cell_len(f"  {lines[-1]} · {value}") > console.width:
                lines.append("")
            lines[-1] += f" · {value}" if lines[-1] else value
        console.print(Padding(Text("\n".join(lines)), (0, 0, 0, 2)), soft_wrap=False)
    console.print()


def format_cell(value: object) -> str:
    """Format a value for a table."""
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else escape_controls(str(value))
    )


def print_bars(title: str, rows: Sequence[tuple[str, int, str]]) -> None:
    """Print a bar chart. Each row is a label, a number and a note."""
    label_width, figure_width, note_width = (
        max((len(format_cell(row[column])) for row in rows), default=0) for column in range(3)
    )
    largest = max((value for _, value, _ in rows), default=0)
    bar_width = max(console.width - label_width - figure_width - note_width - 6, 10)
    print_text((title, "bold"))
    for label, value, note in rows:
        bar = draw_bar(value, largest, bar_width)
        print_text(f"{label:<{label_width}}  {bar:<{bar_width}}  {value:>{figure_width},}  {note}")
    console.print()


def draw_bar(value: int, largest: int, width: int) -> str:
    """Draw a bar in eighths of a column. Any value above zero is visible."""
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(value * width * 8 // largest, 1)
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1] * (eighths % 8 > 0)
