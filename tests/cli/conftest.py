"""The command as a user runs it: a real process, on a pipe or at a terminal, with a real store in its home."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from everthread.factory import open_store
from everthread.store.store import Store
from tests.cli.fork_server import ForkServer
from tests.providers.conftest import local_file

__all__ = ["local_file"]

T = TypeVar("T")
Answer = subprocess.CompletedProcess[str]
STORE = "everthread.db"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def environment(home: Path, columns: int = 160) -> dict[str, str]:
    return {
        **os.environ,
        "EVERTHREAD_HOME": str(home),
        "COLUMNS": str(columns),
        "PYTHONIOENCODING": "utf-8",
        "TERM": "xterm",
        "PAGER": "cat",
        "TZ": "UTC",
    }


@dataclass(frozen=True)
class Command:
    """The command `everthread`, run without a terminal."""

    home: Path
    server: ForkServer

    def __call__(
        self,
        *arguments: str,
        given: bytes = b"",
        columns: int = 160,
        env: dict[str, str] | None = None,
    ) -> Answer:
        """Run it, whatever it answers."""
        with (
            tempfile.TemporaryFile() as typed,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            typed.write(given)
            typed.seek(0)
            code = self.server.run(
                arguments,
                environment(self.home, columns) | (env or {}),
                [typed.fileno(), out.fileno(), err.fileno()],
            )
            for stream in (out, err):
                stream.seek(0)
            return Answer(
                ["everthread", *arguments],
                code,
                out.read().decode(),
                err.read().decode(),
            )

    def succeeds(self, *arguments: str, **more: Any) -> str:
        """Run it and return what it printed."""
        done = self(*arguments, **more)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refuses(self, *arguments: str, **more: Any) -> str:
        """Run it and return its error: it exits with 2 and prints no result."""
        done = self(*arguments, **more)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    def json(self, *arguments: str, **more: Any) -> Any:
        """Run it with `--json` and return the report."""
        return json.loads(self.succeeds(*arguments, "--json", **more))


@pytest.fixture
def everthread(home: Path, fork_server: ForkServer) -> Command:
    return Command(home, fork_server)


@pytest.fixture
def at_terminal(home: Path, fork_server: ForkServer) -> Any:
    """Run the command at a terminal, type the input, and return the exit code and everything shown."""

    def run(*arguments: str, typed: bytes = b"") -> tuple[int, str]:
        ours, theirs = pty.openpty()
        fork_server.start(arguments, environment(home), [theirs] * 3, terminal=True)
        os.close(theirs)
        os.write(ours, typed)
        shown = b""
        try:
            while some := os.read(ours, 65536):
                shown += some
        except OSError:
            pass  # the terminal is gone with the process that used it
        os.close(ours)
        return fork_server.wait(), shown.decode()

    return run


@pytest.fixture
def fill(home: Path) -> Any:
    """Run a coroutine on the store in the home, or on another store; return its result."""

    def run(work: Callable[[Store], Awaitable[T]], url: str | Path | None = None) -> T:
        async def inside() -> T:
            store = open_store(url or home / STORE)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(inside())

    return run


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder
