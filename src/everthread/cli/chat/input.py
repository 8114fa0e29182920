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
from everthread.cli.chat.screen import Screen
from everthread.cli.output import escape_controls

PROMPT = "› "
CONTINUATION_PROMPT = "… "
STDIN_DESCRIPTOR = 0


class InputReader(Protocol):
    """Reads what the user types. `read` and `ask` raise `EOFError` at the end and `KeyboardInterrupt` for Ctrl-C."""

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
        """Inside the block, keep typed keys for the next message. `as_one_message`: join all lines into one."""
        ...


class LineReader:
    """Reads lines, for pipes and simple terminals. A backslash at the end of a line continues it."""

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
            # A daemon: a read that never returns must not keep the program from ending.
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
        """Read the descriptor itself, in a thread: a lock on the buffered stream would outlive the loop."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        partial_line = ""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the chat is over
            while data := _read_bytes():
                *lines, partial_line = (partial_line + decoder.decode(data)).split("\n")
                for line in lines:
                    loop.call_soon_threadsafe(
                        self._lines.put_nowait, line.removesuffix("\r")
                    )
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


T = TypeVar("T")
FORCED_STOP_INTERRUPTS = 3
"""The first Ctrl-C stops the turn and waits for its tools to end; the Ctrl-C with this number does not wait."""


END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class StoppedError(Exception):
    """The work was stopped by Ctrl-C."""


class Interrupts:
    """Send a Ctrl-C to the running work, or to the keyboard reader if nothing runs."""

    def __init__(
        self, on_idle: Callable[[], None], print_notice: Callable[[str], None]
    ) -> None:
        self._on_idle = on_idle
        self._print_notice = print_notice
        self._task: asyncio.Task[Any] | None = None
        self._interrupt_count = 0
        self._on_stop: Callable[[], None] | None = None

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Inside the block, Ctrl-C calls `interrupt`; SIGTERM and SIGHUP cancel this task, so that children end too."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        # Leave alone a signal that is ignored, as under nohup.
        end_signals = [
            signal_number
            for signal_number in END_SIGNALS
            if signal.getsignal(signal_number) is not signal.SIG_IGN
        ]
        handlers = {
            signal_number: signal.getsignal(signal_number)
            for signal_number in (signal.SIGINT, *end_signals)
        }
        received_signals: list[int] = []

        def on_end_signal(signal_number: int) -> None:
            received_signals.append(signal_number)
            if task is not None and len(received_signals) == 1:
                task.cancel()

        loop.add_signal_handler(signal.SIGINT, self.interrupt)
        for signal_number in end_signals:
            loop.add_signal_handler(signal_number, on_end_signal, signal_number)
        try:
            yield
        except asyncio.CancelledError:
            if received_signals:
                raise typer.Exit(128 + received_signals[0]) from None
            raise
        finally:
            for signal_number, handler in handlers.items():
                loop.remove_signal_handler(signal_number)
                signal.signal(
                    signal_number, signal.SIG_DFL if handler is None else handler
                )

    async def run(
        self, work: Coroutine[Any, Any, T], on_stop: Callable[[], None] | None = None
    ) -> T:
        """Do the work; raise `StoppedError` if Ctrl-C stopped it. `on_stop` is called at the first Ctrl-C."""
        task: asyncio.Task[T] = asyncio.create_task(work)
        self._task = task
        self._interrupt_count = 0
        self._on_stop = on_stop
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
            self._on_idle()
            return
        self._interrupt_count += 1
        if self._interrupt_count == 1 and self._on_stop is not None:
            self._on_stop()
        if (
            self._interrupt_count == 1
            or self._interrupt_count >= FORCED_STOP_INTERRUPTS
        ):
            self._task.cancel()
        else:
            self._print_notice("stopping; waiting for the running tools to end")


APPROVAL_QUESTION = "Allow it? [y]es, [n]o (or: n REASON), [a]lways: "
APPROVAL_ANSWERS: dict[str, ApprovalAnswer] = {
    "y": True,
    "yes": True,
    "n": False,
    "no": False,
    "": False,
    "a": "always",
    "always": "always",
}
MAX_PREVIEW_LINES = 60
"""Lines of a change that are shown; the rest is only counted."""
_DIFF_STYLES = (
    ("+++", "bold"),
    ("---", "bold"),
    ("@@", "cyan"),
    ("+", "green"),
    ("-", "red"),
)


class ApprovalPrompt:
    """Asks the user for approval. The end of the input is a no; Ctrl-C stops the whole turn."""

    def __init__(
        self, screen: Screen, reader: InputReader, stop: Callable[[], None]
    ) -> None:
        self._screen = screen
        self._reader = reader
        self._stop = stop

    async def __call__(self, permission: Permission) -> ApprovalAnswer:
        self._screen.flush()
        self._screen.print(render_permission(permission))
        while True:
            try:
                reply_text = await self._reader.ask(APPROVAL_QUESTION)
            except EOFError:
                return False
            except KeyboardInterrupt:
                # A KeyboardInterrupt that leaves this task would end the event loop.
                self._stop()
                raise asyncio.CancelledError from None
            first_word, _, reason = reply_text.strip().partition(" ")
            if first_word.lower() in ("n", "no", "n:", "no:", "no,") and reason.strip():
                return Denial(reason.strip())
            answer = APPROVAL_ANSWERS.get(reply_text.strip().lower())
            if answer is not None:
                return answer
            self._screen.print(Text("Answer y, n or a; Ctrl-C stops the turn.", "dim"))


def render_permission(permission: Permission) -> RenderableType:
    """Show the whole action that the model asks for, with every control character visible."""
    verb = {
        "command": "run",
        "write": "write",
        "cache": "give up the provider's cache",
    }[permission.kind]
    heading = Text.assemble(("⚠ The model wants to ", "yellow"), (verb, "bold yellow"))
    body = Text(
        "\n".join(
            f"  {line}" for line in escape_controls(permission.target).split("\n")
        ),
        "bold",
    )
    return (
        Group(heading, body, _render_change(permission.detail))
        if permission.detail.strip()
        else Group(heading, body)
    )


def _render_change(detail: str) -> Text:
    rows = escape_controls(detail).rstrip("\n").split("\n")
    text = Text()
    for row in rows[:MAX_PREVIEW_LINES]:
        style = next(
            (style for start, style in _DIFF_STYLES if row.startswith(start)), "dim"
        )
        text.append(f"  {row}\n", style)
    if len(rows) > MAX_PREVIEW_LINES:
        text.append(f"  … {len(rows) - MAX_PREVIEW_LINES:,} more lines\n", "dim")
    text.rstrip()
    return text
