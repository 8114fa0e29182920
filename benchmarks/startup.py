"""Measure starts: `--help` beside that of other programs, and the CPU that `compress` takes in a new process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.peers import PeerAbsentError, create_environment
from benchmarks.table import Row

PEERS = ("litellm", "llm")
ROUNDS = 7
MIN_RATIO = 3.0


MAX_IMPORT_MS = 200
MAX_FIRST_CALL_MS = 150
"""More than a later call."""
COMPRESS_SCRIPT = """
import json, time
words = "The test of the harbour crane failed again; I read src/crane/motor.py and changed the limit to 40. "
messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} {words * 8}"} for n in range(400)]
marks = [time.process_time()]
from everthread import compress
marks.append(time.process_time())
for _ in range(4):
    compress(messages, window=32_000, force=True)
    marks.append(time.process_time())
print(json.dumps([after - before for before, after in zip(marks, marks[1:])]))
"""


def run() -> list[Row]:
    return [*_measure_compress(), *_measure_help()]


def _measure_compress() -> list[Row]:
    """Measure the least CPU of several processes; the first one writes the byte code and is not counted."""
    runs = [_run_compress() for _ in range(ROUNDS + 1)][1:]
    import_ms = 1_000 * min(times[0] for times in runs)
    first_ms = 1_000 * min(times[1] for times in runs)
    later_ms = 1_000 * min(min(times[2:]) for times in runs)
    extra_ms = first_ms - later_ms
    return [
        Row(
            "`from everthread import compress`",
            f"{import_ms:.0f} ms CPU",
            f"≤ {MAX_IMPORT_MS} ms",
            import_ms <= MAX_IMPORT_MS,
        ),
        Row(
            "the first `compress()` of a process",
            f"{first_ms:.0f} ms CPU, later ones {later_ms:.0f}",
            f"≤ {MAX_FIRST_CALL_MS} ms more",
            extra_ms <= MAX_FIRST_CALL_MS,
        ),
    ]


def _run_compress() -> list[float]:
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    process = subprocess.run(  # noqa: S603 - a program of our own
        [sys.executable, "-c", COMPRESS_SCRIPT],
        check=True,
        capture_output=True,
        env=variables,
    )
    times: list[float] = json.loads(process.stdout)
    return times


def _measure_help() -> list[Row]:
    commands = {"everthread": Path(sys.executable).with_name("everthread")}
    missing_peers = {}
    for name in PEERS:
        try:
            commands[name] = create_environment(name).with_name(name)
        except PeerAbsentError as error:
            missing_peers[name] = str(error)
    seconds_by_name: dict[str, list[float]] = {name: [] for name in commands}
    # The first round fills the disk's cache and is not counted.
    for _ in range(ROUNDS + 1):
        for name, command in commands.items():
            seconds_by_name[name].append(_time_help(command))
    medians = {name: statistics.median(times[1:]) for name, times in seconds_by_name.items()}
    own_seconds = medians.pop("everthread")
    rows = [Row("`everthread --help`", f"{1_000 * own_seconds:.0f} ms")]
    for name, peer_seconds in medians.items():
        ratio = peer_seconds / own_seconds
        figure = f"{1_000 * peer_seconds:.0f} ms, {ratio:.1f} x ours"
        rows.append(Row(f"`{name} --help`", figure, f"≥ {MIN_RATIO:.0f} x", ratio >= MIN_RATIO))
    return rows + [
        Row(f"`{name} --help`", f"absent: {reason}") for name, reason in missing_peers.items()
    ]


def _time_help(command: Path) -> float:
    started = time.perf_counter()
    subprocess.run([str(command), "--help"], check=True, capture_output=True)  # noqa: S603 - commands of our own choice
    return time.perf_counter() - started
