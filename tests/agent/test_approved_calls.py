"""Permissions: their reach, the time an approval takes, and the fate of approved processes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.agent.turn_events import ToolFinished
from tests.agent.agent_setup import Agents, FakeTool, text_tool, tool_results
from tests.agent.process_checks import are_gone, is_running


async def test_approval_time_is_not_tool_time_and_blocks_no_other_call(
    agents: Agents,
) -> None:
    read = asyncio.Event()

    async def look(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        read.set()
        return ToolReply("looked")

    async def approve(permission: Permission) -> bool:
        async with asyncio.timeout(10):
            await read.wait()
        await asyncio.sleep(0.8)
        return True

    shell = text_tool("shell", kind="command")
    calls = [
        ("shell", {"what": "0"}, "c0"),
        ("shell", {"what": "1"}, "c1"),
        ("look", {}, "c2"),
    ]
    agent = await agents.run_calls(
        *calls,
        tools=[shell, FakeTool("look", look)],
        approve=approve,
        yes=False,
        config="agent: {parallel: 1}",
    )
    assert tool_results(agent) == ["done", "done", "looked"]
    assert all(event.seconds < 0.8 for event in agents.events_of(ToolFinished))


async def test_a_permission_shows_the_file_after_the_previous_write(
    agents: Agents,
) -> None:
    details: list[str] = []

    async def approve(permission: Permission) -> bool:
        details.append(permission.detail)
        return True

    patch = {
        "path": "a.txt",
        "old_text": "one",
        "new_text": "two",
    }
    write = {"path": "a.txt", "content": "one\n"}
    (agents.workspace / "a.txt").write_text("one!\n", "utf-8")
    await agents.run_calls(("write_file", write), ("patch", patch), approve=approve, yes=False)
    assert (agents.workspace / "a.txt").read_text("utf-8") == "two\n"
    assert "-one!" in details[0]
    assert "-one\n+two" in details[1]


@pytest.mark.parametrize(
    "call",
    [
        ("write_file", {"path": "d/a.txt", "content": "new"}),
        (
            "patch",
            {
                "path": "d/a.txt",
                "old_text": "old",
                "new_text": "new",
            },
        ),
        ("terminal", {"command": "echo new > a.txt", "workdir": "d"}),
    ],
)
async def test_a_permission_does_not_follow_a_link_created_meanwhile(
    agents: Agents, call: Any
) -> None:
    for name in ("shown", "other"):
        (agents.workspace / name).mkdir()
        (agents.workspace / name / "a.txt").write_text("old", "utf-8")
    link = agents.workspace / "d"
    link.symlink_to("shown")

    async def approve(permission: Permission) -> bool:
        assert "shown" in permission.target + permission.detail
        link.unlink()
        link.symlink_to("other")
        return True

    agent = await agents.run_calls(call, approve=approve, yes=False)
    assert "shown" in tool_results(agent)[0]
    assert {
        (agents.workspace / name / "a.txt").read_text("utf-8") for name in ("shown", "other")
    } == {"old"}


async def test_background_processes_end_with_the_agent(agents: Agents) -> None:
    command = {"command": "sleep 60 > /dev/null 2>&1 & echo $! > pid"}
    agent = await agents.run_calls(("terminal", command))
    assert "still runs in the background" in tool_results(agent)[0]
    pid = int((agents.workspace / "pid").read_text("utf-8"))
    assert is_running(pid)
    await agent.close()
    assert await are_gone(pid)
