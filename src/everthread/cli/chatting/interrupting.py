"""Ctrl-C ends what runs, not the program. A signal to end (the terminal was closed, say) ends both in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import typer

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
