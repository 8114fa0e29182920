"""A command in a real terminal: type keys and read the screen without its colours."""

from __future__ import annotations

import os
import pty
import re
import termios
import time
from types import TracebackType
from typing import Self

import pexpect
from pexpect.fdpexpect import fdspawn

from tests.cli.fork_server import ForkServer

SIZE = (30, 110)
WAIT = 120.0
WHERE = "\x1b[6n"
"""`Where is the cursor?` A terminal answers; a person never sees it."""
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-B0-2]|[=>78])"
)
ENTER = "\r"
ALT_ENTER = "\x1b\r"
CTRL_C = "\x03"
CTRL_D = "\x04"
TAB = "\t"
UP = "\x1b[A"


class Terminal:
    """A keyboard and a screen with the command in it."""

    def __init__(
        self, fork_server: ForkServer, *arguments: str, environment: dict[str, str]
    ) -> None:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, SIZE)
        given = {
            key: value
            for key, value in environment.items()
            if key not in ("COLUMNS", "LINES")
        }
        fork_server.start(arguments, given, [theirs] * 3, terminal=True)
        os.close(theirs)
        self._zygote = fork_server
        self._screen = fdspawn(ours, encoding="utf-8", codec_errors="replace")
        self._left = False
        self.raw = ""
        self._asked = 0
        self._at = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._left:
            self._end()

    @property
    def shown(self) -> str:
        """Return everything shown so far."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def type(self, text: str, end: str = ENTER) -> None:
        """Type keys at the speed of a machine."""
        self._screen.send(text + end)

    def say(self, text: str, *words: str, end: str = ENTER) -> str:
        """Type a text and wait for these words, in order."""
        self.type(text, end)
        return self.see(*words)

    def see(self, *words: str) -> str:
        """Wait for new words, in order; return the screen up to the last of them."""
        return [self._see(some) for some in words][-1]

    def _see(self, words: str) -> str:
        until = time.monotonic() + WAIT
        while words not in self.shown[self._at :]:
            alive = self._read()
            if not alive and words not in self.shown[self._at :]:
                raise AssertionError(
                    f"it ended, and {words!r} was never shown:\n{self.shown}"
                )
            if time.monotonic() > until:
                raise AssertionError(
                    f"{words!r} was not shown within {WAIT} s:\n{self.shown}"
                )
        found = self.shown.index(words, self._at) + len(words)
        text = self.shown[self._at : found]
        self._at = found
        return text

    def leave(self) -> int:
        """Wait for the program to end; return its exit code."""
        until = time.monotonic() + WAIT
        while self._read():
            assert time.monotonic() < until, f"it did not end:\n{self.shown}"
        return self._end()

    def _end(self) -> int:
        """Close the terminal, which ends every program in it."""
        self._left = True
        self._screen.close()
        return self._zygote.wait()

    def _read(self) -> bool:
        try:
            self.raw += self._screen.read_nonblocking(65_536, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        for _ in range(self.raw.count(WHERE) - self._asked):
            self._asked += 1
            self._screen.send("\x1b[1;1R")
        return True
