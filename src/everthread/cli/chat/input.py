"""The interface that reads the user's input, and its implementation for lines."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import sys
import threading
from typing import Protocol

from rich.console import Console
from rich.text import Text

PROMPT = "› "
CONTINUATION_PROMPT = "… "
STDIN_DESCRIPTOR = 0


class InputReader(Protocol):
    """A reader of the user's input. `read` and `ask` raise `EOFError` at the end and `KeyboardInterrupt` for Ctrl-C."""

    @property
    def is_interactive(self) -> bool:
        """Return whether a user can answer questions."""
        ...

    async def read(self) -> str:
        """Return the next message."""
        ...

    async def ask(self, question: str) -> str:
        """Return the answer to a question, exactly as typed."""
        ...

    def interrupt(self) -> None:
        """Handle a Ctrl-C that arrived as a signal."""
        ...

    def hold_typing(
        self, *, as_one_message: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Inside the block, keep typed keys for the next message, all lines in one message with `as_one_message`."""
        ...


class LineReader:
    """An `InputReader` of lines, for pipes and simple terminals. A backslash at the end of a line continues it."""

    def __init__(self, console: Console, *, is_interactive: bool) -> None:
        self._console = console
        self.is_interactive = is_interactive
        self._lines: asyncio.Queue[str | type[BaseException]] = asyncio.Queue()
        self._is_reading = False

    async def read(self) -> str:
        text = ""
        prompt = PROMPT
        while True:
            line = await self._read_line(prompt)
            if not line.endswith("\\"):
                return text + line
            text = f"{text}{line[:-1]}\n"
            prompt = CONTINUATION_PROMPT

    async def ask(self, question: str) -> str:
        return (await self._read_line(question)).strip()

    def interrupt(self) -> None:
        self._lines.put_nowait(KeyboardInterrupt)

    def hold_typing(
        self,
        *,
        as_one_message: bool = False,  # noqa: ARG002 - part of the protocol
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def _read_line(self, prompt: str) -> str:
        if not self._is_reading:
            self._is_reading = True
            # A daemon, because a read that never returns must not keep the program from ending.
            threading.Thread(
                target=self._read_stdin, args=(asyncio.get_running_loop(),), daemon=True
            ).start()
        if self.is_interactive:
            self._console.print(Text(prompt), end="")
        line = await self._lines.get()
        if isinstance(line, str):
            return line
        if line is EOFError:
            self._lines.put_nowait(line)
        raise line

    def _read_stdin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the descriptor itself in a thread, because a lock on the buffered stream would outlive the loop."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        partial_line = ""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the chat is over
            while data := _read_bytes():
                *lines, partial_line = (partial_line + decoder.decode(data)).split("\n")
                for line in lines:
                    loop.call_soon_threadsafe(self._lines.put_nowait, line.removesuffix("\r"))
            if partial_line := partial_line + decoder.decode(b"", final=True):
                loop.call_soon_threadsafe(self._lines.put_nowait, partial_line)
            loop.call_soon_threadsafe(self._lines.put_nowait, EOFError)


def _read_bytes() -> bytes:
    try:
        return os.read(STDIN_DESCRIPTOR, 65_536)
    except OSError:
        return b""  # the terminal is closed


def is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
