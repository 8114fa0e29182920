"""Run several worker processes of one gateway on one port, and replace each one that dies.

On Linux every worker has a listening socket of its own on the same port (SO_REUSEPORT), and the kernel distributes
connections among them. The supervisor keeps the sockets open, so that connections that wait for a dead worker are
answered by its successor. On other systems all workers accept connections from one socket.

A worker reads its setup from standard input, and ends when that is closed, so that it never outlives the supervisor.
It writes lines of JSON to standard output: `ready`, `failed`, and messages to print. Each worker has its own session,
so that Ctrl-C in a terminal reaches only the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle  # nosec B403  between a process and the child it started, over their own pipes
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from everthread.errors import InputError
from everthread.gateway.loop_server import bind_socket, listen
from everthread.gateway.monitoring.metrics import METRICS_VARIABLE

WORKER_STOP_TIMEOUT_SECONDS = 40.0
"""Seconds that a worker has to finish its answers before it is killed."""
WORKER_START_TIMEOUT_SECONDS = 180.0
"""Seconds that all workers together have to start."""
_RESTART_PAUSE_SECONDS = (0.0, 1.0, 2.0, 5.0, 15.0)
"""Seconds before a worker that failed to start is started again, by the number of failures."""
_LOG = logging.getLogger("everthread.gateway")


class PortSockets:
    """The sockets of the workers, bound to one port. On Linux each worker has its own, otherwise they share one."""

    def __init__(self, host: str, port: int, count: int) -> None:
        # Bind without sharing first, to find out whether another program uses the port.
        probe = listen(port, host)
        self._family = probe.family
        self._address = probe.getsockname()
        self.port = int(self._address[1])
        self.is_shared = sys.platform != "linux"
        if self.is_shared:
            self._sockets = [probe] * count
        else:
            probe.close()
            self._sockets = [
                bind_socket(self._family, self._address, shares_port=True) for _ in range(count)
            ]

    def __getitem__(self, index: int) -> socket.socket:
        return self._sockets[index]

    def renew(self, index: int) -> None:
        """Replace a worker's socket. Other workers get its connections until its worker is ready and listens."""
        if not self.is_shared:
            self._sockets[index].close()
            self._sockets[index] = bind_socket(self._family, self._address, shares_port=True)

    def close(self) -> None:
        for port_socket in self._sockets:
            port_socket.close()


@dataclass(slots=True)
class _Slot:
    """A numbered position for a worker, with its current process."""

    index: int
    process: asyncio.subprocess.Process | None = None
    ready_event: asyncio.Event = field(default_factory=asyncio.Event)
    failure_count: int = 0
    """Number of failed starts in a row."""


class Supervisor:
    """Starts workers with a command, and restarts each one that ends, until closed.

    `make_setup`: returns the picklable setup of the worker with this number. `print_message`: prints its messages.
    """

    def __init__(  # noqa: PLR0913 - each by its name
        self,
        command: Sequence[str],
        make_setup: Callable[[int], Any],
        sockets: PortSockets,
        folder: Path,
        *,
        count: int,
        print_message: Callable[[dict[str, Any]], None],
    ) -> None:
        if sys.platform == "win32":
            raise InputError(
                "several workers need a system that hands sockets to child processes; use one"
            )
        self._command = list(command)
        self._make_setup = make_setup
        self._sockets = sockets
        self._metrics_folder = folder / "metrics"
        self._print_message = print_message
        self._slots = [_Slot(index) for index in range(count)]
        self._keeper_tasks: list[asyncio.Task[None]] = []
        self._start_failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._end_event = asyncio.Event()

    async def __aenter__(self) -> Self:
        """Start all workers. If one cannot start, end the others and raise `InputError`."""
        self._metrics_folder.mkdir(exist_ok=True)
        self._keeper_tasks = [asyncio.create_task(self._keep_running(slot)) for slot in self._slots]
        ready_task = asyncio.create_task(self._wait_until_ready())
        awaited_futures: list[asyncio.Future[Any]] = [ready_task, self._start_failure]
        await asyncio.wait(
            awaited_futures,
            timeout=WORKER_START_TIMEOUT_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not ready_task.done():
            ready_task.cancel()
            await self.close()
            if self._start_failure.done():
                raise InputError(self._start_failure.result())
            raise InputError("the workers did not start in time")
        return self

    async def _wait_until_ready(self) -> None:
        for slot in self._slots:
            await slot.ready_event.wait()

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all workers; kill those that do not finish their answers in time."""
        self._end_event.set()
        self.signal(signal.SIGTERM)
        if self._keeper_tasks:
            _, late_keepers = await asyncio.wait(
                self._keeper_tasks, timeout=WORKER_STOP_TIMEOUT_SECONDS
            )
            if late_keepers:
                self.signal(signal.SIGKILL)
                await asyncio.wait(late_keepers)
        self._sockets.close()

    def signal(self, signal_number: signal.Signals) -> None:
        for slot in self._slots:
            if slot.process is not None and slot.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    slot.process.send_signal(signal_number)

    async def _keep_running(self, slot: _Slot) -> None:
        """Run a worker in this slot, and start another one whenever it ends, until the supervisor is closed."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self._end_event.wait(),
                    _RESTART_PAUSE_SECONDS[
                        min(slot.failure_count, len(_RESTART_PAUSE_SECONDS) - 1)
                    ],
                )
            if self._end_event.is_set():
                return
            started_at = time.monotonic()
            exit_code = await self._run(slot)
            was_ready = slot.ready_event.is_set()
            slot.process = None
            slot.ready_event.clear()
            if self._end_event.is_set():
                return
            if was_ready:
                slot.failure_count = 0
                _LOG.warning(
                    "worker %d ended (%s) after %.0f s; starting another one",
                    slot.index + 1,
                    _describe_exit(exit_code),
                    time.monotonic() - started_at,
                )
            else:
                slot.failure_count += 1
                _LOG.error(
                    "worker %d did not start (%s)",
                    slot.index + 1,
                    _describe_exit(exit_code),
                )
                self._sockets.renew(slot.index)

    async def _run(self, slot: _Slot) -> int:
        """Run a worker until it ends; return its exit code."""
        listener = self._sockets[slot.index]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            METRICS_VARIABLE: str(self._metrics_folder),
        }
        process = slot.process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[listener.fileno()],
            env=environment,
            start_new_session=True,
        )
        if self._end_event.is_set():  # asked to end while it was starting
            process.terminate()
        stdin = process.stdin
        stdout = process.stdout
        if stdin is None or stdout is None:
            raise InputError("a worker cannot be reached")
        with contextlib.suppress(ConnectionError):
            stdin.write(pickle.dumps((listener.fileno(), self._make_setup(slot.index))))
            await stdin.drain()
        with contextlib.suppress(ValueError, ConnectionError):
            while line := await stdout.readline():
                self._handle_report(slot, json.loads(line))
        exit_code = await process.wait()
        stdin.close()
        _forget_gauges(process.pid, self._metrics_folder)
        if not slot.ready_event.is_set() and not self._start_failure.done():
            self._start_failure.set_result(
                f"a worker ended at its start ({_describe_exit(exit_code)})"
            )
        return exit_code

    def _handle_report(self, slot: _Slot, message: dict[str, Any]) -> None:
        if "failed" in message:
            if not self._start_failure.done():
                self._start_failure.set_result(str(message["failed"]))
            _LOG.error("worker %d: %s", slot.index + 1, message["failed"])
            return
        if message.get("ready"):
            slot.ready_event.set()
        self._print_message(message)


def _describe_exit(exit_code: int) -> str:
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-exit_code).name
    return f"code {exit_code}"


def _forget_gauges(pid: int, folder: Path) -> None:
    """Delete the gauges of a dead process, but keep its counters."""
    for file in folder.glob(f"gauge_live*_{pid}.db"):
        file.unlink(missing_ok=True)
