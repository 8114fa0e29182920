"""Run child processes with a time limit, and end them with all their descendants.

Each child gets its own session. Its descendants may leave its process group, so each child also carries a mark in its
environment by which they are found if the system shows it (Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from everthread.errors import InputError

MARK_VARIABLE = "EVERTHREAD_CHILD"
GRACE_SECONDS = 0.5
"""Seconds between SIGTERM and SIGKILL."""
OUTPUT_LINGER_SECONDS = 1.0
"""Seconds to wait for output after the child has ended but a process it started has not."""
MAX_OUTPUT_BYTES = 1_000_000
"""Bytes kept of an output's start, and of its end."""
_CHUNK_BYTES = 1 << 16
_MAX_KILL_TRIES = 5
_KILL_TIMEOUT_SECONDS = 5.0
"""Seconds to wait after SIGKILL; a process that waits for a broken disk may stay."""
_POLL_INTERVAL_SECONDS = 0.02
_PROC_ENVIRON = Path("/proc/self/environ")


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """Exit code and output of a child process."""

    exit_code: int | None
    """Negative if a signal ended it, or None if it timed out."""
    output: str
    """Standard output and standard error together; a note marks the omitted middle."""
    running_processes: tuple[int, ...] = ()
    """Ids of processes that it left running in the background."""


async def run_program(
    argv: Sequence[str], *, folder: Path, environment: Mapping[str, str], timeout_seconds: float
) -> ProcessExit:
    """Run a program. On cancellation or timeout, end it with everything it started."""
    child = ChildProcess(argv, folder, environment)
    try:
        if not await _wait_until(timeout_seconds, child.exit_event):
            await child.end()
            return ProcessExit(None, child.output.read_text())
        await _wait_until(OUTPUT_LINGER_SECONDS, child.drain_event)
    except asyncio.CancelledError:
        await asyncio.shield(child.end())
        raise
    return ProcessExit(child.process.returncode, child.output.read_text(), child.find_running())


async def _wait_until(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class ProcessGroup:
    """All processes that were started with one environment, found by a mark in it.

    A child of a child belongs to both groups.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._mark = secrets.token_hex(16)
        self.environment = {
            **environment,
            MARK_VARIABLE: f"{environment.get(MARK_VARIABLE, '')} {self._mark}",
        }

    async def end(self) -> None:
        """Send SIGTERM to the running members, then SIGKILL."""
        for signal_number, seconds in (
            (signal.SIGTERM, GRACE_SECONDS),
            (signal.SIGKILL, _KILL_TIMEOUT_SECONDS),
        ):
            deadline = time.monotonic() + seconds
            if not self.send_signal(signal_number):
                return
            while time.monotonic() < deadline and any(self.find_members()):  # noqa: ASYNC110 - no event: not our children
                await asyncio.sleep(_POLL_INTERVAL_SECONDS)

    def send_signal(self, signal_number: signal.Signals) -> int:
        """Send a signal to all members; return their number."""
        processes = list(self.find_members())
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal_number)
        return len(processes)

    def find_members(self) -> Iterator[int]:
        """Return the processes that carry the mark, if the system shows it."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile, or another user's
                if self._is_member(folder):
                    yield int(folder.name)

    def _is_member(self, folder: Path) -> bool:
        name = f"{MARK_VARIABLE}=".encode()
        mark = self._mark.encode()
        entries = (folder / "environ").read_bytes().split(b"\0")
        return any(entry.startswith(name) and mark in entry for entry in entries)


class ProcessOutput:
    """The start and the end of a process's output. One thread writes it, another reads it."""

    def __init__(self, limit: int = MAX_OUTPUT_BYTES) -> None:
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped_bytes = 0
        self._lock = threading.Lock()

    def feed(self, chunk: bytes) -> None:
        with self._lock:
            free_bytes = self._limit - len(self._head)
            self._head += chunk[:free_bytes]
            self._tail += chunk[free_bytes:]
            if len(self._tail) > 2 * self._limit:
                self._trim()

    def read_text(self) -> str:
        with self._lock:
            self._trim()
            if not self._dropped_bytes:
                return (self._head + self._tail).decode("utf-8", "replace")
            total = len(self._head) + self._dropped_bytes + len(self._tail)
            note = (
                f"\n[{self._dropped_bytes:,} of {total:,} bytes are left out here; "
                "to see them, send the output to a file]\n"
            )
            return (
                self._head.decode("utf-8", "replace") + note + self._tail.decode("utf-8", "replace")
            )

    def _trim(self) -> None:
        surplus_bytes = max(0, len(self._tail) - self._limit)
        self._dropped_bytes += surplus_bytes
        del self._tail[:surplus_bytes]


class ChildProcess(ProcessGroup):
    """A running program and everything it starts. Threads read its output, so that a cancelled task loses none."""

    def __init__(self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(environment)
        self.output = ProcessOutput()
        self.exit_event = asyncio.Event()
        self.drain_event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        read_end, write_end = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - running what was approved is the purpose
                list(argv),
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(read_end)
            raise InputError(f"{argv[0]} could not be started in {folder}: {error}") from error
        finally:
            os.close(write_end)
        threading.Thread(target=self._wait_for_exit, name="child-wait", daemon=True).start()
        threading.Thread(
            target=self._read_output, args=(read_end,), name="child-read", daemon=True
        ).start()

    def find_running(self) -> tuple[int, ...]:
        """Return the ids of the child's processes that still run.

        On a system without /proc, return the process group of the child, as a negative number.
        """
        try:
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            if self.drain_event.is_set():
                return ()
        return (
            tuple(sorted(self.find_members())) if _PROC_ENVIRON.exists() else (-self.process.pid,)
        )

    def _is_member(self, folder: Path) -> bool:
        """Return whether a process belongs to the child.

        While a process starts it does not have the mark yet, but it is in the child's session.
        """
        state, _, _, session = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:4]
        return (int(session) == self.process.pid and state != b"Z") or super()._is_member(folder)

    def send_signal(self, signal_number: signal.Signals) -> int:
        """Send a signal to all members, and to the process group of the child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal_number)
        return super().send_signal(signal_number)

    async def end(self) -> None:
        """Send SIGTERM, then SIGKILL, to the child and everything it started."""
        try:
            self.send_signal(signal.SIGTERM)
            await _wait_until(GRACE_SECONDS, self.drain_event)
        finally:
            # Processes started meanwhile are found the next time.
            for _ in range(_MAX_KILL_TRIES):
                if not self.send_signal(signal.SIGKILL):
                    break
        await _wait_until(_KILL_TIMEOUT_SECONDS, self.exit_event)

    def _wait_for_exit(self) -> None:
        self.process.wait()
        self._set_event(self.exit_event)

    def _read_output(self, read_end: int) -> None:
        """Read to the end even if no caller waits, because a closed pipe would kill background processes."""
        try:
            while chunk := os.read(read_end, _CHUNK_BYTES):
                self.output.feed(chunk)
        finally:
            os.close(read_end)
            self._set_event(self.drain_event)

    def _set_event(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            self._loop.call_soon_threadsafe(event.set)
