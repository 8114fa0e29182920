"""Permissions: their reach, the time an approval takes, and the fate of approved processes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.agent.turn_events import ToolFinished
from everthread.testing import ScriptedModel
from tests.agent.setting import Double, calls, place, results, saying
from tests.agent.test_processes import gone, lives


async def test_approval_time_is_not_tool_time_and_blocks_no_other_call(
    tmp_path: Path,
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

    shell = saying("shell", kind="command")
    wanted = [
        *(("shell", {"what": f"{n}"}, f"c{n}") for n in range(2)),
        ("look", {}, "c2"),
    ]
    async with place(tmp_path) as here:
        model = ScriptedModel([calls(*wanted), "ok"])
        config = "agent: {parallel: 1}"
        tools = [shell, Double("look", look)]
        agent = await here.open(
            model, tools=tools, approve=approve, yes=False, config=config
        )
        await agent.send("Go.")
        assert results(agent) == ["done", "done", "looked"]
        assert all(event.seconds < 0.8 for event in here.told(ToolFinished))


async def test_a_permission_shows_the_file_after_the_previous_write(
    tmp_path: Path,
) -> None:
    details: list[str] = []

    async def approve(permission: Permission) -> bool:
        details.append(permission.detail)
        return True

    async with place(tmp_path) as here:
        patch = {"path": "a.txt", "old_text": "one", "new_text": "two"}
        model = ScriptedModel(
            [
                calls(
                    ("write_file", {"path": "a.txt", "content": "one\n"}),
                    ("patch", patch),
                ),
                "ok",
            ]
        )
        (here.workspace / "a.txt").write_text("one!\n", "utf-8")
        agent = await here.open(model, approve=approve, yes=False)
        await agent.send("Go.")
        assert (here.workspace / "a.txt").read_text("utf-8") == "two\n"
        assert "-one!" in details[0]
        assert "-one\n+two" in details[1]


@pytest.mark.parametrize(
    "wanted",
    [
        ("write_file", {"path": "d/a.txt", "content": "new"}),
        ("patch", {"path": "d/a.txt", "old_text": "old", "new_text": "new"}),
        ("terminal", {"command": "echo new > a.txt", "workdir": "d"}),
    ],
)
async def test_a_permission_does_not_follow_a_link_created_meanwhile(
    tmp_path: Path, wanted: Any
) -> None:
    async with place(tmp_path) as here:
        for name in ("shown", "other"):
            (here.workspace / name).mkdir()
            (here.workspace / name / "a.txt").write_text("old", "utf-8")
        link = here.workspace / "d"
        link.symlink_to("shown")

        async def approve(permission: Permission) -> bool:
            assert "shown" in permission.what + permission.detail
            link.unlink()
            link.symlink_to("other")
            return True

        agent = await here.open(
            ScriptedModel([calls(wanted), "ok"]), approve=approve, yes=False
        )
        await agent.send("Go.")
        assert "shown" in results(agent)[0]
        assert {
            (here.workspace / name / "a.txt").read_text("utf-8")
            for name in ("shown", "other")
        } == {"old"}


async def test_background_processes_end_with_the_agent(tmp_path: Path) -> None:
    async def talk() -> int:
        async with place(tmp_path) as here:
            command = {"command": "sleep 60 > /dev/null 2>&1 & echo $! > pid"}
            agent = await here.open(ScriptedModel([calls(("terminal", command)), "ok"]))
            await agent.send("Serve.")
            assert "still runs in the background" in results(agent)[0]
            pid = int((here.workspace / "pid").read_text("utf-8"))
            assert lives(pid)
            await agent.close()
            return pid

    assert await gone(await talk())
