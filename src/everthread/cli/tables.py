"""Tables and bar charts that fit the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from everthread.cli.formats import shorten_path
from everthread.cli.output import console, escape_controls, print_text

MAX_ROWS = 20
"""Maximum rows of a table that are shown without `--all`."""


MARGIN_WIDTH = 3
"""Terminal columns between two columns of a table."""


MIN_COLUMN_WIDTH = 10
"""The fewest terminal columns of a table column that can shrink."""


MIN_LINE_COLUMN_WIDTH = 24
"""The same limit in `print_one_line_rows`, which leaves out other columns first."""


def print_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    max_rows: int | None = None,
) -> None:
    """Print a table, whose columns are formatted by the last character of their headings.

    A column is right-aligned if its heading ends in `>`, cut to fit if it ends in `…`, and folded to fit if it ends in
    `~`. A column without any value is left out. A table too wide for the terminal is printed row by row as blocks, so
    that no figure loses digits and no line is wider than the terminal. `max_rows` limits the rows that are shown.
    """
    all_rows = list(rows)
    shown_rows = all_rows[:max_rows]
    columns = _make_columns(headings, shown_rows)
    if shown_rows:
        columns = [column for column in columns if any(column.cells)]
    _shrink_columns(columns)
    print_text((shorten_path(title, console.width), "bold"))
    if sum(column.width + MARGIN_WIDTH for column in columns) > console.width:
        _print_blocks(columns)
    else:
        _print_columns(columns)
    if len(all_rows) > len(shown_rows):
        print_text(f"… and {len(all_rows) - len(shown_rows):,} more (--all shows them)\n")


def print_one_line_rows(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Print a table with one line for each row at any width, in the same format for all values.

    Headings are marked as in `print_table`. If the columns do not fit, the last ones are left out first.
    """
    columns = _make_columns(headings, rows)
    while len(columns) > 1 and _compute_flexible_width(columns) < MIN_LINE_COLUMN_WIDTH:
        del columns[-1]
    _shrink_columns(columns)
    print_text((title, "bold"))
    _print_columns(columns)


@dataclass(slots=True)
class _Column:
    """A column of a table, with the mark at the end of its heading and its values as text."""

    name: str
    mark: str
    cells: list[str]
    width: int

    @property
    def is_flexible(self) -> bool:
        return self.mark in ("…", "~")


def _make_columns(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> list[_Column]:
    columns = []
    for index, heading in enumerate(headings):
        name = heading.rstrip(">…~")
        cells = [format_cell(row[index]) for row in rows]
        width = max(map(cell_len, (name, *cells)))
        columns.append(_Column(name, heading[-1:], cells=cells, width=width))
    return columns


def _shrink_columns(columns: Sequence[_Column]) -> None:
    """Shrink the flexible columns to the width that is left for each, but not below `MIN_COLUMN_WIDTH`."""
    flexible_width = max(_compute_flexible_width(columns), MIN_COLUMN_WIDTH)
    for column in columns:
        if column.is_flexible:
            column.width = min(column.width, flexible_width)


def _compute_flexible_width(columns: Sequence[_Column]) -> int:
    """Return the width that is left for each flexible column."""
    fixed_width = sum(column.width for column in columns if not column.is_flexible)
    flexible_count = sum(column.is_flexible for column in columns)
    margins = MARGIN_WIDTH * len(columns)
    return (console.width - fixed_width - margins) // max(flexible_count, 1)


def _print_columns(columns: Sequence[_Column]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(
            Text(column.name),
            justify="right" if column.mark == ">" else "left",
            no_wrap=column.mark != "~",
            overflow="ellipsis" if column.mark == "…" else "fold",
            width=column.width,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    console.print(table, soft_wrap=False)


def _print_blocks(columns: Sequence[_Column]) -> None:
    """Print each row as a block, with its first value as heading and the other values with their names below."""
    first_column, *other_columns = columns
    for row_index, first_cell in enumerate(first_column.cells):
        console.print(Text(first_cell, "bold"), soft_wrap=False)
        lines = [""]
        for column in other_columns:
            if not column.cells[row_index]:
                continue
            value = f"{column.name} {column.cells[row_index]}"
            if lines[-1] and cell_len(f"  {lines[-1]} · {value}") > console.width:
                lines.append("")
            lines[-1] += f" · {value}" if lines[-1] else value
        console.print(Padding(Text("\n".join(lines)), (0, 0, 0, 2)), soft_wrap=False)
    console.print()


def format_cell(value: object) -> str:
    """Format a value for a table."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape_controls(str(value))


def print_bars(title: str, rows: Sequence[tuple[str, int, str]]) -> None:
    """Print a bar chart. Each row is a label, a number and a note."""
    label_width = max((len(format_cell(label)) for label, _, _ in rows), default=0)
    figure_width = max((len(format_cell(value)) for _, value, _ in rows), default=0)
    note_width = max((len(format_cell(note)) for _, _, note in rows), default=0)
    max_value = max((value for _, value, _ in rows), default=0)
    bar_width = max(console.width - label_width - figure_width - note_width - 6, 10)
    print_text((title, "bold"))
    for label, value, note in rows:
        bar = draw_bar(value, max_value, bar_width)
        print_text(f"{label:<{label_width}}  {bar:<{bar_width}}  {value:>{figure_width},}  {note}")
    console.print()


def draw_bar(value: int, max_value: int, width: int) -> str:
    """Draw a bar in eighths of a column. Any value above zero is visible."""
    if value <= 0 or max_value <= 0:
        return ""
    eighths = max(value * width * 8 // max_value, 1)
    partial_cells = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
    return "█" * (eighths // 8) + partial_cells[eighths % 8]
