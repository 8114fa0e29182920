"""The command as a user runs it: a real process, on a pipe or at a terminal, with a real store in its home."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import shlex
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from everthread.factory import open_store
from everthread.store.store import Store
from tests.cli.claude_code_session import write_session
from tests.cli.fork_server import ForkServer
from tests.providers.conftest import local_file

__all__ = ["local_file"]

T = TypeVar("T")
CommandResult = subprocess.CompletedProcess[str]
RunAtTerminal = Callable[..., tuple[int, str]]
STORE = "everthread.db"


class RunOnStore(Protocol):
    """Runs a coroutine on the store in the home, or on another store; returns its result."""

    def __call__(
        self, work: Callable[[Store], Awaitable[T]], url: str | Path | None = None
    ) -> T: ...


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


def configure(home: Path, text: str) -> None:
    """Write the configuration of a home."""
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(text, "utf-8")


def split_command_line(*parts: str | Path) -> list[str]:
    """Split each text into words as a shell does; a path is one word."""
    return [
        word
        for part in parts
        for word in ([str(part)] if isinstance(part, Path) else shlex.split(part))
    ]


@dataclass(frozen=True)
class Command:
    """The command `everthread`, run without a terminal.

    Its arguments are parts of a command line, split into words as a shell does: `everthread("sessions show", thread)`.
    """

    home: Path
    server: ForkServer

    def __call__(
        self,
        *command_line: str | Path,
        stdin: bytes = b"",
        columns: int = 160,
        env: dict[str, str] | None = None,
    ) -> CommandResult:
        """Run the command and return its output and exit code."""
        arguments = split_command_line(*command_line)
        with (
            tempfile.TemporaryFile() as stdin_file,
            tempfile.TemporaryFile() as stdout_file,
            tempfile.TemporaryFile() as stderr_file,
        ):
            stdin_file.write(stdin)
            stdin_file.seek(0)
            exit_code = self.server.run(
                arguments,
                environment(self.home, columns) | (env or {}),
                [stdin_file.fileno(), stdout_file.fileno(), stderr_file.fileno()],
            )
            stdout_file.seek(0)
            stderr_file.seek(0)
            return CommandResult(
                arguments,
                exit_code,
                stdout_file.read().decode(),
                stderr_file.read().decode(),
            )

    def succeeds(self, *command_line: str | Path, **options: Any) -> str:
        """Run the command, check that it succeeds, and return its output."""
        result = self(*command_line, **options)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def refuses(self, *command_line: str | Path, **options: Any) -> str:
        """Run the command, check that it exits with 2 and prints nothing, and return its error."""
        result = self(*command_line, **options)
        assert (result.returncode, result.stdout) == (2, "")
        return result.stderr

    def json(self, *command_line: str | Path, **options: Any) -> Any:
        """Run the command with `--json` and return the report."""
        return json.loads(self.succeeds(*command_line, "--json", **options))


@pytest.fixture
def everthread(home: Path, fork_server: ForkServer) -> Command:
    return Command(home, fork_server)


@pytest.fixture
def at_terminal(home: Path, fork_server: ForkServer) -> RunAtTerminal:
    """Run the command at a terminal, type the input, and return the exit code and everything shown."""

    def run(command_line: str, typed: bytes = b"") -> tuple[int, str]:
        screen, terminal = pty.openpty()
        fork_server.start(
            split_command_line(command_line),
            environment(home),
            [terminal] * 3,
            terminal=True,
        )
        os.close(terminal)
        os.write(screen, typed)
        output = b""
        try:
            while chunk := os.read(screen, 65536):
                output += chunk
        except OSError:
            pass  # the terminal is gone with the process that used it
        os.close(screen)
        return fork_server.wait(), output.decode()

    return run


@pytest.fixture
def run_on_store(home: Path) -> RunOnStore:
    """Run a coroutine on the store in the home, or on another store; return its result."""

    def run(work: Callable[[Store], Awaitable[T]], url: str | Path | None = None) -> T:
        async def run_and_close() -> T:
            store = open_store(url or home / STORE)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run_and_close())

    return run


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def user_environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user whose home holds one session and no Everthread files."""
    folder = tmp_path / "person"
    write_session(folder)
    return {
        "HOME": str(folder),
        "XDG_DATA_HOME": "",
        "CLAUDE_CONFIG_DIR": "",
        "CODEX_HOME": "",
    }
