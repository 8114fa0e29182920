"""Settings for the whole suite, and what several folders share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.cli.fork_server import ForkServer

# No deadline: the suite never judges by wall time. The machines that run it are small, hence the modest count. The same
# examples each time: what passes here passes everywhere; new ones are drawn with `--hypothesis-profile=torture`, and
# a few of them will do for `make check`.
_SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "suite",
    deadline=None,
    max_examples=30,
    suppress_health_check=_SLOW,
    derandomize=True,
)
settings.register_profile("quick", settings.get_profile("suite"), max_examples=5)
settings.register_profile("torture", deadline=None, max_examples=300, suppress_health_check=_SLOW)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run in asyncio, each in an event loop of its own."""
    return "asyncio"


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One for all tests of a process that run the command or a script."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.cli.fork_server", str(theirs.fileno())]
    process = subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        cwd=Path(__file__).parents[1],
    )
    theirs.close()
    yield ForkServer(ours)
    ours.close()
    process.wait(timeout=120)
