"""Output of the commands: tables and charts for people, JSON for programs, progress bars, unexpected errors."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from everthread._version import __version__
from everthread.config import home_directory
from everthread.core.redaction import redact

if TYPE_CHECKING:
    from everthread.store.models import UsageRow


class WordConsole(Console):
    """Wraps text at words on a terminal. Elsewhere a line stays one line."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        super().print(*objects, soft_wrap=soft_wrap and not self.is_terminal, **options)


console = WordConsole(highlight=False, emoji=False)

# Characters that a terminal does not show: C1 controls, direction marks, unusual line ends; and surrogates, which
# cannot be encoded.
_INVISIBLE = (0x7F, *range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPED = {code: f"\\u{code:04x}" for code in (*_INVISIBLE, *range(0xD800, 0xE000))}
_VISIBLE = _ESCAPED | {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}


def print_json(value: Any) -> None:
    """Print JSON for programs."""
    typer.echo(json_text(value, indent=2))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Encode as JSON in which every character that a terminal or a file cannot take is escaped."""
    return json.dumps(value, ensure_ascii=False, indent=indent).translate(_ESCAPED)


def visible(text: str) -> str:
    """Make control characters in foreign text visible, so that they cannot move the cursor or change colours."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


MIN_COLUMN_WIDTH = 10
"""The fewest terminal columns of a table column that can shrink."""
MOST_TURNED = 6
"""A table with more rows is never turned by 90 degrees."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table. A column name ending in `>` is right-aligned, in `…` cut to fit, in `~` folded to fit.

    A column without any value is left out. A table too wide for the terminal is turned when it has few rows, else
    printed row by row as blocks: no figure loses digits and no line is wider than the terminal.
    """
    cells = [[format_cell(value) for value in row] for row in rows]
    filled = [at for at in range(len(columns)) if not cells or any(row[at] for row in cells)]
    names, marks = [columns[at].rstrip(">…~") for at in filled], [columns[at][-1:] for at in filled]
    cells = [[row[at] for at in filled] for row in cells]
    turned = [[name, *values] for name, *values in zip(names, *cells, strict=True)]
    turned_marks = ["", *[">"] * len(cells)]
    print_text(Text(title, "bold"))
    if _least_width(marks, [names, *cells]) <= console.width:
        _print_columns(marks, [names, *cells])
    elif len(cells) <= MOST_TURNED and _least_width(turned_marks, turned) <= console.width:
        _print_columns(turned_marks, turned)
    else:
        _print_blocks(names, cells)


def _column_widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*lines, strict=True)]


def _least_width(marks: Sequence[str], lines: Sequence[Sequence[str]]) -> int:
    """The columns are three apart, with one side of padding each."""
    widths = zip(_column_widths(lines), marks, strict=True)
    return sum(min(width, MIN_COLUMN_WIDTH) if mark in ("…", "~") else width for width, mark in widths) + 3 * len(marks)


def _print_columns(marks: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table whose first line is its head. Columns that can shrink share what the fixed ones leave."""
    widths = _column_widths(lines)
    fixed = sum(width for width, mark in zip(widths, marks, strict=True) if mark not in ("…", "~"))
    flexible = sum(mark in ("…", "~") for mark in marks)
    room = max((console.width - fixed - 3 * len(marks)) // max(flexible, 1), MIN_COLUMN_WIDTH)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, mark, width in zip(lines[0], marks, widths, strict=True):
        is_flexible = mark in ("…", "~")
        table.add_column(
            escape(name),
            justify="right" if mark == ">" else "left",
            no_wrap=not is_flexible,
            overflow="fold",
            width=min(width, room) if is_flexible else width,
        )
    for row in lines[1:]:
        table.add_row(
            *(escape(_cut(text, room) if mark == "…" else text) for text, mark in zip(row, marks, strict=True))
        )
    console.print(Segments(console.render(table, console.options.update(width=console.width))), soft_wrap=True)


def _print_blocks(names: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print each row as a block: its first value, and below it the other values with their names."""
    for row in cells:
        console.print(Text(row[0], "bold"), width=console.width)
        lines = [""]
        for value in (f"{name} {text}" for name, text in zip(names[1:], row[1:], strict=True) if text):
            if lines[-1] and cell_len(f"  {lines[-1]} · {value}") > console.width:
                lines.append("")
            lines[-1] += f" · {value}" if lines[-1] else value
        console.print(Padding(Text("\n".join(lines)), (0, 0, 0, 2)), width=console.width)
    console.print()


INDENT = 2


def hang(text: Text, target: Console = console) -> Text:
    """Wrap lines at words for a terminal, each with its continuation indented; elsewhere a line stays one line."""
    if not target.is_terminal:
        return text
    lines: list[Text] = []
    for line in text.split("\n", allow_blank=True):
        first = line.wrap(target, target.width)[0] if line.plain.strip() else line
        rest = line[len(first.plain) :]
        rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
        lines += [first, *(Text(" " * INDENT) + part for part in rest.wrap(target, target.width - INDENT) if part)]
    return Text("\n").join(lines)


def print_text(text: str | Text) -> None:
    """Print a paragraph for a person, with control characters made visible."""
    console.print(text if isinstance(text, Text) else Text(visible(text)), soft_wrap=True)


MOST_NOTES = 20


def print_notes(notes: Sequence[str]) -> None:
    """Print on standard error what was not read, so that standard output has the result alone."""
    for note in notes[:MOST_NOTES]:
        typer.echo(visible(f"note: {note}"), err=True)
    if len(notes) > MOST_NOTES:
        typer.echo(f"note: … and {len(notes) - MOST_NOTES:,} more", err=True)


def _cut(text: str, width: int) -> str:
    """Cut a text to a number of terminal columns (a Chinese character takes two)."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def format_cell(value: object) -> str:
    """Format a value for a table."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else visible(str(value))


def shorten_id(session_id: str) -> str:
    """Shorten an id of ours to eight characters; ids of other programs stay whole."""
    is_ours = len(session_id) == 32 and set(session_id) <= set("0123456789abcdef")
    return session_id[:8] if is_ours else visible(session_id)


def format_size(count: int) -> str:
    """Format a number of bytes: `512 B`, `1.5 MB`."""
    if count < 1_000:
        return f"{count} B"
    amount, units = count / 1_000, ["kB", "MB", "GB", "TB"]
    while amount >= 1_000 and len(units) > 1:
        amount, units = amount / 1_000, units[1:]
    return f"{amount:.1f} {units[0]}"


def format_cost(row: UsageRow) -> str:
    """Format a cost. Where some calls have no price, say so beside the rest."""
    return row.cost_text if row.calls else "-"


def format_share(part: int, total: int) -> str:
    """Format a percentage with one digit; a dash where the total is zero."""
    return f"{part / total:.1%}" if total else "-"


def print_bars(title: str, rows: Sequence[tuple[str, int, str]]) -> None:
    """Print a bar chart. Each row is a label, a number and a note."""
    labels, figures, notes = (max((len(format_cell(row[at])) for row in rows), default=0) for at in range(3))
    most = max((value for _, value, _ in rows), default=0)
    room = max(console.width - labels - figures - notes - 6, 10)
    console.print(f"[bold]{escape(title)}[/bold]", soft_wrap=True)
    for label, value, note in rows:
        line = f"{label:<{labels}}  {draw_bar(value, most, room):<{room}}  {value:>{figures},}  {note}"
        console.print(Text(line), soft_wrap=True)
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


PROGRESS_DELAY = 1.0
"""Seconds after which a progress bar appears."""


@contextmanager
def show_progress(pieces: int) -> Iterator[Callable[[int, str], Callable[[int, int], None]]]:
    """Show a progress bar on a terminal for work in so many pieces.

    It yields a function that takes a piece's number and name and returns the callback for the steps of that piece.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task("", total=float(pieces))
    start = time.monotonic() + PROGRESS_DELAY

    def begin_piece(number: int, source: str) -> Callable[[int, int], None]:
        def step(done: int, steps: int) -> None:
            if not progress.live.is_started and progress.console.is_terminal and time.monotonic() > start:
                progress.start()
            progress.update(task, completed=number + done / steps, description=visible(Path(source).name))

        return step

    try:
        yield begin_piece
    finally:
        if progress.live.is_started:
            progress.stop()


LOG_FILE = "errors.log"
"""In the Everthread home."""
LARGEST_LOG = 1_000_000
"""Bytes after which the log begins anew."""


def report_unexpected(error: Exception) -> str:
    """Write the traceback of an error that is not one of ours to the log; return the message for the user."""
    message = redact(f"unexpected error: {type(error).__name__}: {error}")
    log = _write_log(error)
    return f"{message}\nThe details are in {log}." if log else f"{message}\n{_format_traceback(error)}"


def _write_log(error: Exception) -> Path | None:
    """Append the traceback to the log. Returns the log's path, or None where it cannot be written."""
    path = home_directory() / LOG_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LARGEST_LOG:
            path.unlink()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # readable by the user alone
        with os.fdopen(handle, "a", encoding="utf-8", errors="replace") as file:
            head = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, everthread {__version__}"
            file.write(f"{head}\n{_format_traceback(error)}\n")
    except OSError:
        return None
    return path


def _format_traceback(error: Exception) -> str:
    with contextlib.suppress(Exception):  # an exception whose own `__str__` fails is named by its class
        return redact("".join(traceback.format_exception(error)))
    return type(error).__name__
