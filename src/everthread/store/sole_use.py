"""Whether this process is the only gateway on a SQLite store, known by a lock on a file beside the store."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

LOCK_FILE_SUFFIX = "-gateway"


class SoleUse:
    """The lock of the only gateway. The system frees it when the process ends, however that comes about.

    The first gateway holds the file exclusively. Another one cannot: it asks by writing to the file, then shares it.
    The first one looks for that each time before it relies on being alone, and gives the exclusive lock up for good.
    """

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(store.name + LOCK_FILE_SUFFIX)
        self._file: int | None = None
        self._is_exclusive = False
        self._is_shared = False
        with suppress(OSError):  # no such file can be made: then never alone
            self._file = os.open(
                self._path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600
            )
            self._is_exclusive = self._lock(fcntl.LOCK_EX)
            if self._is_exclusive:
                os.ftruncate(self._file, 0)
        self.check_is_alone()

    def check_is_alone(self) -> bool:
        """Whether this process is alone now. Give that up if another one asked; ask if another one is alone."""
        if self._file is None or self._is_shared:
            return False
        if self._is_exclusive and not os.fstat(self._file).st_size:
            return True
        if not self._is_exclusive:
            with suppress(OSError):
                os.write(self._file, b"?")
        self._is_exclusive = False
        self._is_shared = self._lock(fcntl.LOCK_SH)
        return False

    def close(self) -> None:
        """Free the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self, kind: int) -> bool:
        assert self._file is not None
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
