"""No text freezes the patterns: their cost grows with the length of what they read, whatever it repeats."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from everthread.core.decisions import decided, decided_by_user, told_in
from everthread.core.notes import notes
from everthread.core.rules import rules_of_message
from everthread.core.sentences import sentences

CPU_SECONDS = 5.0
"""Far above linear work on 100 KB, far below quadratic work. CPU time, so that a busy machine is no fault."""


@contextmanager
def cpu_limit(seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Ends what uses more CPU time; a running match is interrupted too."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"more than {seconds} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


READERS: tuple[Callable[[str], object], ...] = (
    decided,
    decided_by_user,
    told_in,
    notes,
    lambda text: rules_of_message({"role": "user", "content": text}),
    sentences,
)


@pytest.mark.parametrize("piece", ["please ", "no ", "no, ", "ok, so ", "?", "? x", "bitte ", "por favor ", " ", "\t"])
def test_a_repeated_word_does_not_freeze_what_reads_sentences(piece: str) -> None:
    for size in (154, 1_000, 10_000, 100_000):
        text = (piece * (size // len(piece) + 1))[:size] + "\0"
        for reader in READERS:
            with cpu_limit():
                reader(text)
