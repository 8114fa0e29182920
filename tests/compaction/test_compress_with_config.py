"""`compress` with a configuration: its engine, its auxiliary model, and errors about missing parts."""

from __future__ import annotations

from typing import Any

import pytest

from everthread import acompress
from everthread.config import parse_config
from everthread.errors import EngineError
from everthread.lab.provider import Provider
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import tool_turns
from tests.conversation.http_setup import KEY, make_summary_text, served_model

CONVERSATION = [
    user_message("Tidy up."),
    assistant_message("I will."),
    user_message("Never push to main."),
    *tool_turns(0, 60),
    user_message("And now?"),
    *tool_turns(60, 2),
]


async def compress_with(config: str, **how: Any) -> Any:
    return await acompress(CONVERSATION, window=16_000, config=parse_config(config), **how)


async def test_the_configured_engine_compacts() -> None:
    result = await compress_with("context: {engine: lossless}")
    assert result.nodes
    assert "Never push to main." in result.summary
    with pytest.raises(EngineError, match="there is no context engine 'nothere'"):
        await compress_with("context: {engine: nothere}")


async def test_an_argument_overrides_the_configured_layout() -> None:
    assert "## Progress" in (await compress_with("compression: {template: classic}")).summary
    assert (
        "## Progress"
        not in (await compress_with("compression: {template: classic}", template="handoff")).summary
    )
    engine = "engines: {compressor: {template: classic}}"
    assert "## Progress" in (await compress_with(engine)).summary
    assert "## Progress" not in (await compress_with(engine, template="handoff")).summary, (
        "an argument wins"
    )


async def test_the_auxiliary_model_writes_the_summary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Provider(
        [served_model("gpt-4o-mini", 64_000)],
        lambda _: make_summary_text("Tidy the whole house."),
    ) as provider:
        route = f"provider: custom, base_url: '{provider.url}/v1', api_key_env: {KEY}"
        config = f"auxiliary: {{compression: {{model: gpt-4o-mini, {route}}}}}"
        without_key = await compress_with(config)
        assert without_key.author == "journal"
        assert any("gpt-4o-mini cannot be used" in warning for warning in without_key.warnings)
        monkeypatch.setenv(KEY, "sk-lab")
        result = await compress_with(config)
        assert result.author == "gpt-4o-mini"
        assert "Tidy the whole house." in result.summary
        assert len(provider.log) == 1
        assert (await compress_with(config, summarizer="journal")).author == "journal"
        assert (await compress_with(config, preview=True)).reason == "preview"
        assert len(provider.log) == 1, "neither asks a model"


async def test_instructions_in_the_list_that_reach_the_threshold_raise_it() -> None:
    guide = "Follow the guide. " * 4_500
    history = [user_message("Tidy up."), assistant_message("Tell. " * 2_000)]
    result = await acompress(
        [{"role": "system", "content": guide}, *history], window=32_000, model="gpt-4o"
    )
    assert result.tokens_before > 16_000
    assert "below the threshold of 27,200" in result.reason
