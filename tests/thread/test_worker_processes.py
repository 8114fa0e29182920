"""Run calls in worker processes."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import pytest

from everthread.errors import EngineError
from everthread.thread.engines.worker_processes import WorkerProcesses


def identify(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def fail() -> None:
    raise KeyError("a name")


def die() -> None:
    os._exit(3)


async def test_reuses_a_process_after_a_failure() -> None:
    processes = WorkerProcesses(1)
    pid = await processes.call(identify, 0)
    assert pid != os.getpid()
    with pytest.raises(EngineError, match="KeyError"):
        await processes.call(fail)
    assert await processes.call(identify, 0) == pid
    await processes.close(10)


@pytest.mark.skipif(sys.platform == "win32", reason="has no sessions")
async def test_a_process_has_its_own_group_in_the_session_of_its_parent() -> None:
    """Ctrl-C does not reach it, and Linux compares its niceness with that of its parent."""
    processes = WorkerProcesses(1, niceness=3)
    assert await processes.call(os.getsid, 0) == os.getsid(0)
    assert await processes.call(os.getpgid, 0) != os.getpgid(0)
    assert await processes.call(os.nice, 0) == min(os.nice(0) + 3, 19)
    await processes.close()


async def test_a_process_that_dies_is_replaced() -> None:
    processes = WorkerProcesses(1)
    pid = await processes.call(identify, 0)
    with pytest.raises(EngineError, match="worker process ended"):
        await processes.call(die)
    assert await processes.call(identify, 0) != pid
    await processes.close(10)


async def test_a_process_ends_quietly_if_its_parent_was_killed() -> None:
    script = (
        "import asyncio, os, signal\n"
        "from everthread.thread.engines.worker_processes import WorkerProcesses\n"
        "from tests.thread.test_worker_processes import identify\n"
        "async def main():\n"
        "    processes = WorkerProcesses(1)\n"
        "    print(await processes.call(identify, 0), flush=True)\n"
        "    call = asyncio.ensure_future(processes.call(identify, 1))\n"
        "    await asyncio.sleep(0.3)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    pipe = asyncio.subprocess.PIPE
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=pipe, stderr=pipe
    )
    pid, errors = await parent.communicate()  # ends once the worker has closed its end
    assert not errors
    while is_alive(int(pid)):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_a_call_that_takes_too_long_is_ended_with_its_process() -> None:
    processes = WorkerProcesses(1)
    pid = await processes.call(identify, 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await processes.call(identify, 600)
    for _ in range(3_000):
        if not is_alive(pid):
            break
        await asyncio.sleep(0.02)
    assert not is_alive(pid)
    await processes.close(10)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
