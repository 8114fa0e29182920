"""The person's side: lines or an editor, questions for approval, the keyboard while a turn runs, Ctrl-C."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from everthread.agent.approval import No, Said
from everthread.agent.base import Permission
from everthread.cli.chat.render import Screen
from everthread.cli.output import visible

PROMPT, MORE = "› ", "… "
STDIN = 0


class InputReader(Protocol):
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


T = TypeVar("T")
FORCED = 3
"""The first Ctrl-C asks to stop, and tools are ended in good order; from this one on it no longer waits for that."""


ENDING = (signal.SIGTERM, signal.SIGHUP)


class StoppedError(Exception):
    """What ran was stopped by Ctrl-C."""


class Interrupts:
    """Where a Ctrl-C goes: to the work that runs, else to whoever reads the keyboard."""

    def __init__(self, idle: Callable[[], None], told: Callable[[str], None]) -> None:
        self._idle, self._told = idle, told
        self._task: asyncio.Task[Any] | None = None
        self._times = 0
        self._stopping: Callable[[], None] | None = None

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Within, Ctrl-C comes here; a signal to end cancels this task, so that children are ended and all is kept."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        ending = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # as nohup has it
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ending)}
        came: list[int] = []

        def end(number: int) -> None:
            came.append(number)
            if task is not None and len(came) == 1:
                task.cancel()

        loop.add_signal_handler(signal.SIGINT, self.happen)
        for number in ending:
            loop.add_signal_handler(number, end, number)
        try:
            yield
        except asyncio.CancelledError:
            if came:
                raise typer.Exit(128 + came[0]) from None
            raise
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def run(self, work: Coroutine[Any, Any, T], stopping: Callable[[], None] | None = None) -> T:
        """Do the work; `StoppedError` if somebody stopped it. `stopping` is called when that begins."""
        task: asyncio.Task[T] = asyncio.create_task(work)
        self._task = task
        self._times, self._stopping = 0, stopping
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            self._task = None
        if task.cancelled():
            raise StoppedError
        return task.result()

    def happen(self) -> None:
        """Somebody pressed Ctrl-C."""
        if self._task is None:
            self._idle()
            return
        self._times += 1
        if self._times == 1 and self._stopping is not None:
            self._stopping()
        if self._times == 1 or self._times >= FORCED:
            self._task.cancel()
        else:
            self._told("stopping; what runs is being ended")


QUESTION = "Allow it? [y]es, [n]o (or: n REASON), [a]lways: "
ANSWERS: dict[str, Said] = {
    "y": True, "yes": True, "n": False, "no": False, "": False, "a": "always", "always": "always",
}  # fmt: skip
LINES = 60
"""Of a change that is shown; the rest is counted."""
_DIFF = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


class Asker:
    """Puts the questions. The end of the input is a no; Ctrl-C stops the whole turn."""

    def __init__(self, screen: Screen, reader: InputReader, stop: Callable[[], None]) -> None:
        self._screen, self._reader, self._stop = screen, reader, stop

    async def __call__(self, permission: Permission) -> Said:
        self._screen.settle()
        self._screen.print(shown(permission))
        while True:
            try:
                typed = await self._reader.ask(QUESTION)
            except EOFError:
                return False
            except KeyboardInterrupt:
                # It must not leave this task: the event loop would end with it.
                self._stop()
                raise asyncio.CancelledError from None
            first, _, reason = typed.strip().partition(" ")
            if first.lower() in ("n", "no", "n:", "no:", "no,") and reason.strip():
                return No(reason.strip())
            said = ANSWERS.get(typed.strip().lower())
            if said is not None:
                return said
            self._screen.print(Text("Answer y, n or a; Ctrl-C stops the turn.", "dim"))


def shown(permission: Permission) -> RenderableType:
    """What is asked for, as a person must see it before saying yes: nothing hidden, every odd character visible."""
    verb = {"command": "run", "write": "write", "cache": "give up the provider's cache"}[permission.kind]
    head = Text.assemble(("⚠ The model wants to ", "yellow"), (verb, "bold yellow"))
    body = Text("\n".join(f"  {line}" for line in visible(permission.what).split("\n")), "bold")
    return Group(head, body, _detail(permission.detail)) if permission.detail.strip() else Group(head, body)


def _detail(detail: str) -> Text:
    rows = visible(detail).rstrip("\n").split("\n")
    text = Text()
    for row in rows[:LINES]:
        style = next((style for start, style in _DIFF if row.startswith(start)), "dim")
        text.append(f"  {row}\n", style)
    if len(rows) > LINES:
        text.append(f"  … {len(rows) - LINES:,} more lines\n", "dim")
    text.rstrip()
    return text
