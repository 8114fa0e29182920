"""Run slash commands in tests."""

from __future__ import annotations

import json
from typing import Any

from everthread import Agent
from everthread.agent import commands
from everthread.agent.commands import CommandResult
from everthread.testing import ScriptedModel
from tests.agent.agent_setup import Agents
from tests.conversation.conversation_setup import send_texts

SMALL = "compression: {background: false, protect_last_n: 2}"


async def run_command(agent: Any, text: str) -> CommandResult:
    """Run a command; check that its data are JSON and that the model was not asked."""
    conversation = getattr(agent, "conversation", agent)
    result = await commands.run(agent, conversation.store, text)
    json.dumps(result.data)
    assert result.text
    return result


async def open_with_turns(
    agents: Agents, turns: int = 8, **more: Any
) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(lambda _: "Noted.", **more)
    agent = await agents.open(model, config=SMALL)
    await send_texts(agent, turns, 600, "page")
    return agent, model
