"""How commands print: tables for people, JSON for programs, figures that can be read, progress, unforeseen errors."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
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
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.store.models import UsageRow


class WordConsole(Console):
    """At a terminal text wraps at words; elsewhere a line stays a line, whatever its length."""

    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:
        super().print(*objects, soft_wrap=soft_wrap and not self.is_terminal, **how)


console = WordConsole(highlight=False, emoji=False)

# What a terminal obeys or hides instead of showing: C1 controls, marks that turn the direction of writing, odd line
# ends; and halves of characters, which no encoding holds.
_UNSEEN = (0x7F, *range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPED = {code: f"\\u{code:04x}" for code in (*_UNSEEN, *range(0xD800, 0xE000))}
_VISIBLE = _ESCAPED | {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}


def print_json(value: Any) -> None:
    """Machine-readable output, UTF-8 as it is."""
    typer.echo(json_text(value, indent=2))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON that any terminal and file takes: what cannot be shown or encoded is escaped, as JSON allows."""
    return json.dumps(value, ensure_ascii=False, indent=indent).translate(_ESCAPED)


def visible(text: str) -> str:
    """Text from outside as a terminal may have it: what would move the cursor or change colours is shown instead."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


LEAST = 10
"""Columns of the terminal that a column which gives way keeps."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table. A column whose name ends with `>` is right-aligned, with `…` cut to fit, with `~` folded to fit.

    Where the columns do not fit beside each other, few rows are shown as columns, and many each as a block: no figure
    loses digits and no line is wider than the terminal.
    """
    names, marks = [column.rstrip(">…~") for column in columns], [column[-1:] for column in columns]
    texts = [[cell(value) for value in row] for row in rows]
    say(Text(title, "bold"))
    widths = [max(cell_len(row[at]) for row in [names, *texts]) for at in range(len(columns))]
    pairs = list(zip(widths, marks, strict=True))
    least = sum(min(width, LEAST) if mark in "…~" else width for width, mark in pairs) + 3 * len(columns)
    if least <= console.width:
        _print_columns(names, marks, widths, texts)
    elif len(texts) <= MOST_TURNED and _turned_width(names, texts) <= console.width:
        turned = [[name, *values] for name, *values in zip(names, *texts, strict=True)]
        sizes = [max(map(cell_len, column)) for column in zip(*turned, strict=True)]
        _print_columns(turned[0], ["", *[">"] * len(texts)], sizes, turned[1:])
    else:
        _print_blocks(names, texts)


MOST_TURNED = 6
"""With more rows a table is not turned."""


def _turned_width(names: Sequence[str], texts: Sequence[Sequence[str]]) -> int:
    columns = [names, *texts]
    return sum(max(map(cell_len, column), default=0) for column in columns) + 3 * len(columns)


def _print_columns(
    names: Sequence[str], marks: Sequence[str], widths: Sequence[int], texts: Sequence[Sequence[str]]
) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    fixed = sum(width for width, mark in zip(widths, marks, strict=True) if mark not in ("…", "~"))
    # Columns stand three apart; what the fixed ones leave is shared by those that give way.
    giving = sum(mark in ("…", "~") for mark in marks)
    room = max((console.width - fixed - 3 * len(names)) // max(giving, 1), LEAST)
    for name, mark, width in zip(names, marks, widths, strict=True):
        gives = mark in ("…", "~")
        table.add_column(
            escape(name),
            justify="right" if mark == ">" else "left",
            no_wrap=not gives,
            overflow="fold",
            width=min(width, room) if gives else width,
        )
    for row in texts:
        table.add_row(
            *(escape(_cut(text, room) if mark == "…" else text) for text, mark in zip(row, marks, strict=True))
        )
    console.print(Segments(console.render(table, console.options.update(width=console.width))), soft_wrap=True)


def _print_blocks(names: Sequence[str], texts: Sequence[Sequence[str]]) -> None:
    """Each row as a block: its first value, below it the others with their names."""
    for row in texts:
        console.print(Text(row[0], "bold"), width=console.width)
        told = " · ".join(f"{name} {text}" for name, text in zip(names[1:], row[1:], strict=True) if text)
        console.print(Padding(Text(told), (0, 0, 0, 2)), width=console.width)
    console.print()


def say(text: str | Text) -> None:
    """A line for a person: at a terminal it wraps at words; elsewhere it stays one line."""
    shown = text if isinstance(text, Text) else Text(visible(text))
    console.print(shown, soft_wrap=True)


def _cut(text: str, width: int) -> str:
    """The text in at most so many columns of the terminal (a Chinese character takes two)."""
    width = max(width, LEAST)
    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1).rstrip()}…"


def cell(value: object) -> str:
    """A value as a person reads it."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else visible(str(value))


def short(session_id: str) -> str:
    """An id as it is shown: of the usual ones so much that it is unique, others whole."""
    usual = len(session_id) == 32 and set(session_id) <= set("0123456789abcdef")
    return session_id[:8] if usual else visible(session_id)


def size(count: int) -> str:
    """Bytes: `512 B`, `1.5 MB`."""
    if count < 1_000:
        return f"{count} B"
    amount, units = count / 1_000, ["kB", "MB", "GB", "TB"]
    while amount >= 1_000 and len(units) > 1:
        amount, units = amount / 1_000, units[1:]
    return f"{amount:.1f} {units[0]}"


def money(dollars: Decimal | None) -> str:
    """Dollars, small ones with four digits. What has no price is unknown, never nothing."""
    if dollars is None:
        return "unknown"
    if 0 < dollars < Decimal("0.0001"):
        return "< $0.0001"
    return f"${dollars:,.4f}" if 0 < dollars < 1 else f"${dollars:,.2f}"


def cost_text(row: UsageRow) -> str:
    """A sum that lacks a price says so, with what is known of it."""
    if not row.unpriced:
        return money(row.cost) if row.calls else "-"
    return "unknown" if row.unpriced == row.calls else f"{money(row.cost)} + unknown"


def share(part: int, whole: int) -> str:
    """A percentage with one digit; of nothing it is a dash."""
    return f"{part / whole:.1%}" if whole else "-"


def print_bars(title: str, rows: Sequence[tuple[str, int, str]]) -> None:
    """A chart: a label, a bar as long as the number is large, the number and a note for each row."""
    labels, figures, notes = (max((len(cell(row[at])) for row in rows), default=0) for at in range(3))
    most = max((value for _, value, _ in rows), default=0)
    room = max(console.width - labels - figures - notes - 6, 10)
    console.print(f"[bold]{escape(title)}[/bold]", soft_wrap=True)
    for label, value, note in rows:
        drawn = f"{label:<{labels}}  {bar(value, most, room):<{room}}  {value:>{figures},}  {note}"
        console.print(Text(drawn), soft_wrap=True)
    console.print()


def bar(value: int, most: int, width: int) -> str:
    """A bar in eighths of a column; what is more than nothing is seen."""
    if value <= 0 or most <= 0:
        return ""
    eighths = max(value * width * 8 // most, 1)
    return "█" * (eighths // 8) + "▏▎▍▌▋▊▉"[eighths % 8 - 1] * (eighths % 8 > 0)


@contextmanager
def paged() -> Iterator[None]:
    """What is printed within goes through the pager on a terminal, with colours, and only if it is long."""
    if not console.is_terminal:
        yield
        return
    os.environ.setdefault("LESS", "FRX")
    with console.pager(styles=True):
        yield


SHOWN_AFTER = 1.0
"""Seconds after which a progress bar appears."""


@contextmanager
def progress_of(pieces: int) -> Iterator[Callable[[int, str], Callable[[int, int], None]]]:
    """A bar on the terminal for work in so many pieces; nothing where nobody looks.

    What it gives is asked for each piece, with its number and its name, and gives who is told of its steps.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    drawn = Progress(*columns, console=Console(stderr=True), transient=True)
    task = drawn.add_task("", total=float(pieces))
    started = time.monotonic()

    def of(number: int, source: str) -> Callable[[int, int], None]:
        def step(done: int, steps: int) -> None:
            if not drawn.live.is_started and drawn.console.is_terminal and time.monotonic() - started > SHOWN_AFTER:
                drawn.start()
            drawn.update(task, completed=number + done / steps, description=visible(Path(source).name))

        return step

    try:
        yield of
    finally:
        if drawn.live.is_started:
            drawn.stop()


def write_page(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror or error}") from error


LOG = "errors.log"
"""In the Everthread home."""
LARGEST = 1_000_000
"""Bytes after which it is begun anew."""


def unforeseen(error: Exception) -> str:
    """What to say of an error that is not one of ours; its traceback is written to the log."""
    said = redact(f"something went wrong that should not: {type(error).__name__}: {error}")
    kept = _log(error)
    return f"{said}\nThe details are in {kept}." if kept else f"{said}\n{_told(error)}"


def _log(error: Exception) -> Path | None:
    """Where it was written; None where that is impossible."""
    path = home_directory() / LOG
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LARGEST:
            path.unlink()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # nobody else's business
        with os.fdopen(handle, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, everthread {__version__}\n{_told(error)}\n")
    except OSError:
        return None
    return path


def _told(error: Exception) -> str:
    with contextlib.suppress(Exception):  # an exception whose own words cannot be had is still told by its class
        return redact("".join(traceback.format_exception(error)))
    return type(error).__name__
