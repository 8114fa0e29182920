"""The whole configured gateway: unmodified clients talk far past the upstream's window."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from everthread.config import parse_config
from everthread.errors import InputError
from everthread.factory import open_store
from everthread.factory.gateways import open_gateway
from everthread.lab.provider import Provider, ServedModel
from tests.gateway.gateway_setup import FILLER
from tests.gateway.manager_setup import statuses_of

WINDOW = 6_000
NAMES = {
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-5",
    "anthropic": "claude-sonnet-5",
}


@asynccontextmanager
async def composed(
    folder: Path, *, mode: str = "managed", models: Any = None, more: str = ""
) -> AsyncIterator[tuple[Provider, str]]:
    served = models or [ServedModel(name, WINDOW, shows="max_model_len") for name in NAMES.values()]
    async with Provider(served) as provider:
        text = f"""
gateway: {{port: 0, mode: {mode}, {more} upstreams: [{{name: lab, url: '{provider.url}'}}]}}
store: {{url: 'sqlite:///{folder / "gateway.db"}'}}
"""
        async with open_gateway(parse_config(text)) as gateway:
            yield provider, gateway.url


class Client:
    """One history, sent whole each time through the official client of a protocol."""

    def __init__(self, api: str, url: str, *, stream: bool) -> None:
        self._api = api
        self._model = NAMES[api]
        self._stream = stream
        self._openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        self._anthropic = anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)
        self.history: list[Any] = []

    async def say(self, text: str) -> str:
        self.history.append({"role": "user", "content": text})
        answer = await getattr(self, f"_{self._api}_answer")()
        self.history.append({"role": "assistant", "content": answer})
        return str(answer)

    async def close(self) -> None:
        await self._openai.close()
        await self._anthropic.close()

    async def _openai_chat_answer(self) -> str:
        create: Any = self._openai.chat.completions.create
        if not self._stream:
            return str(
                (await create(model=self._model, messages=self.history)).choices[0].message.content
            )
        chunks = await create(model=self._model, messages=self.history, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def _openai_responses_answer(self) -> str:
        if not self._stream:
            return (
                await self._openai.responses.create(model=self._model, input=self.history)
            ).output_text
        async with self._openai.responses.stream(model=self._model, input=self.history) as stream:
            return (await stream.get_final_response()).output_text

    async def _anthropic_answer(self) -> str:
        request_body: Any = {
            "model": self._model,
            "messages": self.history,
            "max_tokens": 300,
        }
        if not self._stream:
            answer: Any = await self._anthropic.messages.create(**request_body)
            return str(answer.content[0].text)
        async with self._anthropic.messages.stream(**request_body) as stream:
            return await stream.get_final_text()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", NAMES)
async def test_continues_past_the_window(api: str, stream: bool, tmp_path: Path) -> None:
    async with composed(tmp_path) as (provider, url):
        client = Client(api, url, stream=stream)
        for number in range(24):
            assert await client.say(f"Entry {number}: {FILLER * 12}")
        await client.close()
        assert statuses_of(provider) == [200] * 24
        assert max(record.prompt_tokens for record in provider.log) < WINDOW
        last = provider.log[-1].request
        assert last is not None
        assert len(last.messages) < len(client.history)


async def test_learns_the_window_from_a_refusal(tmp_path: Path) -> None:
    served = [ServedModel("gpt-4o", WINDOW)]
    async with composed(tmp_path, models=served) as (provider, url):
        client = Client("openai_chat", url, stream=False)
        for number in range(24):
            assert await client.say(f"Entry {number}: {FILLER * 12}")
        await client.close()
        assert statuses_of(provider).count(400) <= 2


async def test_observe_mode_sends_requests_unchanged(tmp_path: Path) -> None:
    async with composed(tmp_path, mode="observe") as (provider, url):
        client = Client("anthropic", url, stream=True)
        while provider.log == [] or provider.log[-1].prompt_tokens < WINDOW - 900:
            await client.say(f"Entry: {FILLER * 12}")
        with pytest.raises(anthropic.APIStatusError):
            await client.say(FILLER * 60)
        await client.close()
        sent = provider.log[-1].body["messages"]
        assert sent == client.history


async def test_records_threads_and_usage(tmp_path: Path) -> None:
    async with composed(tmp_path) as (_, url):
        client = Client("anthropic", url, stream=True)
        await client.say("Hello")
        await client.say("And again")
        await client.close()
    store = open_store(tmp_path / "gateway.db")
    try:
        (thread,) = await store.list_threads()
        history = await store.history(thread.first.id)
        assert len(history) == 4
        usage = await store.usage.list_usage(thread.first.id)
        assert len(usage) == 2
    finally:
        await store.close()


async def test_reports_a_taken_port_in_a_sentence(tmp_path: Path) -> None:
    async with composed(tmp_path) as (provider, _):
        taken = provider.url.rpartition(":")[2]
        store = f"store: {{url: 'sqlite:///{tmp_path / 'other.db'}'}}"
        with pytest.raises(InputError, match=f"port {taken} of 127.0.0.1 cannot be used"):
            async with open_gateway(parse_config(store), port=int(taken)):
                pass


@pytest.mark.parametrize("is_on", [True, False])
async def test_the_setting_cache_marks_adds_or_omits_them(is_on: bool, tmp_path: Path) -> None:
    async with composed(tmp_path, more=f"cache_marks: {str(is_on).lower()},") as (
        provider,
        url,
    ):
        client = Client("anthropic", url, stream=False)
        await client.say(FILLER * 80)
        await client.say("Go on.")
        await client.close()
        usage = [record.canonical_usage for record in provider.log]
        assert [used.cache_write_tokens > 0 for used in usage] == [False, is_on]
