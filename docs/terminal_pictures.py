"""Draws commands in a terminal from real runs on the example session: `python docs/terminal_pictures.py`."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parent
SESSION = "examples/long_session.json"
_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
"""Fonts that a browser would fetch from the network."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A command, and how much of its output is shown."""

    name: str
    command: str
    columns: int
    max_lines: int


PICTURES = (
    Picture(
        "replay.svg",
        f"everthread replay {SESSION} --window 64000 --no-recall",
        columns=132,
        max_lines=27,
    ),
    Picture("tune.svg", f"everthread tune {SESSION}", columns=96, max_lines=20),
)


def draw(picture: Picture) -> str:
    """Run the command with an empty home and return its output as SVG."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", *shlex.split(picture.command)],
            cwd=FOLDER.parent,
            env={
                **os.environ,
                "EVERTHREAD_HOME": home,
                "COLUMNS": str(picture.columns),
            },
            capture_output=True,
            text=True,
            check=True,
        )
    lines = done.stdout.splitlines()
    if len(lines) > picture.max_lines:
        lines = [*lines[: picture.max_lines - 1], "…"]
    console = Console(record=True, width=picture.columns, file=io.StringIO())
    console.print(Text.from_ansi("\n".join([f"$ {picture.command}", *lines])))
    drawn = console.export_svg(title="everthread", unique_id=Path(picture.name).stem)
    return _FONT.sub("", drawn)


if __name__ == "__main__":
    for picture in PICTURES:
        (FOLDER / picture.name).write_text(draw(picture), "utf-8")
