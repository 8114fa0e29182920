"""A bar for what takes longer than a moment, and the page that comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from everthread.cli.output import visible
from everthread.errors import InputError

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
