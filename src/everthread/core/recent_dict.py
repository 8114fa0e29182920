"""A dict that keeps a limited number of entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentDict(OrderedDict[K, V]):
    """A dict of at most `max_entries` entries. An entry that is set becomes the newest; the oldest is dropped."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._max_entries:
            self.popitem(last=False)
