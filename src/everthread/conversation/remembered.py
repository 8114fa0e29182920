"""What lookups know of threads by now, so that a page costs what it shows and not the whole history again.

What was said does not change: turns are counted once and only what came since is read, and where each message stands
in a summary's originals is worked out once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

THREADS = 64
"""Threads that are remembered, those last asked about."""
LAYOUTS = 32
"""Summaries of one thread whose originals' places are remembered."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The originals of a summary one after the other: their ids, and how many characters each takes."""

    ids: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        return sum(self.sizes)


@dataclass(slots=True)
class ThreadFacts:
    """One thread: the turn of each message, in the order they were said; layouts by what a summary is called."""

    turns: dict[int, int] = field(default_factory=dict)
    layouts: OrderedDict[str, Layout] = field(default_factory=OrderedDict)

    def keep(self, wanted: str, layout: Layout) -> Layout:
        self.layouts[wanted] = layout
        while len(self.layouts) > LAYOUTS:
            self.layouts.popitem(last=False)
        return layout


class Remembered:
    """For one conversation, or for all that a server answers for. Threads of any tenant: whoever asks was let in."""

    def __init__(self) -> None:
        self._threads: OrderedDict[str, ThreadFacts] = OrderedDict()

    def of(self, thread: str) -> ThreadFacts:
        facts = self._threads.setdefault(thread, ThreadFacts())
        self._threads.move_to_end(thread)
        while len(self._threads) > THREADS:
            self._threads.popitem(last=False)
        return facts
