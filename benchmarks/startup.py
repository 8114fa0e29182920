"""How long a person waits for `--help`: ours beside that of others, in turns, in one run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers import PeerAbsentError, environment
from benchmarks.table import Row

PEERS = ("litellm", "llm")
ROUNDS = 7
GOAL = 3.0


def run() -> list[Row]:
    commands = {"everthread": Path(sys.executable).with_name("everthread")}
    missing = {}
    for name in PEERS:
        try:
            commands[name] = environment(name).with_name(name)
        except PeerAbsentError as error:
            missing[name] = str(error)
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS + 1):  # the first round fills the disk's cache and is not counted
        for name, command in commands.items():
            taken[name].append(_seconds(command))
    medians = {name: statistics.median(times[1:]) for name, times in taken.items()}
    ours = medians.pop("everthread")
    rows = [Row("`everthread --help`", f"{1_000 * ours:.0f} ms")]
    for name, theirs in medians.items():
        ratio = theirs / ours
        figure = f"{1_000 * theirs:.0f} ms, {ratio:.1f} x ours"
        rows.append(Row(f"`{name} --help`", figure, f"≥ {GOAL:.0f} x", ratio >= GOAL))
    return rows + [Row(f"`{name} --help`", f"absent: {why}") for name, why in missing.items()]


def _seconds(command: Path) -> float:
    started = time.perf_counter()
    subprocess.run([str(command), "--help"], check=True, capture_output=True)  # noqa: S603 - commands of our own choice
    return time.perf_counter() - started
