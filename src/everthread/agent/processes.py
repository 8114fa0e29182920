"""Child processes: run to their end or to a limit, without credentials, and ended with all they started.

A child gets a session of its own. What it starts may leave its process group, so each child also carries a mark in its
environment by which its descendants are found where the system shows it (Linux).
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

from everthread.core.redaction import redact
from everthread.errors import InputError

MARK = "EVERTHREAD_CHILD"
GRACE = 0.5
"""Seconds between asking a process to end and ending it."""
LINGER = 1.0
"""Seconds in which output is still awaited when the child has ended but something it started has not."""
KEPT = 1_000_000
"""Bytes kept of an output's start, and of its end."""
_CHUNK = 1 << 16
_TRIES = 5
_PATIENCE = 5.0
"""Seconds in which the system takes away what was ended; a process that waits for a broken disk may stay."""
_GLANCE = 0.02
_SHOWN = Path("/proc/self/environ")


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a child process ended."""

    exit_code: int | None
    """Negative: the signal that ended it. None: its time was up."""
    output: str
    """Standard output and standard error, as they came; what is left out of the middle is said there."""
    running: tuple[int, ...] = ()
    """What it left running in the background."""


async def run(argv: Sequence[str], *, folder: Path, environment: Mapping[str, str], seconds: float) -> ProcessExit:
    """Run a program. Cancelled or out of time, it is ended with everything it started."""
    child = _start(argv, folder, environment)
    try:
        if not await _within(seconds, child.exited):
            await child.end()
            return ProcessExit(None, child.output.text())
        await _within(LINGER, child.drained)
    except asyncio.CancelledError:
        await asyncio.shield(child.end())
        raise
    return ProcessExit(child.process.returncode, child.output.text(), child.left())


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class Family:
    """All that is started with an environment: it carries a mark of its own, by which what still runs is found.

    A child of a child is a child of both.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._mark = secrets.token_hex(16)
        self.environment = {**environment, MARK: f"{environment.get(MARK, '')} {self._mark}"}

    async def end(self) -> None:
        """Ask what still runs to end, and end what does not."""
        for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, _PATIENCE)):
            until = time.monotonic() + seconds
            if not self.signal(number):
                return
            while time.monotonic() < until and next(self.members(), None) is not None:  # noqa: ASYNC110 - they are not our children: nobody is told when they end
                await asyncio.sleep(_GLANCE)

    def signal(self, number: signal.Signals) -> int:
        """Send it to all; how many there were."""
        found = list(self.members())
        for one in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, number)
        return len(found)

    def members(self) -> Iterator[int]:
        """The processes that carry the mark, where the system shows it."""
        name, wanted = f"{MARK}=".encode(), self._mark.encode()
        for place in Path("/proc").glob("[0-9]*/environ"):
            try:
                carried = place.read_bytes().split(b"\0")
            except OSError:
                continue
            if any(entry.startswith(name) and wanted in entry for entry in carried):
                yield int(place.parent.name)


class ProcessOutput:
    """The start and the end of what is fed to it. Filled by one thread, read by another."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0
        self._lock = threading.Lock()

    def feed(self, chunk: bytes) -> None:
        with self._lock:
            room = self._kept - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:]
            if len(self._tail) > 2 * self._kept:
                self._trim()

    def text(self) -> str:
        with self._lock:
            self._trim()
            if not self._dropped:
                return (self._head + self._tail).decode("utf-8", "replace")
            whole = len(self._head) + self._dropped + len(self._tail)
            gap = (
                f"\n[{self._dropped:,} of {whole:,} bytes are left out here; to see them, send the output to a file]\n"
            )
            return self._head.decode("utf-8", "replace") + gap + self._tail.decode("utf-8", "replace")

    def _trim(self) -> None:
        surplus = max(0, len(self._tail) - self._kept)
        self._dropped += surplus
        del self._tail[:surplus]


class Child:
    """A running program. Threads wait for it and read it, so that no reader is lost with a task or a loop."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, family: Family) -> None:
        self.process = process
        self.output = ProcessOutput()
        self.exited, self.drained = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._family = family
        threading.Thread(target=self._wait, name="child-wait", daemon=True).start()
        threading.Thread(target=self._read, args=(reading,), name="child-read", daemon=True).start()

    def left(self) -> tuple[int, ...]:
        """What it started and still runs when it has ended itself; its group (negative) where they are not shown."""
        try:
            os.killpg(self.process.pid, 0)
        except (ProcessLookupError, PermissionError):
            if self.drained.is_set():
                return ()
        return tuple(sorted(self._family.members())) if _SHOWN.exists() else (-self.process.pid,)

    async def end(self) -> None:
        """Ask it and all it started to end, and end what does not."""
        try:
            self._signal(signal.SIGTERM)
            await _within(GRACE, self.drained)
        finally:
            for _ in range(_TRIES):
                self._signal(signal.SIGKILL)
                if next(self._family.members(), None) is None:
                    break
        await _within(_PATIENCE, self.exited)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
        self._family.signal(number)

    def _wait(self) -> None:
        self.process.wait()
        self._tell(self.exited)

    def _read(self, reading: int) -> None:
        """To the end, also when nobody listens any more: a closed pipe would kill what runs in the background."""
        try:
            while chunk := os.read(reading, _CHUNK):
                self.output.feed(chunk)
        finally:
            os.close(reading)
            self._tell(self.drained)

    def _tell(self, event: asyncio.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(event.set)


def _start(argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Child:
    reading, writing = os.pipe()
    family = Family(environment)
    try:
        process = subprocess.Popen(  # noqa: S603 - running what was approved is the purpose
            list(argv), cwd=folder, env=family.environment, stdin=subprocess.DEVNULL, stdout=writing,
            stderr=writing, start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        os.close(reading)
        raise InputError(f"{argv[0]} could not be started in {folder}: {error}") from error
    finally:
        os.close(writing)
    return Child(process, reading, family)


PLAIN = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PYTHONUNBUFFERED": "1",
}
"""Set for children: nobody sits at a terminal, and what they print is read as text."""
_ALWAYS = frozenset({"PATH", "HOME", "PWD", "OLDPWD", "LANG", "SHELL", "USER", "LOGNAME", "TZ", "TMPDIR", "TERM"})
_WORDS = re.compile(
    r"(?:^|_)(?:API_?)?(?:KEYS?|KEYFILE|PASS|PWD|PAT|JWT|COOKIES?|BEARER|DSN|CREDS?)(?:_|$)|CREDENTIAL|PASSWORD|PASSWD"
    r"|PASSPHRASE|SECRET|APIKEY|TOKEN(?!IZER|S)|ACCESS_?KEY|PRIVATE_?KEY|_AUTH$|^AUTH$|AUTHORIZATION"
)
_IN_URL = re.compile(r"\w://[^/\s:@]*:[^/\s@]+@")
_SHORTEST = 8
"""Characters of a key's value that are looked for in other variables; shorter ones occur by chance."""


def child_environment(source: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """The variables a child process is given. `secrets` names those that hold configured keys.

    Left out: those, whatever repeats their value, names that announce a credential, and values that are one.
    """
    named = {name.upper() for name in secrets}
    values = {value for name, value in source.items() if name.upper() in named and len(value) >= _SHORTEST}
    kept = {
        name: value
        for name, value in source.items()
        if name.upper() not in named
        and not any(secret in value for secret in values)
        and (name in _ALWAYS or not is_secret(name, value))
    }
    return kept | PLAIN


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a credential, told from its name or its value."""
    if _WORDS.search(name.upper()) or _IN_URL.search(value):
        return True
    text = f"{name}={value}"
    return redact(text) != text


def seal(kept: Container[str]) -> int:
    """Take every variable but these out of what the system shows of this process to others; how many.

    `/proc/<pid>/environ` is the memory in which this process was given its environment, and its children may read it.
    The variables themselves stay: they are set again, elsewhere, before that memory is cleared. Linux only; where the
    memory cannot be found nothing happens.
    """
    start, end = _given() if sys.platform == "linux" else (0, 0)
    if not start < end:
        return 0
    sealed, place = 0, start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        name, given, value = entry.partition(b"=")
        decoded = os.fsdecode(name)
        if given and value.strip(b"\0") and decoded not in kept:
            if decoded in os.environ:
                os.putenv(decoded, os.environ[decoded])
            ctypes.memset(place + len(name) + 1, 0, len(value))
            sealed += 1
        place += len(entry) + 1
    return sealed


def _given() -> tuple[int, int]:
    """Where the environment this process was started with lies in its memory."""
    try:
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return int(fields[47]), int(fields[48])
    except (OSError, ValueError, IndexError):
        return 0, 0
