"""From a configuration to a conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread import open_conversation
from everthread.config import parse_config
from everthread.core.types import ModelRequest
from everthread.errors import ConfigError, EverthreadError
from everthread.factory import fit_request
from everthread.lab.provider import Fault, Provider
from everthread.providers.clients import OpenAIChatModel
from everthread.testing import PrefixWatch, ScriptedModel
from everthread.thread.events import Notice
from tests.conversation.conversation_setup import make_text, send_texts
from tests.conversation.http_setup import (
    KEY,
    OpenHttp,
    answer_script,
    make_summary_text,
    served_model,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERTHREAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(KEY, "sk-lab")
    return tmp_path / "home"


def write_config(home: Path, text: str) -> None:
    home.mkdir()
    (home / "config.yaml").write_text(text)


async def test_reads_the_configuration_and_the_store_of_the_home_directory(
    home: Path,
) -> None:
    async with Provider({"gpt-4o": 32_000}, ["one"]) as provider:
        address = f"base_url: '{provider.url}/v1', context_length: 32000"
        write_config(home, f"model: {{default: gpt-4o, provider: custom, {address}}}")
        async with await open_conversation() as conversation:
            assert (await conversation.send("Hi")).text == "one"
            assert conversation.window == 32_000
        assert (home / "everthread.db").exists()


async def test_names_a_missing_key_or_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        await open_conversation("gpt-4o", store=tmp_path / "s.db")
    with pytest.raises(ConfigError, match=r"model\.default"):
        await open_conversation(store=tmp_path / "s.db")


async def test_a_missing_engine_is_an_error_not_replaced(
    tmp_path: Path,
) -> None:
    config = parse_config("context: {engine: nonesuch}")
    with pytest.raises(Exception, match="no context engine 'nonesuch'"):
        await open_conversation(ScriptedModel(), config=config, store=tmp_path / "s.db")


async def test_the_auxiliary_model_writes_the_summary(open_http: OpenHttp) -> None:
    served = [
        served_model("gpt-4o", 16_000),
        served_model("gpt-4o-mini", 128_000),
    ]
    conversations = await open_http(
        served,
        answer_script(lambda _: make_text(150), lambda _: make_summary_text("By the small one.")),
    )
    conversation = await conversations.open(
        "gpt-4o",
        extra="auxiliary: {compression: {model: gpt-4o-mini, provider: main}}",
    )
    await send_texts(conversation, 10, 300, "page")
    compaction = await conversation.compress()
    assert compaction.author == "gpt-4o-mini"
    assert {call.model for call in conversations.summary_calls()} == {"gpt-4o-mini"}
    summary_usage = [
        item
        for item in await conversations.store.usage.list_usage(conversation.id)
        if item.task == "auxiliary"
    ]
    assert {item.model for item in summary_usage} == {"gpt-4o-mini"}
    assert conversations.compactions[0].cost is not None


async def test_a_fallback_model_gets_a_request_that_fits_its_window(
    tmp_path: Path,
) -> None:
    async with (
        Provider({"gpt-4o": 64_000}, [*["ok"] * 8, *[Fault("overloaded")] * 9]) as first,
        Provider({"small": 4_000}, ["from the other"]) as second,
    ):
        watch = PrefixWatch()
        fallback = OpenAIChatModel(
            "small",
            window=4_000,
            base_url=f"{second.url}/v1",
            api_key="x",
        )
        config = parse_config(
            f"model: {{default: gpt-4o, provider: custom, base_url: '{first.url}/v1'}}"
        )
        conversation = await open_conversation(
            config=config,
            store=tmp_path / "s.db",
            fallback=[fallback],
            listener=watch,
            summarizer="journal",
        )
        await send_texts(conversation, 8, 900, "page")
        answer = await conversation.send("Are you there?")
        assert answer.text == "from the other"
        assert second.log[0].prompt_tokens < 4_000
        assert len(conversation.messages) == 18, "nothing was compacted for it"
        assert any("another model is asked" in item.text for item in watch.of(Notice))
        usage = await conversation.usage()
        assert usage[-1].model == "small"
        await conversation.close()
        await fallback.aclose()


async def test_a_request_that_fits_is_left_alone() -> None:
    request = ModelRequest(
        "big",
        [
            {
                "role": "user",
                "content": "Hi",
            }
        ],
    )
    assert await fit_request(request, ScriptedModel(window=8_000)) is request


async def test_a_failed_opening_closes_everything(tmp_path: Path) -> None:
    config = parse_config("model: {provider: local, default: no-such-model}")
    with pytest.raises(EverthreadError, match="no-such-model"):
        await open_conversation(config=config, store=tmp_path / "s.db")
