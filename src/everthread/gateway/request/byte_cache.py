"""A cache that is limited by the size of its values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import RLock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
MAX_ENTRY_DIVISOR = 4
"""A value larger than the cache divided by this is not kept, because it would replace most other values."""


class ByteCache(Generic[K, T]):
    """A cache of the most recently used values, limited by bytes, because clients determine the size of each value."""

    def __init__(self, max_bytes: int) -> None:
        self._entries: OrderedDict[K, tuple[T, int]] = OrderedDict()
        self._max_bytes = max_bytes
        self._lock = RLock()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: K) -> T | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def keep(self, key: K, value: T, size: int) -> list[K]:
        """Keep a value unless it is too large; return the keys of the values that are no longer kept."""
        with self._lock:
            self.drop(key)
            if size > self._max_bytes // MAX_ENTRY_DIVISOR:
                return [key]
            self._entries[key] = (value, size)
            self.size += size
            dropped_keys = []
            while self.size > self._max_bytes:
                dropped_keys.append(next(iter(self._entries)))
                self.drop(dropped_keys[-1])
            return dropped_keys

    def drop(self, key: K) -> None:
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.size -= entry[1]
