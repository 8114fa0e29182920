"""Detect other terminals on this machine that have the same thread open."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

LOCK_FOLDER = "terminals"


class TerminalPresence:
    """A lock file for the thread that is open in this terminal, released on leaving it or when the process ends."""

    def __init__(self, home: Path) -> None:
        self._folder = home / LOCK_FOLDER
        self._file: IO[bytes] | None = None
        self._path: Path | None = None
        self._thread = ""
        self._reported_processes: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release_lock()

    def enter(self, thread: str) -> str:
        """Move to a thread; return a warning if another terminal has it open that was not reported before."""
        if thread != self._thread:
            self._release_lock()
            self._lock(thread)
        other_processes = self._find_other_processes()
        new_processes = [
            process for process in other_processes if process not in self._reported_processes
        ]
        self._reported_processes = set(other_processes)
        if not new_processes:
            return ""
        return (
            f"This thread is open in another terminal too (process {', '.join(new_processes)}): "
            "messages of both go into one history."
        )

    def _lock(self, thread: str) -> None:
        self._thread = thread
        self._path = self._folder / f"{thread}.{os.getpid()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")
        except OSError:
            return  # the home cannot be written: no terminal is detected
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _find_other_processes(self) -> list[str]:
        """Return the process ids that hold a lock for the thread; remove files without a lock."""
        other_processes = []
        for path in sorted(self._folder.glob(f"{self._thread}.*")):
            if path == self._path:
                continue
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
            except BlockingIOError:
                other_processes.append(path.suffix[1:])
            except OSError:
                continue
        return other_processes

    def _release_lock(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()
        self._file = None
        self._path = None
        self._reported_processes = set()
