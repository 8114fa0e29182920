"""Whether this process is the only gateway on a store that is a file.

The first gateway holds a lock; every other one holds a second lock together with its like. Who has the first and finds
nobody at the second is alone, and what it expects of its threads is certain: nobody else can go on from them.
"""

from __future__ import annotations

import importlib
import os
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

_LOCKS: Any = importlib.import_module("fcntl") if os.name == "posix" else None
"""Where there are none, nobody is known to be alone."""


class Alone:
    """Asked before each answer that is quicker than the store."""

    def __init__(self, file: Path) -> None:
        self._open = ExitStack()
        self._others = self._file(file, "others")
        self._first = _LOCKS is not None and _locked(self._file(file, "first"))
        if _LOCKS is not None and not self._first:
            _LOCKS.flock(self._others, _LOCKS.LOCK_SH)

    def __call__(self) -> bool:
        if not self._first or not _locked(self._others):
            return False
        _LOCKS.flock(self._others, _LOCKS.LOCK_UN)
        return True

    def close(self) -> None:
        self._first = False
        self._open.close()

    def _file(self, file: Path, name: str) -> IO[bytes]:
        return self._open.enter_context(file.with_name(f"{file.name}-gateway-{name}").open("ab"))


def _locked(file: IO[bytes]) -> bool:
    try:
        _LOCKS.flock(file, _LOCKS.LOCK_EX | _LOCKS.LOCK_NB)
    except OSError:  # somebody has it; or the file system knows no locks, and then nobody is known to be alone
        return False
    return True
