"""Fail a test that uses too much CPU time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CPU_SECONDS = 1.0
"""CPU time, so that a busy machine does not fail the test. Linear work on 40 KB takes some hundredths of a second."""


@contextmanager
def cpu_limit(description: str, seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Raise `AssertionError` if the block uses more CPU time; this interrupts a running match too."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"more than {seconds} s of CPU time: {description}")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
