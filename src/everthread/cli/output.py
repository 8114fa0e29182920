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
    from everthread.store.records import UsageRow


class WordConsole(Console):
    """Wraps text at words on a terminal. Elsewhere a line stays one line, unless `soft_wrap` is False."""

    def print(
        self, *objects: Any, soft_wrap: bool | None = None, **options: Any
    ) -> None:
        super().print(
            *objects,
            soft_wrap=not self.is_terminal if soft_wrap is None else soft_wrap,
            **options,
        )


console = WordConsole(highlight=False, emoji=False)

# Characters that a terminal does not show: C1 controls, direction marks, unusual line ends; and surrogates, which
# cannot be encoded.
_INVISIBLE = (
    0x7F,
    *range(0x80, 0xA0),
    0x61C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
)
_ESCAPED = {code: f"\\u{code:04x}" for code in (*_INVISIBLE, *range(0xD800, 0xE000))}
_VISIBLE = _ESCAPED | {
    code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)
}


def print_json(value: Any) -> None:
    """Print JSON for programs."""
    typer.echo(json_text(value, indent=2))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Encode as JSON in which every character that a terminal or a file cannot take is escaped."""
    return json.dumps(value, ensure_ascii=False, indent=indent).translate(_ESCAPED)


def visible(text: str) -> str:
    """Make control characters in foreign text visible, so that they cannot move the cursor or change colours."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


MAX_ROWS = 20
"""Rows of a long table that are shown without `--all`."""
MIN_COLUMN_WIDTH = 10
"""The fewest terminal columns of a table column that can shrink."""
MIN_LINE_COLUMN_WIDTH = 24
"""The same in a table with one line for each row, which leaves out columns instead."""


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    most: int | None = None,
) -> None:
    """Print a table. A column name ending in `>` is right-aligned, in `…` cut to fit, in `~` folded to fit.

    A column without any value is left out. A table too wide for the terminal is printed row by row as blocks: no
    figure loses digits and no line is wider than the terminal. `most`: rows that are shown without `--all`.
    """
    every = list(rows)
    title = shorten_path(title, console.width)
    cells = [[format_cell(value) for value in row] for row in every[:most]]
    filled = [
        at for at in range(len(columns)) if not cells or any(row[at] for row in cells)
    ]
    names = [columns[at].rstrip(">…~") for at in filled]
    marks = [columns[at][-1:] for at in filled]
    cells = [[row[at] for at in filled] for row in cells]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    is_flexible = [mark in ("…", "~") for mark in marks]
    margins = 3 * len(marks)
    fixed = (
        sum(
            width
            for width, flexible in zip(widths, is_flexible, strict=True)
            if not flexible
        )
        + margins
    )
    room = max((console.width - fixed) // max(sum(is_flexible), 1), MIN_COLUMN_WIDTH)
    widths = [
        min(width, room) if flexible else width
        for width, flexible in zip(widths, is_flexible, strict=True)
    ]
    print_text((title, "bold"))
    if sum(widths) + margins > console.width:
        _print_blocks(names, cells)
    else:
        _print_columns(names, marks, widths, cells)
    if len(every) > len(cells):
        print_text(f"… and {len(every) - len(cells):,} more (--all shows them)\n")


def print_lines(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    """Print a table with one line for each row at any width, in the same form whatever the rows hold.

    Columns are marked as in `print_table`. Of those that do not fit, the last go first.
    """
    cells = [[format_cell(value) for value in row] for row in rows]
    names = [name.rstrip(">…~") for name in columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    is_flexible = [name.endswith("…") for name in columns]
    count = len(columns)
    while (
        count > 1
        and _room_for_flexible(widths[:count], is_flexible[:count])
        < MIN_LINE_COLUMN_WIDTH
    ):
        count -= 1
    room = max(
        _room_for_flexible(widths[:count], is_flexible[:count]), MIN_COLUMN_WIDTH
    )
    widths = [
        min(width, room) if flexible else width
        for width, flexible in zip(widths, is_flexible, strict=True)
    ]
    print_text((title, "bold"))
    marks = [name[-1:] for name in columns]
    _print_columns(
        names[:count], marks[:count], widths[:count], [row[:count] for row in cells]
    )


def _room_for_flexible(widths: Sequence[int], is_flexible: Sequence[bool]) -> int:
    """Return how wide each column that can shrink may be beside the others."""
    fixed = sum(
        width
        for width, flexible in zip(widths, is_flexible, strict=True)
        if not flexible
    )
    return (console.width - fixed - 3 * len(widths)) // max(sum(is_flexible), 1)


def shorten_path(text: str, room: int) -> str:
    """Shorten a path from the left, so that its end, the most useful part, stays."""
    return text if len(text) <= room or room < 2 else f"…{text[1 - room :]}"


def _print_columns(
    names: Sequence[str],
    marks: Sequence[str],
    widths: Sequence[int],
    cells: Sequence[Sequence[str]],
) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, mark, width in zip(names, marks, widths, strict=True):
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
    styled = [
        (visible(part[0]), part[1]) if isinstance(part, tuple) else part
        for part in parts
    ]
    console.print(
        Text.assemble(
            *(visible(part) if isinstance(part, str) else part for part in styled)
        )
    )


def print_error(text: str) -> None:
    """Print on standard error; a terminal gets the text wrapped at words."""
    lines = visible(text).splitlines()
    if sys.stderr.isatty():
        lines = _wrap_lines(lines, shutil.get_terminal_size().columns)
    typer.echo("\n".join(lines), err=True)


def hang(text: str, indent: int) -> str:
    """Indent the further lines of a text that begins at a column; on a terminal, wrap it there."""
    lines = text.splitlines()
    if console.is_terminal:
        lines = _wrap_lines(lines, max(console.width - indent, 20))
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


def print_more(offset: int) -> None:
    """Say how to see the next page of a list."""
    print_text(f"… there are more (--offset {offset} shows them)")


MAX_NOTES = 20


def print_notes(notes: Sequence[str], kind: str = "note") -> None:
    """Print on standard error what was not read, so that standard output has the result alone."""
    for note in notes[:MAX_NOTES]:
        typer.echo(visible(f"{kind}: {note}"), err=True)
    if len(notes) > MAX_NOTES:
        typer.echo(f"{kind}: … and {len(notes) - MAX_NOTES:,} more", err=True)


def print_unknown_roles(messages: Sequence[Mapping[str, Any]]) -> None:
    """Name the roles that no provider knows, on standard error."""
    unknown = sorted({str(message.get("role")) for message in messages} - ROLES)
    if unknown:
        noun = "role" if len(unknown) == 1 else "roles"
        print_notes(
            [f"unknown {noun} {', '.join(unknown)}; known: {', '.join(sorted(ROLES))}"],
            "warning",
        )


def format_cell(value: object) -> str:
    """Format a value for a table."""
    return (
        f"{value:,}"
        if isinstance(value, int) and not isinstance(value, bool)
        else visible(str(value))
    )


def shorten_id(session_id: str) -> str:
    """Shorten an Everthread id to eight characters; ids of other programs stay whole."""
    is_ours = len(session_id) == 32 and set(session_id) <= set("0123456789abcdef")
    return session_id[:8] if is_ours else visible(session_id)


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
    """Format a cost. Where some calls have no price, say so beside the rest."""
    return row.cost_text if row.calls else "-"


def format_share(part: int, total: int) -> str:
    """Format a percentage with one digit; a dash if the total is zero."""
    return f"{part / total:.1%}" if total else "-"


def print_bars(title: str, rows: Sequence[tuple[str, int, str]]) -> None:
    """Print a bar chart. Each row is a label, a number and a note."""
    labels, figures, notes = (
        max((len(format_cell(row[at])) for row in rows), default=0) for at in range(3)
    )
    most = max((value for _, value, _ in rows), default=0)
    room = max(console.width - labels - figures - notes - 6, 10)
    print_text((title, "bold"))
    for label, value, note in rows:
        print_text(
            f"{label:<{labels}}  {draw_bar(value, most, room):<{room}}  {value:>{figures},}  {note}"
        )
    console.print()


def draw_bar(value: int, most: int, width: int) -> str:
    """Draw a bar in eighths of a column. Any value above zero is visible."""
    if value <= 0 or most <= 0:
        return ""
    eighths = max(value * width * 8 // most, 1)
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1] * (eighths % 8 > 0)


@contextmanager
def page_output() -> Iterator[None]:
    """On a terminal, send what is printed within through the pager, with colours."""
    if not console.is_terminal:
        yield
        return
    os.environ.setdefault("LESS", "FRX")
    with console.pager(styles=True):
        yield


@contextmanager
def show_progress(
    pieces: int,
) -> Iterator[Callable[[int, str], Callable[[int, int], None]]]:
    """Show a progress bar on a terminal for work in `pieces` pieces.

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
    errors = Console(stderr=True)
    with Progress(
        *columns, console=errors, transient=True, disable=not errors.is_terminal
    ) as progress:
        task = progress.add_task("", total=float(pieces))

        def begin_piece(number: int, source: str) -> Callable[[int, int], None]:
            name = visible(Path(source).name)
            return lambda done, steps: progress.update(
                task, completed=number + done / steps, description=name
            )

        yield begin_piece


LOG_FILE = "errors.log"
"""In the Everthread home."""
MAX_LOG = 1_000_000
"""Bytes after which the log begins anew."""


def report_unexpected(error: Exception) -> str:
    """Write the traceback of an unexpected error to the log; return the message for the user."""
    message = redact(f"unexpected error: {type(error).__name__}: {error}")
    details = type(error).__name__
    # An exception whose own `__str__` fails is named by its class.
    with contextlib.suppress(Exception):
        details = redact("".join(traceback.format_exception(error)))
    path = home_directory() / LOG_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_large = path.exists() and path.stat().st_size > MAX_LOG
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
