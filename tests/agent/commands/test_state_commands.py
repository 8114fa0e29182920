"""`/state` and `/why`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everthread.agent.approval import Approvals
from everthread.testing import ScriptedModel
from tests.agent.agent_setup import Agents, open_agents
from tests.agent.commands.command_runs import open_with_turns, run_command
from tests.chat_messages import call_reply


async def test_a_refused_command_is_not_a_failed_one(agents: Agents) -> None:
    model = ScriptedModel([call_reply(("terminal", {"command": "rm -r build"})), "Then not."])
    agent = await agents.open(model, approve=Approvals([], None), yes=False)
    await agent.send("Clean up.")
    result = await run_command(agent, "/state")
    assert "– `rm -r build`: refused by the user" in result.text
    assert "Open errors" not in result.text


async def test_why_explains_the_last_compaction_after_a_restart(
    tmp_path: Path,
) -> None:
    async with open_agents(tmp_path) as agents:
        agent, _ = await open_with_turns(agents, 2)
        assert "never compacted" in (await run_command(agent, "/why")).text
        await agents.send_until_compacted(agent, 9_000)
        result = await run_command(agent, "/why")
        assert result.data["reason"] == "preflight"
        assert "took the prompt to the threshold" in result.text
        thread = agent.conversation.id
    async with open_agents(tmp_path) as agents:
        resumed = await agents.open(ScriptedModel(), resume=thread)
        result = await run_command(resumed, "/why")
        assert "took the prompt to the threshold" in result.text


async def test_state_lists_files_and_commands(agents: Agents) -> None:
    script: list[Any] = [
        call_reply(
            ("write_file", {"path": "a.py", "content": "x = 1\n"}),
            ("terminal", {"command": "false"}),
        ),
        call_reply(("terminal", {"command": "mkdir fine"})),
        "Done.",
    ]
    agent = await agents.open(ScriptedModel(script))
    assert "no command was run" in (await run_command(agent, "/state")).text
    await agent.send("Go.")
    result = await run_command(agent, "/state")
    assert [file["path"] for file in result.data["files"]] == ["a.py"]
    assert {run["command"]: run["ok"] for run in result.data["commands"]} == {
        "false": False,
        "mkdir fine": True,
    }
    assert "**Files changed**" in result.text
    assert "✓ `mkdir fine`" in result.text
    assert "✗ `false`" in result.text
