"""Finding and running slash commands; none of them reaches the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from everthread.agent.commands import COMMANDS, CommandResult, parse
from everthread.agent.tool_interface import ToolContext, ToolReply
from everthread.core.messages import text_of
from everthread.testing import ScriptedModel
from tests.agent.agent_setup import Agents, FakeTool
from tests.agent.commands.command_runs import open_with_turns, run_command
from tests.chat_messages import call_reply


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/help", ("help", "")),
        ("  /compress the  ports ", ("compress", "the  ports")),
        ("/Compact the ports", ("compress", "the ports")),
        ("/Search\nretry budget", ("search", "retry budget")),
        ("/etc/hosts is wrong", None),
        ("/usr/bin", None),
        ("hello /help", None),
        ("//comment", None),
        ("/", None),
        ("", None),
        ("/ help", None),
    ],
)
def test_slash_commands_are_parsed(text: str, expected: tuple[str, str] | None) -> None:
    assert parse(text) == expected


COMMAND_NAMES = (
    "compress",
    "undo",
    "usage",
    "insights",
    "new",
    "resume",
    "branch",
    "sessions",
    "search",
    "help",
    "model",
    "context",
    "pin",
    "memory",
    "why",
    "state",
)


async def test_help_lists_every_command(agents: Agents) -> None:
    assert {command.name for command in COMMANDS} == set(COMMAND_NAMES)
    agent = await agents.open(ScriptedModel())
    result = await run_command(agent, "/help")
    assert all(command.usage in result.text for command in COMMANDS)
    one = await run_command(agent, "/help undo")
    assert one.text.count("\n") == 0
    assert (await run_command(agent, "/help compact")).text.startswith("- `/compress"), (
        "an alias is the command"
    )
    unknown = await run_command(agent, "/help nonsense")
    assert unknown.failed
    assert "no command /nonsense" in unknown.text


async def test_no_command_reaches_the_model(agents: Agents) -> None:
    agent, model = await open_with_turns(agents, 3)
    request_count = len(model.requests)
    for command in COMMANDS:
        await run_command(agent, f"/{command.name}")
        await run_command(agent, f"/{command.name} something odd")
    assert len(model.requests) == request_count
    results = [
        text_of(item.body) for item in await agents.store.load_history(agent.conversation.id)
    ]
    assert not any(text.startswith("/") for text in results)


async def test_commands_that_change_the_context_are_refused_during_a_turn(
    agents: Agents,
) -> None:
    results: list[CommandResult] = []

    async def look(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        lines = (
            "/pin never use tabs",
            "/undo",
            "/compress",
            "/branch",
            "/usage",
            "/context",
        )
        results.extend([await run_command(agent, line) for line in lines])
        return ToolReply("looked")

    agent = await agents.open(
        ScriptedModel([call_reply(("look", {})), "Done."]),
        tools=[FakeTool("look", look)],
    )
    assert (await agent.send("Look.")).text == "Done."
    assert [result.failed for result in results] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert "A turn is running" in results[0].text
    assert not (await run_command(agent, "/pin never use tabs")).failed


async def test_commands_work_on_a_conversation_without_an_agent(
    agents: Agents,
) -> None:
    agent, _ = await open_with_turns(agents, 2)
    failed = {
        c.name for c in COMMANDS if (await run_command(agent.conversation, f"/{c.name}")).failed
    }
    assert failed == {"pin", "memory", "search"}, "they need an argument or an agent"
    fresh = await agents.open(ScriptedModel())
    assert (await run_command(fresh.conversation, "/context")).data["kinds"]["user"] == 0


async def test_an_unknown_command_suggests_near_names(agents: Agents) -> None:
    agent = await agents.open(ScriptedModel())
    result = await run_command(agent, "/compres now")
    assert result.failed
    assert "/compress" in result.text
    assert "sessions" in (await run_command(agent, "/sess")).data["near"]
    assert (await run_command(agent, "/xyzzy")).data["near"] == []
    assert (await run_command(agent, "no command")).failed


async def test_accepts_command_names_of_other_programs(agents: Agents) -> None:
    agent, _ = await open_with_turns(agents, 2)
    assert (await run_command(agent, "/cost")).data["sums"] == (
        await run_command(agent, "/usage")
    ).data["sums"]
    assert (await run_command(agent, "/clear")).next_session
