"""Draws commands in a terminal from real runs: `python docs/terminal_pictures.py`.

The runs are on the example session, or on a recorded one (`EVERTHREAD_DATA`). A picture of
a recorded session that is absent stays as it is.
"""

from __future__ import annotations

import gzip
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
    recorded: str = ""
    """The recorded session that the command calls `session.jsonl`."""


RECORDED = "claude-code-13_340918e71b_0.jsonl.gz"
DATA = Path(os.environ.get("EVERTHREAD_DATA", FOLDER.parents[1] / "shared" / "data"))
PICTURES = (
    Picture(
        "replay.svg",
        f"everthread replay {SESSION} --window 64000 --no-recall",
        columns=132,
        max_lines=27,
    ),
    Picture("tune.svg", f"everthread tune {SESSION}", columns=96, max_lines=20),
    Picture(
        "compare.svg",
        "everthread compare session.jsonl",
        columns=112,
        max_lines=20,
        recorded=RECORDED,
    ),
    Picture(
        "continue.svg",
        f"everthread continue {SESSION} --in claude --folder .",
        columns=112,
        max_lines=8,
    ),
    Picture(
        "statusline.svg",
        "everthread statusline --log session.jsonl",
        columns=100,
        max_lines=3,
        recorded=RECORDED,
    ),
)


def draw(picture: Picture) -> str:
    """Run the command with an empty home and return its output as SVG."""
    with tempfile.TemporaryDirectory() as home:
        if picture.recorded:
            text = gzip.decompress((DATA / "logs" / picture.recorded).read_bytes())
            (Path(home) / "session.jsonl").write_bytes(text)
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", *shlex.split(picture.command)],
            cwd=home if picture.recorded else FOLDER.parent,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "HOME": home,
                "EVERTHREAD_HOME": home,
                "COLUMNS": str(picture.columns),
            },
            capture_output=True,
            text=True,
            check=True,
        )
    folder = str(FOLDER.parent).replace("/", "-")
    lines = done.stdout.replace(home, "~").replace(folder, "-project").splitlines()
    if len(lines) > picture.max_lines:
        lines = [*lines[: picture.max_lines - 1], "…"]
    console = Console(record=True, width=picture.columns, file=io.StringIO())
    console.print(Text.from_ansi("\n".join([f"$ {picture.command}", *lines])))
    drawn = console.export_svg(title="everthread", unique_id=Path(picture.name).stem)
    return _FONT.sub("", drawn)


if __name__ == "__main__":
    for picture in PICTURES:
        if picture.recorded and not (DATA / "logs" / picture.recorded).exists():
            continue
        (FOLDER / picture.name).write_text(draw(picture), "utf-8")
