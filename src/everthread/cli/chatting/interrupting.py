"""Ctrl-C ends what runs, not the program."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
FORCED = 3
"""The first Ctrl-C asks to stop, and tools are ended in good order; from this one on it no longer waits for that."""


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
        """Within, Ctrl-C comes here."""
        loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
        loop.add_signal_handler(signal.SIGINT, self.happen)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, before)

    async def run(self, work: Coroutine[Any, Any, T], stopping: Callable[[], None] | None = None) -> T:
        """Do the work; `StoppedError` if somebody stopped it. `stopping` is called when that begins."""
        task: asyncio.Task[T] = asyncio.create_task(work)
        self._task = task
        self._times, self._stopping = 0, stopping
        try:
            await asyncio.wait([task])
        finally:
            self._task = None
            task.cancel()
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
