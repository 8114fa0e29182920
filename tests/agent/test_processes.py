"""Child processes: ended with their descendants, read within bounds, never waited for in vain."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.agent.processes import (
    MAX_OUTPUT_BYTES,
    ProcessExit,
    ProcessGroup,
    ProcessOutput,
    run_program,
)
from everthread.errors import InputError
from tests.agent.process_checks import are_gone, is_running, wait_for_pids

ENVIRONMENT = {"PATH": os.environ["PATH"]}


async def run_shell(
    command: str,
    folder: Path,
    *,
    seconds: float = 60,
    environment: Mapping[str, str] = ENVIRONMENT,
) -> ProcessExit:
    return await run_program(
        ["bash", "-c", command], folder=folder, environment=environment, timeout_seconds=seconds
    )


async def test_output_comes_in_order_with_the_exit_code(tmp_path: Path) -> None:
    result = await run_shell("echo one; echo two >&2; echo three; exit 3", tmp_path)
    assert (result.exit_code, result.output, result.running_processes) == (
        3,
        "one\ntwo\nthree\n",
        (),
    )


async def test_a_program_has_no_input_and_no_terminal(tmp_path: Path) -> None:
    result = await run_shell(
        "read x; echo got:$?; (: < /dev/tty) 2>/dev/null || echo no tty", tmp_path
    )
    assert result.output == "got:1\nno tty\n"


async def test_bytes_are_shown_as_text(tmp_path: Path) -> None:
    assert (await run_shell(r"printf 'a\xff\xfe\0b'", tmp_path)).output == "a��\0b"


async def test_a_signal_is_reported(tmp_path: Path) -> None:
    assert (await run_shell("kill -SEGV $$", tmp_path)).exit_code == -11


async def test_fifty_megabytes_are_read_in_bounded_memory(tmp_path: Path) -> None:
    result = await run_shell(
        "echo first; head -c 50000000 /dev/zero | tr '\\0' 'x'; echo; echo last",
        tmp_path,
    )
    assert len(result.output) < 2 * MAX_OUTPUT_BYTES + 200
    assert result.output.startswith("first\n")
    assert result.output.endswith("\nlast\n")
    assert "48,000,012 of 50,000,012 bytes are left out here" in result.output


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
@pytest.mark.parametrize("ending", ["timeout", "cancelled"])
async def test_a_timeout_or_a_cancellation_ends_all_descendants(
    tmp_path: Path, command: str, ending: str
) -> None:
    """On a timeout and on cancelling, whatever the command started is ended with it."""

    seconds = 3 if ending == "timeout" else 60
    task = asyncio.create_task(run_shell(command, tmp_path, seconds=seconds))
    pids = await wait_for_pids(tmp_path, wanted=3)
    if ending == "cancelled":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        assert (await task).exit_code is None
    assert await are_gone(*pids)


async def test_a_program_that_is_cancelled_twice_ends(tmp_path: Path) -> None:
    task = asyncio.create_task(run_shell(STUBBORN, tmp_path))
    pids = await wait_for_pids(tmp_path, wanted=1)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await are_gone(*pids)


async def test_programs_started_by_a_program_end_with_it(tmp_path: Path) -> None:
    """A program that runs others the same way: ended from outside, theirs end, too."""
    program = (
        "import asyncio, os, pathlib\n"
        "from everthread.agent.processes import run_program\n"
        f"command = ['bash', '-c', '{SLEEPER}']\n"
        "work = run_program(command, folder=pathlib.Path('.'), environment=dict(os.environ), timeout_seconds=60)\n"
        "asyncio.run(work)\n"
    )

    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    argv = [sys.executable, "-c", stubborn + program]
    task = asyncio.create_task(
        run_program(
            argv,
            folder=tmp_path,
            environment=ENVIRONMENT,
            timeout_seconds=60,
        )
    )
    pids = await wait_for_pids(tmp_path, wanted=1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await are_gone(*pids)


async def test_output_before_a_timeout_is_returned(tmp_path: Path) -> None:
    result = await run_shell("echo working; sleep 100", tmp_path, seconds=1)
    assert (result.exit_code, result.output) == (None, "working\n")


@pytest.mark.parametrize("redirected", ["", " > /dev/null 2>&1"])
async def test_a_background_process_neither_hangs_it_nor_is_ended(
    tmp_path: Path, redirected: str
) -> None:
    ticking = "for n in {1..600}; do [ -e stop ] && break; echo tick; sleep 0.05; done"
    command = f"(echo $BASHPID >> pids; {ticking}; touch ended){redirected} &"
    result = await run_shell(f"{command} echo started", tmp_path)
    (pid,) = await wait_for_pids(tmp_path, wanted=1)
    assert result.exit_code == 0
    assert "started\n" in result.output
    assert pid in result.running_processes
    assert is_running(pid), "it continues after the command has ended"
    (tmp_path / "stop").touch()
    assert await are_gone(pid)
    assert (tmp_path / "ended").exists(), "it was not killed"


async def test_a_background_process_without_environment_is_named(
    tmp_path: Path,
) -> None:
    """A program shows no environment while it starts, either."""
    result = await run_shell("env -i sleep 60 > /dev/null 2>&1 & echo $!", tmp_path)
    pid = int(result.output)
    assert result.running_processes == (pid,)
    os.kill(pid, signal.SIGKILL)
    assert await are_gone(pid)


async def test_a_program_that_cannot_start_is_reported(tmp_path: Path) -> None:
    for argv, folder in (
        (["/no/such/program"], tmp_path),
        (["true"], tmp_path / "missing"),
        (["a\0b"], tmp_path),
    ):
        with pytest.raises(InputError, match="could not be started"):
            await run_program(
                argv,
                folder=folder,
                environment=ENVIRONMENT,
                timeout_seconds=5,
            )


async def test_many_programs_run_at_once(tmp_path: Path) -> None:
    exits = await asyncio.gather(*(run_shell(f"echo {number}", tmp_path) for number in range(12)))
    assert [one.output for one in exits] == [f"{number}\n" for number in range(12)]


@given(chunks=st.lists(st.binary(max_size=40), max_size=20), limit=st.integers(1, 50))
def test_start_and_end_of_an_output_are_kept(chunks: list[bytes], limit: int) -> None:
    output = ProcessOutput(limit)
    whole = b"".join(chunks)
    for chunk in chunks:
        output.feed(chunk)
    text = output.read_text()
    if len(whole) <= 2 * limit:
        assert text == whole.decode("utf-8", "replace")
    else:
        assert text.startswith(whole[:limit].decode("utf-8", "replace"))
        assert text.endswith(whole[-limit:].decode("utf-8", "replace"))
        assert f"[{len(whole) - 2 * limit:,} of {len(whole):,} bytes" in text


async def test_ending_a_family_spares_other_processes(tmp_path: Path) -> None:
    family = ProcessGroup(ENVIRONMENT)
    other = ProcessGroup(ENVIRONMENT)
    stubborn = "trap '' TERM; echo $BASHPID >> pids; while :; do sleep 0.1; done"
    command = f"setsid bash -c {shlex.quote(stubborn)} & (echo $BASHPID >> pids; exec sleep 60) &"
    await run_shell(command, tmp_path, environment=family.environment)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    command = "(echo $BASHPID >> pids; exec sleep 60) &"
    await run_shell(command, other_folder, environment=other.environment)
    family_pids = await wait_for_pids(tmp_path, wanted=2)
    other_pids = await wait_for_pids(other_folder, wanted=1)
    assert all(map(is_running, family_pids))
    await family.end()
    spared_pids = [pid for pid in other_pids if is_running(pid)]
    await other.end()
    await family.end()
    assert spared_pids == other_pids
    assert await are_gone(*family_pids, *other_pids)
