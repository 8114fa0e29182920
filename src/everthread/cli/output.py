"""Output of the commands: tables and charts for people, JSON for programs, progress bars, unexpected errors."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, OverflowMethod
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from everthread._version import __version__
from everthread.config import home_directory
from everthread.core.secrets.redaction import redact
from everthread.core.validation import ROLES

if TYPE_CHECKING:
    from everthread.store.usage_records import UsageRow


class WrappingConsole(Console):
    """Wraps text at words on a terminal. Elsewhere a line stays one line, unless `soft_wrap` is False."""

    def print(
        self, *objects: Any, soft_wrap: bool | None = None, **options: Any
    ) -> None:
        super().print(
            *objects,
            soft_wrap=not self.is_terminal if soft_wrap is None else soft_wrap,
            **options,
        )


console = WrappingConsole(highlight=False, emoji=False)

# Characters that a terminal does not show: C1 controls, direction marks, unusual line ends; and surrogates, which
# cannot be encoded.
_INVISIBLE_CODES = (
    0x7F,
    *range(0x80, 0xA0),
    0x61C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
_ESCAPE_SEQUENCES = {
    code: f"\\u{code:04x}" for code in (*_INVISIBLE_CODES, *range(0xD800, 0xE000))
}
_CONTROL_REPLACEMENTS = _ESCAPE_SEQUENCES | {
    code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)
}


def print_json(value: Any) -> None:
    """Print JSON for programs."""
    typer.echo(encode_json(value, indent=2))


def encode_json(value: Any, *, indent: int | None = None) -> str:
    """Encode as JSON in which every character that a terminal or a file cannot take is escaped."""
    return json.dumps(value, ensure_ascii=False, indent=indent).translate(
        _ESCAPE_SEQUENCES
    )


def escape_controls(text: str) -> str:
    """Make control characters in foreign text visible, so that they cannot move the cursor or change colours."""
    return text.replace("\r\n", "\n").translate(_CONTROL_REPLACEMENTS)


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
        index
        for index in range(len(columns))
        if not cells or any(row[index] for row in cells)
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
        width
        for width, flexible in zip(widths, is_flexible, strict=True)
        if not flexible
    )
    margins = MARGIN_WIDTH * len(widths)
    return (console.width - fixed_width - margins) // max(sum(is_flexible), 1)


def shorten_path(text: str, max_chars: int) -> str:
    """Shorten a path from the left, so that its end, the most useful part, stays."""
    return (
        text if len(text) <= max_chars or max_chars < 2 else f"…{text[1 - max_chars :]}"
    )


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
            f"{name} {text}"
            for name, text in zip(names[1:], row[1:], strict=True)
            if text
        ):
            if lines[-1] and cell_len(f"  {lines[-1]} · {value}") > console.width:
                lines.append("")
            lines[-1] += f" · {value}" if lines[-1] else value
        console.print(Padding(Text("\n".join(lines)), (0, 0, 0, 2)), soft_wrap=False)
    console.print()


def print_text(*parts: str | tuple[str, str] | Text) -> None:
    """Print a paragraph for a person, with control characters made visible. A part may have a style of its own."""
    text = Text()
    for part in parts:
        if isinstance(part, Text):
            text.append_text(part)
        elif isinstance(part, tuple):
            text.append(escape_controls(part[0]), part[1])
        else:
            text.append(escape_controls(part))
    console.print(text)


def print_error(text: str) -> None:
    """Print on standard error; a terminal gets the text wrapped at words."""
    lines = escape_controls(text).splitlines()
    if sys.stderr.isatty():
        lines = _wrap_lines(lines, shutil.get_terminal_size().columns)
    typer.echo("\n".join(lines), err=True)


def indent_further_lines(text: str, indent: int) -> str:
    """Wrap a text that begins at a column, and indent its further lines to that column."""
    lines = _wrap_lines(text.splitlines(), max(console.width - indent, 20))
    return f"\n{' ' * indent}".join(lines)


def _wrap_lines(lines: Sequence[str], width: int) -> list[str]:
    """Wrap lines at spaces. A longer word, such as a path, stays whole."""
    return [
        row
        for line in lines
        for row in textwrap.wrap(
            line, width=width, break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]


def print_next_page_hint(offset: int) -> None:
    """Print how to see the next page of a list."""
    print_text(f"… there are more (--offset {offset} shows them)")


MAX_NOTES = 20


def print_notes(notes: Sequence[str], kind: str = "note") -> None:
    """Print notes on standard error, so that standard output has the result alone."""
    for note in notes[:MAX_NOTES]:
        typer.echo(escape_controls(f"{kind}: {note}"), err=True)
    if len(notes) > MAX_NOTES:
        typer.echo(f"{kind}: … and {len(notes) - MAX_NOTES:,} more", err=True)


def print_unknown_roles(messages: Sequence[Mapping[str, Any]]) -> None:
    """Print the roles that no provider knows, on standard error."""
    unknown_roles = sorted({str(message.get("role")) for message in messages} - ROLES)
    if unknown_roles:
        noun = "role" if len(unknown_roles) == 1 else "roles"
        print_notes(
            [
                f"unknown {noun} {', '.join(unknown_roles)}; known: {', '.join(sorted(ROLES))}"
            ],
            "warning",
        )


def format_cell(value: object) -> str:
    """Format a value for a table."""
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else escape_controls(str(value))
    )


def shorten_id(session_id: str) -> str:
    """Shorten an Everthread id to eight characters; ids of other programs stay whole."""
    is_ours = len(session_id) == 32 and set(session_id) <= set("0123456789abcdef")
    return session_id[:8] if is_ours else escape_controls(session_id)


def format_size(count: int) -> str:
    """Format a number of bytes: `512 B`, `1.5 MB`."""
    if count < 1_000:
        return f"{count} B"
    amount = count / 1_000
    units = ["kB", "MB", "GB", "TB"]
    while amount >= 1_000 and len(units) > 1:
        amount = amount / 1_000
        units = units[1:]
    return f"{amount:.1f} {units[0]}"


def format_cost(row: UsageRow) -> str:
    """Format a cost, with a note if some calls have no price; a dash if there are no calls."""
    return row.cost_text if row.calls else "-"


def format_share(part: int, total: int) -> str:
    """Format a percentage with one digit; a dash if the total is zero."""
    return f"{part / total:.1%}" if total else "-"


def print_bars(title: str, rows: Sequence[tuple[str, int, str]]) -> None:
    """Print a bar chart. Each row is a label, a number and a note."""
    label_width, figure_width, note_width = (
        max((len(format_cell(row[column])) for row in rows), default=0)
        for column in range(3)
    )
    largest = max((value for _, value, _ in rows), default=0)
    bar_width = max(console.width - label_width - figure_width - note_width - 6, 10)
    print_text((title, "bold"))
    for label, value, note in rows:
        bar = draw_bar(value, largest, bar_width)
        print_text(
            f"{label:<{label_width}}  {bar:<{bar_width}}  {value:>{figure_width},}  {note}"
        )
    console.print()


def draw_bar(value: int, largest: int, width: int) -> str:
    """Draw a bar in eighths of a column. Any value above zero is visible."""
    if value <= 0 or largest <= 0:
        return ""
    eighths = max(value * width * 8 // largest, 1)
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1] * (eighths % 8 > 0)


@contextmanager
def page_output() -> Iterator[None]:
    """On a terminal, send everything printed inside the block through the pager, with colours."""
    if not console.is_terminal:
        yield
        return
    os.environ.setdefault("LESS", "FRX")
    with console.pager(styles=True):
        yield


@contextmanager
def show_progress(
    piece_count: int,
) -> Iterator[Callable[[int, str], Callable[[int, int], None]]]:
    """Show a progress bar on a terminal for work in `piece_count` pieces.

    It yields a function that takes a piece's number and name and returns the callback for the steps of that piece.
    """
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    error_console = Console(stderr=True)
    with Progress(
        *columns,
        console=error_console,
        transient=True,
        disable=not error_console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=float(piece_count))

        def begin_piece(number: int, source: str) -> Callable[[int, int], None]:
            name = escape_controls(Path(source).name)
            return lambda finished_steps, total_steps: progress.update(
                task, completed=number + finished_steps / total_steps, description=name
            )

        yield begin_piece


LOG_FILE = "errors.log"
"""Name of the log in the Everthread home."""
MAX_LOG_BYTES = 1_000_000
"""Maximum bytes of the log, after which it starts again."""


def log_unexpected_error(error: Exception) -> str:
    """Write the traceback of an unexpected error to the log; return the message for the user."""
    message = redact(f"unexpected error: {type(error).__name__}: {error}")
    details = type(error).__name__
    # An exception whose own `__str__` fails is named by its class.
    with contextlib.suppress(Exception):
        details = redact("".join(traceback.format_exception(error)))
    path = home_directory() / LOG_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_large = path.exists() and path.stat().st_size > MAX_LOG_BYTES
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if is_large else os.O_APPEND)
        with os.fdopen(
            os.open(path, flags, 0o600), "a", encoding="utf-8", errors="replace"
        ) as file:
            file.write(
                f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, everthread {__version__}\n{details}\n"
            )
    except OSError:
        return f"{message}\n{details}"
    return f"{message}\nThe details are in {path}."
