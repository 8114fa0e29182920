"""The tool `terminal`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from everthread.agent.tool_interface import Permission
from everthread.compaction.history.tool_calls import describe_call
from everthread.core.messages import ToolCall
from everthread.errors import InputError
from tests.agent.tool_use import TOOLS, call_tool, call_tool_in, open_tool_context, write_files


async def test_the_exit_code_comes_first(tmp_path: Path) -> None:
    good = await call_tool_in(tmp_path, "terminal", command="echo hi")
    bad = await call_tool_in(tmp_path, "terminal", command="ls /nowhere; exit 4")
    assert (good.text, good.failed) == ("exit code: 0\nhi", False)
    assert bad.text.startswith("exit code: 4\nls: ")
    assert bad.failed
    assert (
        await call_tool_in(tmp_path, "terminal", command="true")
    ).text == "exit code: 0\n(no output)"
    assert (await call_tool_in(tmp_path, "terminal", command="kill -9 $$")).text.startswith(
        "exit code: 137 (ended by SIGKILL)"
    )


async def test_a_compaction_understands_the_outcome(tmp_path: Path) -> None:
    """A compaction reads the outcome from the text of the result."""
    for command, outcome in (("echo hi; exit 3", "exit 3"), ("sleep 50", "timed out")):
        arguments = {"command": command, "timeout": 1}
        reply = await call_tool_in(tmp_path, "terminal", **arguments)
        line = describe_call(ToolCall("call_1", "terminal", json.dumps(arguments)), reply.text)
        assert line is not None
        assert outcome in line


async def test_it_runs_in_the_workspace_or_below(tmp_path: Path) -> None:
    work = write_files(tmp_path, {"sub/a.txt": "x"})
    assert (await call_tool_in(tmp_path, "terminal", command="pwd")).text.endswith(str(work))
    assert (await call_tool_in(tmp_path, "terminal", command="ls", workdir="sub")).text.endswith(
        "a.txt"
    )
    (work / "out").symlink_to(tmp_path)
    for workdir in ("..", "/", "out", "~"):
        with pytest.raises(InputError, match="outside the workspace"):
            await call_tool_in(tmp_path, "terminal", command="pwd", workdir=workdir)
    for workdir in ("missing", "sub/a.txt"):
        with pytest.raises(InputError, match="is no folder"):
            await call_tool_in(tmp_path, "terminal", command="pwd", workdir=workdir)


async def test_a_timeout_is_reported(tmp_path: Path) -> None:
    reply = await call_tool_in(tmp_path, "terminal", command="echo begun; sleep 60", timeout=1)
    assert reply.failed
    assert (
        reply.text
        == "exit code: none; it timed out after 1 s and was ended with everything it had started\nbegun"
    )


async def test_background_processes_are_reported(tmp_path: Path) -> None:
    reply = await call_tool_in(
        tmp_path,
        "terminal",
        command="(for n in {1..600}; do [ -e stop ] && break; sleep 0.05; done) & echo up",
    )
    (tmp_path / "work" / "stop").touch()
    assert reply.text.startswith(
        "exit code: 0\nup\n[something it started still runs in the background; to end it: kill -- "
    )


async def test_a_command_needs_permission(tmp_path: Path) -> None:
    terminal = TOOLS["terminal"]
    async with open_tool_context(tmp_path) as context:
        (context.workspace / "sub").mkdir()
        at_top = terminal.needs({"command": "make  x"}, context)
        arguments = {"command": "make", "workdir": "./sub/../sub"}
        in_folder = terminal.needs(arguments, context)
    assert at_top == Permission("command", "make  x")
    assert in_folder == Permission("command", "make", "in sub")


async def test_without_an_environment_no_command_runs(tmp_path: Path) -> None:
    async with open_tool_context(tmp_path) as context:
        without_environment = replace(context, environment=None)
        reply = await call_tool(without_environment, "terminal", command="touch made")
    assert reply.failed
    assert "cannot be run here" in reply.text
    assert not (tmp_path / "work" / "made").exists()
