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
        self._thread_id = ""
        self._reported_process_ids: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release_lock()

    def enter(self, thread_id: str) -> str:
        """Move to a thread, and return a warning if another terminal that was not reported before has it open."""
        if thread_id != self._thread_id:
            self._release_lock()
            self._lock(thread_id)
        other_process_ids = self._find_other_process_ids()
        new_process_ids = [
            process_id
            for process_id in other_process_ids
            if process_id not in self._reported_process_ids
        ]
        self._reported_process_ids = set(other_process_ids)
        if not new_process_ids:
            return ""
        return (
            f"This thread is open in another terminal too (process {', '.join(new_process_ids)}): "
            "messages of both go into one history."
        )

    def _lock(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._path = self._folder / f"{thread_id}.{os.getpid()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")
        except OSError:
            return  # the home cannot be written: no terminal is detected
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _find_other_process_ids(self) -> list[str]:
        """Return the ids of processes that hold a lock for the thread, and remove files without a lock."""
        process_ids = []
        for path in sorted(self._folder.glob(f"{self._thread_id}.*")):
            if path == self._path:
                continue
            try:
                with path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
            except BlockingIOError:
                process_ids.append(path.suffix[1:])
            except OSError:
                continue
        return process_ids

    def _release_lock(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()
        self._file = None
        self._path = None
        self._reported_process_ids = set()
