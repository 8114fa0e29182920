"""A command in a real terminal: type keys and read the screen without its colours."""

from __future__ import annotations

import os
import pty
import re
import shlex
import termios
import time
from types import TracebackType
from typing import Self

import pexpect
from pexpect.fdpexpect import fdspawn

from tests.cli.fork_server import ForkServer

SIZE = (30, 110)
WAIT_SECONDS = 120.0
CURSOR_QUERY = "\x1b[6n"
"""Asks where the cursor is. A terminal answers; a person never sees it."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-B0-2]|[=>78])")
ENTER = "\r"
ALT_ENTER = "\x1b\r"
CTRL_C = "\x03"
CTRL_D = "\x04"
TAB = "\t"
UP = "\x1b[A"


class Terminal:
    """A keyboard and a screen with the command in it."""

    def __init__(
        self, fork_server: ForkServer, command_line: str, environment: dict[str, str]
    ) -> None:
        screen, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, SIZE)
        variables = {
            key: value for key, value in environment.items() if key not in ("COLUMNS", "LINES")
        }
        fork_server.start(shlex.split(command_line), variables, [terminal] * 3, terminal=True)
        os.close(terminal)
        self._fork_server = fork_server
        self._screen = fdspawn(screen, encoding="utf-8", codec_errors="replace")
        self._has_ended = False
        self.raw = ""
        self._answered_queries = 0
        self._position = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._has_ended:
            self._end()

    @property
    def shown(self) -> str:
        """Return everything shown so far."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def type(self, text: str, end: str = ENTER) -> None:
        """Type keys at the speed of a machine."""
        self._screen.send(text + end)

    def enter(self, text: str, *words: str, end: str = ENTER) -> str:
        """Type a text and wait for these words, in order."""
        self.type(text, end)
        return self.wait_for(*words)

    def wait_for(self, *words: str) -> str:
        """Wait for new words, in order; return the screen up to the last of them."""
        return [self._wait_for_text(text) for text in words][-1]

    def _wait_for_text(self, text: str) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in self.shown[self._position :]:
            is_running = self._read()
            is_shown = text in self.shown[self._position :]
            if not is_running and not is_shown:
                raise AssertionError(f"it ended, and {text!r} was never shown:\n{self.shown}")
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{text!r} was not shown within {WAIT_SECONDS} s:\n{self.shown}"
                )
        start = self._position
        self._position = self.shown.index(text, start) + len(text)
        return self.shown[start : self._position]

    def wait_for_exit(self) -> int:
        """Wait for the program to end; return its exit code."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self._read():
            assert time.monotonic() < deadline, f"it did not end:\n{self.shown}"
        return self._end()

    def _end(self) -> int:
        """Close the terminal, which ends every program in it."""
        self._has_ended = True
        self._screen.close()
        return self._fork_server.wait()

    def _read(self) -> bool:
        try:
            self.raw += self._screen.read_nonblocking(65_536, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        for _ in range(self.raw.count(CURSOR_QUERY) - self._answered_queries):
            self._answered_queries += 1
            self._screen.send("\x1b[1;1R")
        return True
