"""Let Ctrl-C or SIGTERM end a command that serves."""

from __future__ import annotations

import asyncio
import os
import signal
from types import FrameType


def leave_on_interrupt() -> None:
    """Let Ctrl-C end the process at once until `watch_end_signals` takes over.

    A KeyboardInterrupt raised during an import is lost if it falls into a destructor, and ends the process by signal
    if it passes through `exec`, as in dataclasses.
    """

    def leave(signal_number: int, _frame: FrameType | None) -> None:
        os._exit(128 + signal_number)

    signal.signal(signal.SIGINT, leave)


def watch_end_signals() -> asyncio.Event:
    """Return an event of the running loop that Ctrl-C and SIGTERM set."""
    stop_event = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop_event.set)
    return stop_event
