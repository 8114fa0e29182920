"""Child processes: run to their end or to a limit, without credentials, and ended with all their descendants.

Each child gets its own session. Its descendants may leave its process group, so each child also carries a mark in its
environment by which they are found if the system shows it (Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from everthread.core.secrets.redaction import redact
from everthread.errors import InputError

MARK = "EVERTHREAD_CHILD"
GRACE_SECONDS = 0.5
"""Seconds between SIGTERM and SIGKILL."""
LINGER_SECONDS = 1.0
"""Seconds to wait for output after the child has ended but a process it started has not."""
OUTPUT_BYTES = 1_000_000
"""Bytes kept of an output's start, and of its end."""
_CHUNK_BYTES = 1 << 16
_MAX_TRIES = 5
_KILL_SECONDS = 5.0
"""Seconds to wait after SIGKILL; a process that waits for a broken disk may stay."""
_POLL_SECONDS = 0.02
_PROC_ENVIRON = Path("/proc/self/environ")


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a child process ended."""

    exit_code: int | None
    """Negative: the signal that ended it. None: it ran out of time."""
    output: str
    """Standard output and standard error together; a note marks the omitted middle."""
    running: tuple[int, ...] = ()
    """Processes it left running in the background."""


async def run(
    argv: Sequence[str], *, folder: Path, environment: Mapping[str, str], seconds: float
) -> ProcessExit:
    """Run a program. When cancelled or out of time, it is ended with everything it started."""
    child = ChildProcess(argv, folder, environment)
    try:
        if not await _within(seconds, child.exited):
            await child.end()
            return ProcessExit(None, child.output.text())
        await _within(LINGER_SECONDS, child.drained)
    except asyncio.CancelledError:
        await asyncio.shield(child.end())
        raise
    return ProcessExit(
        child.process.returncode, child.output.text(), child.find_running()
    )


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class ProcessFamily:
    """All processes started with one environment: they carry a mark in it, by which they are found.

    A child of a child belongs to both families.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._mark = secrets.token_hex(16)
        self.environment = {
            **environment,
            MARK: f"{environment.get(MARK, '')} {self._mark}",
        }

    async def end(self) -> None:
        """Send SIGTERM to what still runs, then SIGKILL."""
        for number, seconds in (
            (signal.SIGTERM, GRACE_SECONDS),
            (signal.SIGKILL, _KILL_SECONDS),
        ):
            until = time.monotonic() + seconds
            if not self.signal(number):
                return
            while time.monotonic() < until and next(self.members(), None) is not None:  # noqa: ASYNC110 - they are not our children: nobody is told when they end
                await asyncio.sleep(_POLL_SECONDS)

    def signal(self, number: signal.Signals) -> int:
        """Send a signal to all members; return their number."""
        processes = list(self.members())
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        return len(processes)

    def members(self) -> Iterator[int]:
        """Return the processes that carry the mark, if the system shows it."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile, or another user's
                if self._has(folder):
                    yield int(folder.name)

    def _has(self, folder: Path) -> bool:
        name = f"{MARK}=".encode()
        mark = self._mark.encode()
        entries = (folder / "environ").read_bytes().split(b"\0")
        return any(entry.startswith(name) and mark in entry for entry in entries)


class ProcessOutput:
    """Keeps the start and the end of an output. Filled by one thread, read by another."""

    def __init__(self, limit: int = OUTPUT_BYTES) -> None:
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._lock = threading.Lock()

    def feed(self, chunk: bytes) -> None:
        with self._lock:
            room = self._limit - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:]
            if len(self._tail) > 2 * self._limit:
                self._trim()

    def text(self) -> str:
        with self._lock:
            self._trim()
            if not self._dropped:
                return (self._head + self._tail).decode("utf-8", "replace")
            total = len(self._head) + self._dropped + len(self._tail)
            gap = (
                f"\n[{self._dropped:,} of {total:,} bytes are left out here; "
                "to see them, send the output to a file]\n"
            )
            return (
                self._head.decode("utf-8", "replace")
                + gap
                + self._tail.decode("utf-8", "replace")
            )

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - self._limit)
        self._dropped += surplus
        del self._tail[:surplus]


class ChildProcess(ProcessFamily):
    """A running program and all it starts. Threads wait for it and read it: a cancelled task loses no output."""

    def __init__(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        super().__init__(environment)
        self.output = ProcessOutput()
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603 - running what was approved is the purpose
                list(argv),
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(reading)
            raise InputError(
                f"{argv[0]} could not be started in {folder}: {error}"
            ) from error
        finally:
            os.close(writing)
        threading.Thread(target=self._wait, name="child-wait", daemon=True).start()
        threading.Thread(
            target=self._read, args=(reading,), name="child-read", daemon=True
        ).start()

    def find_running(self) -> tuple[int, ...]:
        """Return its processes that still run; without /proc, its process group as a negative number."""
        try:
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            if self.drained.is_set():
                return ()
        return (
            tuple(sorted(self.members()))
            if _PROC_ENVIRON.exists()
            else (-self.process.pid,)
        )

    def _has(self, folder: Path) -> bool:
        """Return whether a process has the mark, or is in the child's session while it starts."""
        state, _, _, session = (
            (folder / "stat").read_bytes().rpartition(b")")[2].split()[:4]
        )
        return (int(session) == self.process.pid and state != b"Z") or super()._has(
            folder
        )

    def signal(self, number: signal.Signals) -> int:
        """Send a signal to all members, and to its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
        return super().signal(number)

    async def end(self) -> None:
        """Send SIGTERM to it and all it started, then SIGKILL."""
        try:
            self.signal(signal.SIGTERM)
            await _within(GRACE_SECONDS, self.drained)
        finally:
            # Processes started meanwhile are found the next time.
            for _ in range(_MAX_TRIES):
                if not self.signal(signal.SIGKILL):
                    break
        await _within(_KILL_SECONDS, self.exited)

    def _wait(self) -> None:
        self.process.wait()
        self._set_event(self.exited)

    def _read(self, reading: int) -> None:
        """Read to the end even if no caller waits any more: a closed pipe would kill background processes."""
        try:
            while chunk := os.read(reading, _CHUNK_BYTES):
                self.output.feed(chunk)
        finally:
            os.close(reading)
            self._set_event(self.drained)

    def _set_event(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            self._loop.call_soon_threadsafe(event.set)


CHILD_VARIABLES = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PYTHONUNBUFFERED": "1",
}
"""Set for child processes: they have no terminal, and their output is read as text."""
_ALWAYS_INHERITED = frozenset(
    {
        "PATH",
        "HOME",
        "PWD",
        "OLDPWD",
        "LANG",
        "SHELL",
        "USER",
        "LOGNAME",
        "TZ",
        "TMPDIR",
        "TERM",
    }
)
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?)?(?:KEYS?|KEYFILE|PASS|PWD|PAT|JWT|COOKIES?|BEARER|DSN|CREDS?)(?:_|$)|CREDENTIAL|PASSWORD|PASSWD"
    r"|PASSPHRASE|SECRET|APIKEY|TOKEN(?!IZER|S)|ACCESS_?KEY|PRIVATE_?KEY|_AUTH$|^AUTH$|AUTHORIZATION"
)
_IN_URL = re.compile(r"\w://[^/\s:@]*:[^/\s@]+@")
_MIN_KEY_CHARS = 8
"""Shortest value of a key that is looked for in other variables; shorter ones occur by chance."""


def child_environment(
    source: Mapping[str, str], secrets: Iterable[str] = ()
) -> dict[str, str]:
    """Return the variables for a child process. `secrets` names those that hold configured keys.

    Left out are those, variables that repeat their value, and variables whose name or value is that of a credential.
    """
    secret_names = {name.upper() for name in secrets}
    values = {
        value
        for name, value in source.items()
        if name.upper() in secret_names and len(value) >= _MIN_KEY_CHARS
    }
    variables = {
        name: value
        for name, value in source.items()
        if name.upper() not in secret_names
        and not any(secret in value for secret in values)
        and (name in _ALWAYS_INHERITED or not is_secret(name, value))
    }
    return variables | CHILD_VARIABLES


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a credential, by its name or its value."""
    if _SECRET_NAME.search(name.upper()) or _IN_URL.search(value):
        return True
    text = f"{name}={value}"
    return redact(text) != text


def hide_environment(public: Container[str]) -> int:
    """Clear every variable but the public ones from `/proc/<pid>/environ` of this process; return their number.

    That file shows the memory in which the process got its environment, and its children may read it. The variables
    themselves stay: they are set again, elsewhere, before that memory is cleared. Linux only; if the memory cannot be
    found, nothing happens.
    """
    start, end = _environment_bounds() if sys.platform == "linux" else (0, 0)
    if not start < end:
        return 0
    sealed = 0
    address = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        decoded = os.fsdecode(name)
        if equals and value.strip(b"\0") and decoded not in public:
            if decoded in os.environ:
                os.putenv(decoded, os.environ[decoded])
            ctypes.memset(address + len(name) + 1, 0, len(value))
            sealed += 1
        address += len(entry) + 1
    return sealed


def _environment_bounds() -> tuple[int, int]:
    """Return the memory addresses of the environment with which this process was started."""
    try:
        fields = (
            Path("/proc/self/stat")
            .read_text("ascii", "replace")
            .rpartition(")")[2]
            .split()
        )
        return int(fields[47]), int(fields[48])
    except (OSError, ValueError, IndexError):
        return 0, 0
