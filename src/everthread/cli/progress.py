"""A progress bar on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from everthread.cli.output import escape_controls


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
