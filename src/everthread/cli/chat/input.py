"""The user's input: lines, questions for approval, Ctrl-C and signals while a turn runs."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from everthread.agent.approval import ApprovalAnswer, Denial
from everthread.agent.tool_interface import Permission
from everthread.cli.chat.terminal_view import Screen
from everthread.cli.output import visible

PROMPT = "› "
MORE = "… "
STDIN = 0


class InputReader(Protocol):
    """Reads what the user types. `read` and `ask` raise `EOFError` at the end and `KeyboardInterrupt` for Ctrl-C."""

    @property
    def interactive(self) -> bool:
        """A user can answer questions."""
        ...

    async def read(self) -> str:
        """The next message."""
        ...

    async def ask(self, question: str) -> str:
        """Return the answer to a question, exactly as typed."""
        ...

    def interrupt(self) -> None:
        """Take a Ctrl-C that came as a signal."""
        ...

    def hold_typing(
        self, *, as_one_message: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Within, keys are not shown; they wait for the next message. `as_one_message`: all lines together."""
        ...


class LineReader:
    """Reads lines, for pipes and simple terminals. A backslash at the end of a line continues it."""

    def __init__(self, console: Console, *, interactive: bool) -> None:
        self._console = console
        self.interactive = interactive
        self._lines: asyncio.Queue[str | type[BaseException]] = asyncio.Queue()
        self._started = False

    async def read(self) -> str:
        text = ""
        prompt = PROMPT
        while True:
            line = await self._line(prompt)
            if not line.endswith("\\"):
                return text + line
            text = f"{text}{line[:-1]}\n"
            prompt = MORE

    async def ask(self, question: str) -> str:
        return (await self._line(question)).strip()

    def interrupt(self) -> None:
        self._lines.put_nowait(KeyboardInterrupt)

    def hold_typing(
        self,
        *,
        as_one_message: bool = False,  # noqa: ARG002 - as every reader
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def _line(self, prompt: str) -> str:
        if not self._started:
            self._started = True
            # A daemon: a read that never returns must not keep the program from ending.
            threading.Thread(
                target=self._read_stdin, args=(asyncio.get_running_loop(),), daemon=True
            ).start()
        if self.interactive:
            self._console.print(Text(prompt), end="")
        line = await self._lines.get()
        if isinstance(line, str):
            return line
        if line is EOFError:
            self._lines.put_nowait(line)
        raise line

    def _read_stdin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the descriptor itself, in a thread: a lock on the buffered stream would outlive the loop."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the chat is over
            while data := _read_bytes():
                *lines, rest = (rest + decoder.decode(data)).split("\n")
                for line in lines:
                    loop.call_soon_threadsafe(
                        self._lines.put_nowait, line.removesuffix("\r")
                    )
            if rest := rest + decoder.decode(b"", final=True):
                loop.call_soon_threadsafe(self._lines.put_nowait, rest)
            loop.call_soon_threadsafe(self._lines.put_nowait, EOFError)


def _read_bytes() -> bytes:
    try:
        return os.read(STDIN, 65_536)
    except OSError:
        return b""  # the terminal is closed


def at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


T = TypeVar("T")
FORCING_INTERRUPTS = 3
"""The first Ctrl-C stops the turn and lets its tools end in order; this one no longer waits for them."""


END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class StoppedError(Exception):
    """The work was stopped by Ctrl-C."""


class Interrupts:
    """Sends a Ctrl-C to the work that runs, else to the reader of the keyboard."""

    def __init__(
        self, idle: Callable[[], None], print_notice: Callable[[str], None]
    ) -> None:
        self._idle = idle
        self._print_notice = print_notice
        self._task: asyncio.Task[Any] | None = None
        self._times = 0
        self._stopping: Callable[[], None] | None = None

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Within, Ctrl-C calls `interrupt`; SIGTERM and SIGHUP cancel this task, so that children end and are saved."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        # Leave alone a signal that is ignored, as under nohup.
        ending = [
            number
            for number in END_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        ]
        handlers = {
            number: signal.getsignal(number) for number in (signal.SIGINT, *ending)
        }
        received: list[int] = []

        def end(number: int) -> None:
            received.append(number)
            if task is not None and len(received) == 1:
                task.cancel()

        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        for number in ending:
            loop.add_signal_handler(number, end, number)
        try:
            yield
        except asyncio.CancelledError:
            if received:
                raise typer.Exit(128 + received[0]) from None
            raise
        finally:
            for number, handler in handlers.items():
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    async def run(
        self, work: Coroutine[Any, Any, T], stopping: Callable[[], None] | None = None
    ) -> T:
        """Do the work; `StoppedError` if Ctrl-C stopped it. `stopping` is called at the first Ctrl-C."""
        task: asyncio.Task[T] = asyncio.create_task(work)
        self._task = task
        self._times = 0
        self._stopping = stopping
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

    def interrupt(self) -> None:
        """Handle one Ctrl-C."""
        if self._task is None:
            self._idle()
            return
        self._times += 1
        if self._times == 1 and self._stopping is not None:
            self._stopping()
        if self._times == 1 or self._times >= FORCING_INTERRUPTS:
            self._task.cancel()
        else:
            self._print_notice("stopping; waiting for the running tools to end")


QUESTION = "Allow it? [y]es, [n]o (or: n REASON), [a]lways: "
ANSWERS: dict[str, ApprovalAnswer] = {
    "y": True,
    "yes": True,
    "n": False,
    "no": False,
    "": False,
    "a": "always",
    "always": "always",
}
MAX_PREVIEW_LINES = 60
"""Lines of a change that are shown; the others are counted."""
_DIFF = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


class ApprovalPrompt:
    """Asks the user for approval. The end of the input is a no; Ctrl-C stops the whole turn."""

    def __init__(
        self, screen: Screen, reader: InputReader, stop: Callable[[], None]
    ) -> None:
        self._screen = screen
        self._reader = reader
        self._stop = stop

    async def __call__(self, permission: Permission) -> ApprovalAnswer:
        self._screen.settle()
        self._screen.print(render_permission(permission))
        while True:
            try:
                typed = await self._reader.ask(QUESTION)
            except EOFError:
                return False
            except KeyboardInterrupt:
                # A KeyboardInterrupt that leaves this task would end the event loop.
                self._stop()
                raise asyncio.CancelledError from None
            first, _, reason = typed.strip().partition(" ")
            if first.lower() in ("n", "no", "n:", "no:", "no,") and reason.strip():
                return Denial(reason.strip())
            reply = ANSWERS.get(typed.strip().lower())
            if reply is not None:
                return reply
            self._screen.print(Text("Answer y, n or a; Ctrl-C stops the turn.", "dim"))


def render_permission(permission: Permission) -> RenderableType:
    """Show the whole action that the model asks for, with every control character visible."""
    verb = {
        "command": "run",
        "write": "write",
        "cache": "give up the provider's cache",
    }[permission.kind]
    head = Text.assemble(("⚠ The model wants to ", "yellow"), (verb, "bold yellow"))
    body = Text(
        "\n".join(f"  {line}" for line in visible(permission.what).split("\n")), "bold"
    )
    return (
        Group(head, body, _render_change(permission.detail))
        if permission.detail.strip()
        else Group(head, body)
    )


def _render_change(detail: str) -> Text:
    rows = visible(detail).rstrip("\n").split("\n")
    text = Text()
    for row in rows[:MAX_PREVIEW_LINES]:
        style = next((style for start, style in _DIFF if row.startswith(start)), "dim")
        text.append(f"  {row}\n", style)
    if len(rows) > MAX_PREVIEW_LINES:
        text.append(f"  … {len(rows) - MAX_PREVIEW_LINES:,} more lines\n", "dim")
    text.rstrip()
    return text
