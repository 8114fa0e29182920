"""`/model`, `/usage` and `/insights`."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.lab.provider import Provider, ServedModel
from everthread.providers.local import SMOLLM2
from everthread.testing import ScriptedModel
from everthread.thread.events import CompactionDone
from everthread.thread.used_window import describe_window
from tests.agent.agent_setup import Agents, open_agents
from tests.agent.commands.command_runs import SMALL, open_with_turns, run_command
from tests.conversation.conversation_setup import send_texts
from tests.conversation.http_setup import KEY


@pytest.mark.parametrize(
    ("config", "window"), [("", 8_192), ("model: {context_length: 4096}", 4_096)]
)
async def test_switching_to_the_local_model_uses_its_whole_window(
    agents: Agents, home: Path, config: str, window: int
) -> None:
    file = SMOLLM2.path(home)
    file.parent.mkdir(parents=True)
    file.touch()  # nothing is loaded before the first call
    agent = await agents.open(ScriptedModel(), config=config)
    result = await run_command(agent, f"/model local/{SMOLLM2.name}")
    assert result.data["window"] == agent.conversation.window == window


async def test_a_learnt_window_names_its_source(agents: Agents) -> None:
    agent = await agents.open(ScriptedModel(window=400_000))
    assert describe_window(agent.conversation.window, agent.conversation.route) == (
        "400,000 tokens (the model's own)"
    )
    assert describe_window(16_000, agent.conversation.route) == (
        "16,000 tokens, learnt from the provider"
    )


async def test_usage_and_insights_read_the_store(agents: Agents) -> None:
    fresh = await agents.open(ScriptedModel())
    assert "No call" in (await run_command(fresh, "/usage")).text
    agent, _ = await open_with_turns(agents, 3)
    usage = await run_command(agent, "/usage")
    spent = await agents.store.usage.list_usage(agent.conversation.id)
    assert usage.data["sums"]["all"]["prompt"] == sum(item.usage.prompt_tokens for item in spent)
    assert "3 calls" in usage.text
    unpriced = await agents.open(ScriptedModel(["hm"], name="nobody-knows-this-model"))
    await unpriced.send("Hi.")
    result = await run_command(unpriced, "/usage")
    assert result.data["sums"]["all"]["cost"] is None
    assert "cost unknown" in result.text
    insights = await run_command(agent, "/insights 7")
    assert insights.data["total"]["calls"] == 4
    assert "gpt-4o" in insights.text
    assert (await run_command(agent, "/insights never")).failed


async def test_model_shows_and_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-lab")
    models = [
        ServedModel("gpt-4o", 64_000, shows="max_model_len"),
        ServedModel("gpt-4o-mini", 9_000, shows="max_model_len"),
    ]
    async with (
        Provider(models, lambda request: f"I am {request.model}.") as provider,
        open_agents(tmp_path) as agents,
    ):
        address = (
            f"model: {{default: gpt-4o, provider: custom, base_url: '{provider.url}/v1', api_key_env: {KEY}, "
            "context_length: 60_000}"
        )
        agent = await agents.open(None, config=f"{address}\n{SMALL}")
        assert (await agent.send("Who?")).text == "I am gpt-4o."
        assert agent.conversation.window == 60_000, (
            "the configured window applies to the configured model only"
        )
        await send_texts(agent, 6, 1_000, "row")
        assert "gpt-4o" in (await run_command(agent, "/model")).text
        switched = await run_command(agent, "/model gpt-4o-mini")
        assert switched.data == {
            "model": "gpt-4o-mini",
            "window": 9_000,
            "source": switched.data["source"],
            "api": "openai_chat",
        }
        assert "compacted before the next call" in switched.text
        assert (await agent.send("And now?")).text == "I am gpt-4o-mini."
        assert agents.events_of(CompactionDone)
        branch = await run_command(agent, "/branch")
        await agent.switch(branch.next_session or "")
        assert (await agent.send("Here too?")).text == "I am gpt-4o-mini."
        assert (await run_command(agent.conversation, "/model gpt-4o")).failed
