"""Child processes: ended whole, read within bounds, never waited for in vain."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.agent.processes import (
    MAX_OUTPUT_BYTES,
    ProcessExit,
    ProcessFamily,
    ProcessOutput,
    run_program,
)
from everthread.errors import InputError

ENVIRONMENT = {"PATH": os.environ["PATH"]}


async def run_shell(command: str, folder: Path, *, seconds: float = 60) -> ProcessExit:
    return await run_program(
        ["bash", "-c", command], folder=folder, environment=ENVIRONMENT, seconds=seconds
    )


def is_running(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


async def are_gone(*pids: int) -> bool:
    """Whether processes are gone, now or a little later: the system takes them away in its own time."""
    for _ in range(1_000):
        if not any(map(is_running, pids)):
            return True
        await asyncio.sleep(0.02)
    return False


async def wait_for_pids(folder: Path, *, wanted: int) -> list[int]:
    """Wait for this number of process ids in the file `pids`."""
    for _ in range(1_000):
        found = (
            (folder / "pids").read_text().split() if (folder / "pids").exists() else []
        )
        if len(found) == wanted:
            return [int(pid) for pid in found]
        await asyncio.sleep(0.02)
    raise AssertionError(f"{wanted} processes did not start")


async def test_output_comes_in_order_with_the_exit_code(tmp_path: Path) -> None:
    done = await run_shell("echo one; echo two >&2; echo three; exit 3", tmp_path)
    assert (done.exit_code, done.output, done.running_processes) == (
        3,
        "one\ntwo\nthree\n",
        (),
    )


async def test_it_has_no_input_and_no_terminal(tmp_path: Path) -> None:
    done = await run_shell(
        "read x; echo got:$?; (: < /dev/tty) 2>/dev/null || echo no tty", tmp_path
    )
    assert done.output == "got:1\nno tty\n"


async def test_bytes_are_shown_as_text(tmp_path: Path) -> None:
    assert (await run_shell(r"printf 'a\xff\xfe\0b'", tmp_path)).output == "a��\0b"


async def test_a_signal_is_reported(tmp_path: Path) -> None:
    assert (await run_shell("kill -SEGV $$", tmp_path)).exit_code == -11


async def test_fifty_megabytes_are_read_in_bounded_memory(tmp_path: Path) -> None:
    done = await run_shell(
        "echo first; head -c 50000000 /dev/zero | tr '\\0' 'x'; echo; echo last",
        tmp_path,
    )
    assert len(done.output) < 2 * MAX_OUTPUT_BYTES + 200
    assert done.output.startswith("first\n")
    assert done.output.endswith("\nlast\n")
    assert "48,000,012 of 50,000,012 bytes are left out here" in done.output


SLEEPER = "echo $$ >> pids; sleep 100"
STUBBORN = "trap '' TERM; echo $BASHPID >> pids; for n in {1..60}; do sleep 1; done"


@pytest.mark.parametrize(
    "command",
    [
        "echo $$ >> pids; (echo $BASHPID >> pids; (echo $BASHPID >> pids; sleep 100))",
        f"echo $$ >> pids; ({STUBBORN}) & ({STUBBORN}) & wait",
        f"echo $$ >> pids; setsid bash -c '{SLEEPER}' & setsid -f bash -c '{SLEEPER}'; wait",
    ],
    ids=[
        "children of children",
        "those that ignore the request",
        "those that left the group",
    ],
)
@pytest.mark.parametrize("how", ["timeout", "cancelled"])
async def test_all_of_it_ends(tmp_path: Path, command: str, how: str) -> None:
    """On a timeout and on cancelling, whatever the command started is ended with it."""

    async def work() -> list[int]:
        seconds = 3 if how == "timeout" else 60
        task = asyncio.create_task(
            run_program(
                ["bash", "-c", command],
                folder=tmp_path,
                environment=ENVIRONMENT,
                seconds=seconds,
            )
        )
        started = await wait_for_pids(tmp_path, wanted=3)
        if how == "cancelled":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert (await task).exit_code is None
        return started

    assert await are_gone(*await work())


async def test_cancelled_twice_it_still_ends(tmp_path: Path) -> None:
    async def work() -> list[int]:
        task = asyncio.create_task(
            run_program(
                ["bash", "-c", STUBBORN],
                folder=tmp_path,
                environment=ENVIRONMENT,
                seconds=60,
            )
        )
        started = await wait_for_pids(tmp_path, wanted=1)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return started

    assert await are_gone(*await work())


async def test_a_child_with_children_of_its_own_sessions(tmp_path: Path) -> None:
    """A program that runs others the same way: ended from outside, theirs end, too."""
    program = (
        "import asyncio, os, pathlib\n"
        "from everthread.agent.processes import run_program\n"
        f"command = ['bash', '-c', '{SLEEPER}']\n"
        "work = run_program(command, folder=pathlib.Path('.'), environment=dict(os.environ), seconds=60)\n"
        "asyncio.run(work)\n"
    )

    async def work() -> list[int]:
        argv = [
            sys.executable,
            "-c",
            f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{program}",
        ]
        task = asyncio.create_task(
            run_program(argv, folder=tmp_path, environment=ENVIRONMENT, seconds=60)
        )
        started = await wait_for_pids(tmp_path, wanted=1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return started

    assert await are_gone(*await work())


async def test_output_before_a_timeout_is_returned(tmp_path: Path) -> None:
    done = await run_shell("echo working; sleep 100", tmp_path, seconds=1)
    assert (done.exit_code, done.output) == (None, "working\n")


@pytest.mark.parametrize("redirected", ["", " > /dev/null 2>&1"])
async def test_a_background_process_neither_hangs_it_nor_is_ended(
    tmp_path: Path, redirected: str
) -> None:
    ticking = "for n in {1..600}; do [ -e stop ] && break; echo tick; sleep 0.05; done"
    command = f"(echo $BASHPID >> pids; {ticking}; touch ended){redirected} &"
    done = await run_shell(f"{command} echo started", tmp_path)
    (pid,) = await wait_for_pids(tmp_path, wanted=1)
    assert done.exit_code == 0
    assert "started\n" in done.output
    assert pid in done.running_processes
    assert is_running(pid), "it prints into a pipe nobody waits for, and lives on"
    (tmp_path / "stop").touch()
    assert await are_gone(pid)
    assert (tmp_path / "ended").exists(), "it came to its own end"


async def test_a_background_process_without_environment_is_named(
    tmp_path: Path,
) -> None:
    """A program shows no environment while it starts, either."""
    done = await run_shell("env -i sleep 60 > /dev/null 2>&1 & echo $!", tmp_path)
    pid = int(done.output)
    assert done.running_processes == (pid,)
    os.kill(pid, signal.SIGKILL)
    assert await are_gone(pid)


async def test_a_program_that_cannot_start_is_reported(tmp_path: Path) -> None:
    for argv, folder in (
        (["/no/such/program"], tmp_path),
        (["true"], tmp_path / "missing"),
        (["a\0b"], tmp_path),
    ):
        with pytest.raises(InputError, match="could not be started"):
            await run_program(argv, folder=folder, environment=ENVIRONMENT, seconds=5)


async def test_many_at_once(tmp_path: Path) -> None:
    async def work() -> list[ProcessExit]:
        each = (["bash", "-c", f"echo {number}"] for number in range(12))
        return await asyncio.gather(
            *(
                run_program(argv, folder=tmp_path, environment=ENVIRONMENT, seconds=60)
                for argv in each
            )
        )

    assert [done.output for done in await work()] == [
        f"{number}\n" for number in range(12)
    ]


@given(chunks=st.lists(st.binary(max_size=40), max_size=20), kept=st.integers(1, 50))
def test_start_and_end_of_an_output_are_kept(chunks: list[bytes], kept: int) -> None:
    output = ProcessOutput(kept)
    whole = b"".join(chunks)
    for chunk in chunks:
        output.feed(chunk)
    said = output.read_text()
    if len(whole) <= 2 * kept:
        assert said == whole.decode("utf-8", "replace")
    else:
        assert said.startswith(whole[:kept].decode("utf-8", "replace"))
        assert said.endswith(whole[-kept:].decode("utf-8", "replace"))
        assert f"[{len(whole) - 2 * kept:,} of {len(whole):,} bytes" in said


async def test_only_the_family_is_ended(tmp_path: Path) -> None:
    family = ProcessFamily(ENVIRONMENT)
    other = ProcessFamily(ENVIRONMENT)
    stubborn = "trap '' TERM; echo $BASHPID >> pids; while :; do sleep 0.1; done"
    command = f"setsid bash -c {shlex.quote(stubborn)} & (echo $BASHPID >> pids; exec sleep 60) &"
    await run_program(
        ["bash", "-c", command],
        folder=tmp_path,
        environment=family.environment,
        seconds=60,
    )
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    command = "(echo $BASHPID >> pids; exec sleep 60) &"
    await run_program(
        ["bash", "-c", command],
        folder=theirs,
        environment=other.environment,
        seconds=60,
    )
    mine = await wait_for_pids(tmp_path, wanted=2)
    others = await wait_for_pids(theirs, wanted=1)
    assert all(map(is_running, mine))
    await family.end()
    left = [pid for pid in others if is_running(pid)]
    await other.end()
    await family.end()
    assert left == others
    assert await are_gone(*mine, *others)
