"""`/pin` and `/memory`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.lab.provider import Provider, ServedModel
from everthread.testing import ScriptedModel
from tests.agent.agent_setup import Agents, open_agents
from tests.agent.commands.command_runs import SMALL, run_command
from tests.conversation.http_setup import KEY, NAMES


async def test_a_pinned_rule_is_in_every_request_word_for_word(
    agents: Agents,
) -> None:
    rule = "the invoices folder is read only"
    model = ScriptedModel(lambda _: "Noted.", window=16_000)
    agent = await agents.open(model, config=SMALL)
    await agent.send("Let us tidy up.")
    assert rule in (await run_command(agent, f"/pin  {rule}")).text
    assert len(model.requests) == 1
    await agents.send_until_compacted(agent, 1_000, times=3)
    for request in model.requests[1:]:
        assert any(rule in text_of(message) for message in request.messages)
    assert (await run_command(agent, "/pin")).failed
    assert (await run_command(agent, f"/pin {'very ' * 500}long")).failed


@pytest.mark.parametrize("api", list(NAMES))
async def test_a_pin_keeps_the_history_valid_for_every_protocol(
    tmp_path: Path, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "sk-lab")
    async with (
        Provider([ServedModel(NAMES[api], 200_000)], lambda _: "Noted.") as provider,
        open_agents(tmp_path) as agents,
    ):
        address = provider.url if api == "anthropic" else f"{provider.url}/v1"
        route = f"model: {{default: {NAMES[api]}, provider: custom, base_url: '{address}', api_key_env: {KEY}}}"
        agent = await agents.open(None, config=route, api=api)
        await run_command(agent, "/pin never use tabs")
        await agent.send("Hello.")
        await run_command(agent, "/pin answer in rhyme")
        await agent.send("And now?")
        assert {record.status for record in provider.log} == {200}
        assert "answer in rhyme" in str(provider.log[-1].request)


async def test_memory_is_shown_and_changed(agents: Agents, home: Path) -> None:
    agent = await agents.open(ScriptedModel())
    await run_command(agent, "/memory add The ledger is on 8443")
    await run_command(agent, "/memory add user Is called Ines")
    result = await run_command(agent, "/memory")
    assert result.data["memory"] == ["The ledger is on 8443"]
    assert result.data["user"] == ["Is called Ines"]
    await run_command(agent, "/memory remove 8443")
    assert (await run_command(agent, "/memory show")).data["memory"] == []
    assert (await run_command(agent, "/memory remove nothing")).failed
    assert (await run_command(agent, "/memory eat it")).failed
    assert (await run_command(agent.conversation, "/memory")).failed, (
        "a conversation without an agent has no memory"
    )
