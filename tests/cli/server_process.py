"""A command that serves, as a process that Ctrl-C ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def start_server(
    home: Path, command_line: str, stderr: Any = subprocess.PIPE
) -> Iterator[tuple[Any, str]]:
    """Yield the process and its first line; then end it by Ctrl-C and check its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-m", "everthread", *shlex.split(command_line)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "EVERTHREAD_HOME": str(home)},
    )
    assert process.stdout
    try:
        yield process, process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in (errors or "")
