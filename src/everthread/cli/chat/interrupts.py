"""Ctrl-C and signals while a turn runs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import typer

T = TypeVar("T")


FORCED_STOP_INTERRUPTS = 3
"""The first Ctrl-C stops the turn and waits for its tools to end; the Ctrl-C with this number does not wait."""


END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class StoppedError(Exception):
    """The work was stopped by Ctrl-C."""


class Interrupts:
    """A handler of Ctrl-C: it stops the running work, or calls `on_idle` if nothing is running."""

    def __init__(self, on_idle: Callable[[], None], print_notice: Callable[[str], None]) -> None:
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
                signal.signal(signal_number, signal.SIG_DFL if handler is None else handler)

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
        if self._interrupt_count == 1 or self._interrupt_count >= FORCED_STOP_INTERRUPTS:
            self._task.cancel()
        else:
            self._print_notice("stopping; waiting for the running tools to end")
