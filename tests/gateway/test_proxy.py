"""The official clients through the gateway, against the simulated provider: they see no difference."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from everthread.core.messages import text_of
from everthread.gateway.contracts import IncomingRequest, Outgoing
from everthread.gateway.exchange import Exchange
from everthread.gateway.managed_exchange import ManagedExchange
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Upstream
from everthread.lab.provider import Fault, Provider
from tests.gateway.raw_http import (
    PassThroughManager,
    open_raw_gateway,
    open_raw_upstream,
    send_get,
)

CLAUDE = "claude-opus-4-8"
MODELS = {
    "gpt-4o": 128_000,
    "gpt-5": 400_000,
    CLAUDE: 200_000,
}
HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]


def first_text(message: Any) -> str:
    return str(message.content[0].text)


class ProxyClients:
    """Provider, gateway, manager, and both clients."""

    def __init__(
        self, provider: Provider, url: str, proxy: Proxy, manager: PassThroughManager
    ) -> None:
        self.provider = provider
        self.url = url
        self.proxy = proxy
        self.manager = manager
        self.openai = openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="sk-theirs",
            max_retries=0,
        )
        self.anthropic = anthropic.AsyncAnthropic(
            base_url=url, api_key="sk-ant-theirs", max_retries=0
        )

    def ask_chat(self, **options: Any) -> Any:
        create = self.openai.chat.completions.create
        return create(model="gpt-4o", messages=HELLO, **options)

    def ask_claude(self, model: str = CLAUDE) -> Any:
        create = self.anthropic.messages.create
        return create(model=model, max_tokens=50, messages=HELLO)

    async def close(self) -> None:
        await self.openai.close()
        await self.anthropic.close()


@asynccontextmanager
async def open_proxy(
    script: Any = None, manager: PassThroughManager | None = None, **settings: Any
) -> AsyncIterator[ProxyClients]:
    manager = manager or PassThroughManager()
    async with (
        Provider(MODELS, script) as provider,
        open_raw_gateway(provider.url, manager, **settings) as (url, proxy),
    ):
        clients = ProxyClients(
            provider,
            url,
            proxy=proxy,
            manager=manager,
        )
        try:
            yield clients
        finally:
            await clients.close()


async def test_an_exchange_is_freed_without_a_garbage_collection() -> None:
    def exchanges() -> list[object]:
        """All of them: without a collection every new object is in the youngest generation."""
        new = gc.get_objects(generation=0)
        return [found for found in new if isinstance(found, (Exchange, ManagedExchange))]

    async with open_proxy(["One.", "Two."]) as clients:
        await clients.ask_chat()
        gc.collect()
        gc.disable()
        try:
            await clients.ask_chat()
            async with asyncio.timeout(60):
                while exchanges():  # noqa: ASYNC110 - nothing tells that an object is freed
                    await asyncio.sleep(0.01)
            assert exchanges() == []
        finally:
            gc.enable()


async def test_relays_answers_and_records_their_usage() -> None:
    async with open_proxy(["One.", "Two.", "Three."]) as clients:
        chat = await clients.ask_chat()
        assert chat.choices[0].message.content == "One."
        response = await clients.openai.responses.create(model="gpt-5", input="Hello")
        assert response.output_text == "Two."
        assert first_text(await clients.ask_claude()) == "Three."
        count_tokens = clients.anthropic.messages.count_tokens
        counted = await count_tokens(model=CLAUDE, messages=HELLO)
        assert counted.input_tokens > 0
        assert {model.id async for model in await clients.openai.models.list()} == set(MODELS)
    texts = []
    for outcome, record in zip(clients.manager.outcomes, clients.provider.log, strict=False):
        assert outcome.usage is not None
        assert outcome.usage.prompt_tokens == record.prompt_tokens
        assert outcome.reply is not None
        texts.append(text_of(outcome.reply.message))
    assert texts == ["One.", "Two.", "Three."]
    assert clients.proxy.metrics.value("tokens", bucket="output") > 0


async def test_relays_streams_and_records_their_usage() -> None:
    async with open_proxy(["One and more.", "Two and more.", "Three and more."]) as clients:
        chunks = [chunk async for chunk in await clients.ask_chat(stream=True)]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == "One and more."
        assert all(chunk.choices for chunk in chunks), "the extra chunk is not the client's"
        async with clients.openai.responses.stream(model="gpt-5", input="Hello") as stream:
            assert (await stream.get_final_response()).output_text == "Two and more."
        async with clients.anthropic.messages.stream(
            model=CLAUDE, max_tokens=50, messages=HELLO
        ) as messages:
            assert await messages.get_final_text() == "Three and more."
    usages = [outcome.usage for outcome in clients.manager.outcomes]
    assert [bool(usage and usage.output_tokens) for usage in usages] == [True] * 3
    assert clients.provider.log[0].body["stream_options"] == {"include_usage": True}
    assert clients.proxy.metrics.value("rewrites", kind="include_usage") == 1


@pytest.mark.parametrize(
    ("options", "mode", "include_usage", "sent"),
    [
        ({"include_usage": False}, "managed", True, {"include_usage": False}),
        ({"include_usage": True}, "managed", True, {"include_usage": True}),
        ({"x": 1}, "managed", True, {"include_usage": True, "x": 1}),
        (openai.omit, "managed", False, None),
        (openai.omit, "observe", True, None),
        (openai.omit, "off", True, None),
    ],
)
async def test_asks_for_stream_usage_only_in_managed_mode(
    options: Any, mode: Any, include_usage: bool, sent: Any
) -> None:
    async with open_proxy(mode=mode, include_usage=include_usage) as clients:
        stream = await clients.ask_chat(stream=True, stream_options=options)
        has_usage = not all([chunk.choices async for chunk in stream])
        assert has_usage == (options == {"include_usage": True})
        assert clients.provider.log[0].body.get("stream_options") == sent


async def test_passes_provider_errors_on() -> None:
    async with open_proxy([Fault("rate_limit", retry_after=7)]) as clients:
        with pytest.raises(openai.RateLimitError) as limited:
            await clients.ask_chat()
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(anthropic.NotFoundError):
            await clients.ask_claude("claude-none")
    assert [status for status, _ in clients.manager.errors] == [429, 404]
    assert clients.proxy.metrics.value("upstream_errors", status="429") == 1


class FailingToPrepare(PassThroughManager):
    """Fails before anything is sent."""

    async def outgoing(self, incoming: IncomingRequest) -> Outgoing:
        raise ValueError(f"no {incoming.api}")


class FailingLater(PassThroughManager):
    """Fails at every later step."""

    async def recover_with(
        self, _incoming: IncomingRequest, _sent: Outgoing, _body: bytes
    ) -> Outgoing | None:
        raise KeyError("nothing")

    async def record(self, incoming: IncomingRequest, sent: Outgoing, outcome: Any) -> None:
        await super().record(incoming, sent, outcome)
        raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("manager", "failures"),
    [
        (FailingToPrepare, [2, 0, 0]),
        (FailingLater, [0, 1, 2]),
    ],
)
async def test_forwards_the_original_request_if_the_manager_fails(
    manager: Any, failures: list[int]
) -> None:
    async with open_proxy(
        ["Fine.", Fault("overloaded")], manager(), include_usage=False
    ) as clients:
        assert first_text(await clients.ask_claude()) == "Fine."
        with pytest.raises(anthropic.APIStatusError):
            await clients.ask_claude()
    steps = [
        clients.proxy.metrics.value("failed_open", step=step)
        for step in ("prepare", "refused", "answered")
    ]
    assert steps == failures


async def test_chooses_the_upstream_by_the_model(http: httpx2.AsyncClient) -> None:
    headers = {"authorization": "Bearer sk-theirs"}
    async with Provider(MODELS) as first, Provider(MODELS) as second:
        upstreams = [
            Upstream(
                "a",
                f"{first.url}/v1",
                models=("gpt-*",),
                provider="openai",
                api_key="sk-ours",
            ),
            Upstream(
                "b",
                second.url,
                models=("claude-*",),
                provider="anthropic",
            ),
        ]
        async with open_raw_gateway(upstreams) as (url, _):
            for path, model in (
                ("chat/completions", "gpt-4o"),
                ("chat/completions", CLAUDE),
                ("messages/count_tokens", CLAUDE),
            ):
                body = {
                    "model": model,
                    "messages": HELLO,
                    "max_tokens": 5,
                }
                await http.post(f"{url}/v1/{path}", json=body, headers=headers)
            models = f"{url}/v1/models"
            listed = await http.get(models, headers={"anthropic-version": "1"})
            assert listed.status_code == 200
        sent = [record.headers["authorization"] for record in first.log]
        assert sent == ["Bearer sk-ours"]
        assert second.log[0].headers["authorization"] == "Bearer sk-theirs"
        paths = [record.path for record in second.log]
        assert paths == [
            "/v1/chat/completions",
            "/v1/messages/count_tokens",
        ]


async def test_chooses_the_upstream_by_the_model_in_the_path() -> None:
    async with open_raw_upstream() as one, open_raw_upstream() as other:
        upstreams = [
            Upstream("a", one.url, ("gpt-*",)),
            Upstream("b", other.url, ("claude-*",)),
        ]
        async with open_raw_gateway(upstreams) as (url, _):
            await send_get(url, f"/v1/models/{CLAUDE}")
    assert one.received == []
    [request] = other.received
    assert request.line == f"GET /v1/models/{CLAUDE} HTTP/1.1".encode()
