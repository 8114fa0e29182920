"""Run CPU work in processes of lower priority than their parent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle  # nosec B403  between a process and the child it started, over their own pipes
import struct
import sys
from collections.abc import Callable, Coroutine
from typing import Any, BinaryIO, TypeVar

from everthread.errors import EngineError, EverthreadError

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
MAX_PROCESSES = 2
COMPACTION_NICENESS = 5
"""A lower priority than that of requests, but high enough not to starve, because a caller may be waiting."""
MAX_SMALL_RESULT_BYTES = 64 * 1024
"""After unpickling a longer result, let other tasks of the event loop run before it is used."""
_LENGTH_HEADER = struct.Struct(">Q")
_WORKER_COMMAND = "from everthread.thread.engines.worker_processes import main; main({})"


class WorkerProcesses:
    """A pool of worker processes. Each runs one call at a time and is reused."""

    def __init__(
        self, max_processes: int = MAX_PROCESSES, *, niceness: int = COMPACTION_NICENESS
    ) -> None:
        self._niceness = niceness
        self._free_processes: list[_Process] = []
        self._slots = asyncio.Semaphore(max_processes)
        self._running: set[asyncio.Future[Any]] = set()

    async def call(self, function: Callable[..., T], *values: Any) -> T:
        """Call a module's function in a process and return its result; values and result are pickled.

        If the caller is cancelled, the process is ended.
        """
        async with self._slots:
            process = await self._take_process()
            try:
                result: T = await process.call(function, values)
            except BaseException as error:
                if isinstance(error, EverthreadError) and process.is_alive:
                    self._free_processes.append(process)  # the function failed, not the process
                else:
                    self._run_in_background(process.end())
                raise
            self._free_processes.append(process)
            return result

    async def _take_process(self) -> _Process:
        """Return a free process that still runs, or a new one."""
        while self._free_processes:
            process = self._free_processes.pop()
            if process.is_alive:
                return process
        return await _Process.start(self._niceness)

    async def call_if_free(self, function: Callable[..., T], *values: Any) -> T | None:
        """Like `call`, but return None if no process is free or the call fails."""
        if not self._free_processes:
            return None
        try:
            return await self.call(function, *values)
        except EngineError as error:
            _LOG.warning("%s failed in a worker process: %s", function.__name__, error)
            return None

    def call_soon(self, function: Callable[..., object], *values: Any) -> None:
        """Start a process ahead of time with a call whose result is not used, unless one is free."""
        if not self._free_processes:
            self._run_in_background(self.call(function, *values))

    async def close(self, seconds: float = 1.0) -> None:
        """End the free processes. Cancelled calls get `seconds` to end."""
        while self._free_processes:
            self._run_in_background(self._free_processes.pop().end())
        if self._running:
            await asyncio.wait(self._running, timeout=seconds)

    def _run_in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._forget_task)

    def _forget_task(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # if starting ahead failed, the first real call fails too and is reported


class _Process:
    """A child process, seen from its parent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise EngineError("a worker process cannot be reached")
        self._process = process
        self._requests = process.stdin
        self._responses = process.stdout

    @classmethod
    async def start(cls, niceness: int) -> _Process:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-c", _WORKER_COMMAND.format(niceness))
        # Separate process group: Ctrl-C in a terminal reaches only the parent, which ends this process. A separate
        # session would also do that, but Linux gives each session the same share of a core, whatever its niceness.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, env=environment, process_group=0
        )
        return cls(process)

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._requests.close()
        await self._process.wait()

    async def call(self, function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        """Send a call to the process and return its result. Raise if the call failed."""
        data = pickle.dumps((function, values))
        try:
            self._requests.write(_LENGTH_HEADER.pack(len(data)) + data)
            await self._requests.drain()
            (size,) = _LENGTH_HEADER.unpack(await self._responses.readexactly(_LENGTH_HEADER.size))
            answer = await self._responses.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            await self._process.wait()
            raise EngineError(f"a worker process ended ({type(error).__name__})") from error
        failure, result = pickle.loads(answer)  # noqa: S301  # nosec B301  our own child wrote it
        if size > MAX_SMALL_RESULT_BYTES:
            await asyncio.sleep(0)  # reading it took a while: let requests run before it is used
        if failure:
            raise EngineError(failure)
        return result


def main(niceness: int) -> None:
    """Serve the parent that started this process. Redirect prints to the log, so that they do not mix with answers."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(OSError, AttributeError):
        os.nice(niceness)
    try:
        _serve_calls(sys.stdin.buffer, answers)
    except BrokenPipeError:  # the parent has ended
        os._exit(0)  # without flushing the broken pipe again


def _serve_calls(calls: BinaryIO, answers: BinaryIO) -> None:
    """Run the calls that arrive, until the input ends."""
    while length_header := calls.read(_LENGTH_HEADER.size):
        (size,) = _LENGTH_HEADER.unpack(length_header)
        data = pickle.dumps(_run_call(calls.read(size)))
        answers.write(_LENGTH_HEADER.pack(len(data)) + data)
        answers.flush()


def _run_call(data: bytes) -> tuple[str, Any]:
    """Run a call; return the reason why it failed (empty if it did not) and its result."""
    try:
        function, values = pickle.loads(data)  # noqa: S301  # nosec B301  our own parent wrote it
        return "", function(*values)
    except EverthreadError as error:
        return str(error), None
    except Exception as error:  # noqa: BLE001 - the parent reports it
        return f"{type(error).__name__}: {error}", None
