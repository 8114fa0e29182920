"""Find out whether this process is the only gateway on a SQLite store, by a lock on a file beside the store."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

LOCK_FILE_SUFFIX = "-gateway"


class SoleUse:
    """The lock of the only gateway. The operating system frees it when the process ends, even after a kill.

    The first gateway locks the file exclusively. A second gateway writes to the file to ask for a shared lock. Each
    time before the first gateway relies on being alone, it checks for such a request, and then gives up the exclusive
    lock for good.
    """

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(store.name + LOCK_FILE_SUFFIX)
        self._file: int | None = None
        self._is_exclusive = False
        self._is_shared = False
        with suppress(OSError):  # without a lock file the process never counts as alone
            self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            self._is_exclusive = self._lock(fcntl.LOCK_EX)
            if self._is_exclusive:
                os.ftruncate(self._file, 0)
        self.check_is_alone()

    def check_is_alone(self) -> bool:
        """Return whether this process is alone.

        Share the lock if another process asked for it, and ask for it if another process holds it alone.
        """
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
        """Release the lock."""
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
