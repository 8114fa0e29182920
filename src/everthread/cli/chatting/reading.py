"""Where words come from: a terminal with an editor, a plain one, or a pipe."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console
from rich.text import Text

PROMPT, MORE = "› ", "… "
STDIN = 0


class Reader(Protocol):
    """Who types. Both calls raise `EOFError` at the end and `KeyboardInterrupt` for Ctrl-C."""

    @property
    def interactive(self) -> bool:
        """Somebody is there to answer questions."""
        ...

    async def read(self) -> str:
        """The next message."""
        ...

    async def ask(self, question: str) -> str:
        """An answer to a question, as it was typed."""
        ...

    def interrupt(self) -> None:
        """Ctrl-C, come as a signal."""
        ...


class LineReader:
    """Lines as they come, for pipes and for terminals that can do no more. A backslash at a line's end goes on."""

    def __init__(self, console: Console, *, interactive: bool) -> None:
        self._console = console
        self._interactive = interactive
        self._lines: asyncio.Queue[str | type[BaseException]] = asyncio.Queue()
        self._started = False

    @property
    def interactive(self) -> bool:
        return self._interactive

    async def read(self) -> str:
        text, prompt = "", PROMPT
        while True:
            line = await self._line(prompt)
            if not line.endswith("\\"):
                return text + line
            text, prompt = f"{text}{line[:-1]}\n", MORE

    async def ask(self, question: str) -> str:
        return (await self._line(question)).strip()

    def interrupt(self) -> None:
        self._lines.put_nowait(KeyboardInterrupt)

    async def _line(self, prompt: str) -> str:
        if not self._started:
            self._started = True
            # A daemon: a read that never returns must not keep the program from ending.
            threading.Thread(target=_read_lines, args=(_into(self._lines),), daemon=True).start()
        if self._interactive:
            self._console.print(Text(prompt), end="")
        line = await self._lines.get()
        if isinstance(line, str):
            return line
        self._lines.put_nowait(line) if line is EOFError else None
        raise line


def _into(lines: asyncio.Queue[str | type[BaseException]]) -> Callable[[str | type[BaseException]], None]:
    loop = asyncio.get_running_loop()

    def put(line: str | type[BaseException]) -> None:
        try:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        except RuntimeError:
            raise SystemExit from None  # the loop is closed: nobody listens any more

    return put


def _read_lines(put: Callable[[str | type[BaseException]], None]) -> None:
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while data := _read():
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        for line in lines:
            put(line.removesuffix("\r"))
    if rest := rest + decoder.decode(b"", final=True):
        put(rest)
    put(EOFError)


def _read() -> bytes:
    """From the descriptor itself: a lock on the buffered stream would outlive the loop."""
    try:
        return os.read(STDIN, 65_536)
    except OSError:
        return b""  # the terminal is gone


def at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


@contextlib.contextmanager
def unechoed() -> Iterator[None]:
    """Within, what is typed ahead is not shown in the middle of an answer; it is there at the next prompt."""
    try:
        before = termios.tcgetattr(STDIN)
    except termios.error:
        yield  # no terminal, no echo
        return
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(STDIN, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
