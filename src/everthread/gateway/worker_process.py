"""Run in a worker process: get the setup from the supervisor, report to it, and end with it."""

from __future__ import annotations

import asyncio
import json
import os
import pickle  # nosec B403  between a process and the child it started, over their own pipes
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everthread.errors import EverthreadError


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The values that the supervisor gives to a worker process, apart from the configuration."""

    listener: socket.socket
    """The listening socket, which all workers share."""
    worker_count: int
    links_folder: Path
    """The folder of one-time login links, which all workers share."""


def serve_as_worker(run_worker: Callable[[socket.socket, Any], Any]) -> None:
    """Run `run_worker(listener, setup)` with the values from the supervisor; report an error to it and exit."""
    listener_descriptor, setup = pickle.load(sys.stdin.buffer)  # noqa: S301  # nosec B301  our own parent wrote it
    try:
        asyncio.run(run_worker(socket.socket(fileno=listener_descriptor), setup))
    except EverthreadError as error:
        report(failed=str(error))
        raise SystemExit(2) from error


def report(**fields: Any) -> None:
    """Send one line of JSON to the supervisor."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def wait_until_ended() -> None:
    """Wait until the supervisor ends this worker by a signal, or has ended itself, which closes standard input."""
    loop = asyncio.get_running_loop()
    end_event = asyncio.Event()
    input_descriptor = sys.stdin.fileno()

    def end_on_closed_input() -> None:
        if not os.read(input_descriptor, 1024):
            loop.remove_reader(input_descriptor)
            end_event.set()

    loop.add_signal_handler(signal.SIGTERM, end_event.set)
    loop.add_reader(input_descriptor, end_on_closed_input)
    try:
        await end_event.wait()
    finally:
        loop.remove_reader(input_descriptor)
