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
from everthread.gateway.contracts import Incoming, Outgoing
from everthread.gateway.exchange import Exchange
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Upstream
from everthread.lab.provider import Fault, Provider
from tests.gateway.raw_http import (
    PassThroughManager,
    open_raw_gateway,
    raw_upstream,
)

MODELS = {"gpt-4o": 128_000, "gpt-5": 400_000, "claude-opus-4-8": 200_000}
HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]


def first_text(message: Any) -> str:
    return str(message.content[0].text)


class ProxySetup:
    """Provider, gateway, manager, and both clients."""

    def __init__(
        self, provider: Provider, url: str, proxy: Proxy, manager: PassThroughManager
    ) -> None:
        self.provider = provider
        self.url = url
        self.proxy = proxy
        self.manager = manager
        self.openai = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="sk-theirs", max_retries=0
        )
        self.anthropic = anthropic.AsyncAnthropic(
            base_url=url, api_key="sk-ant-theirs", max_retries=0
        )

    async def close(self) -> None:
        await self.openai.close()
        await self.anthropic.close()


@asynccontextmanager
async def open_proxy(
    script: Any = None, manager: PassThroughManager | None = None, **settings: Any
) -> AsyncIterator[ProxySetup]:
    manager = manager or PassThroughManager()
    async with (
        Provider(MODELS, script) as provider,
        open_raw_gateway(provider.url, manager, **settings) as (url, proxy),
    ):
        made = ProxySetup(provider, url, proxy, manager)
        try:
            yield made
        finally:
            await made.close()


async def test_an_exchange_is_freed_without_a_garbage_collection() -> None:
    def exchanges() -> list[Exchange]:
        """All of them: without a collection every new object is in the youngest generation."""
        new = gc.get_objects(generation=0)
        return [found for found in new if isinstance(found, Exchange)]

    async with open_proxy(["One.", "Two."]) as on:
        await on.openai.chat.completions.create(model="gpt-4o", messages=HELLO)
        gc.collect()
        gc.disable()
        try:
            await on.openai.chat.completions.create(model="gpt-4o", messages=HELLO)
            async with asyncio.timeout(60):
                while exchanges():  # noqa: ASYNC110 - nothing tells that an object is freed
                    await asyncio.sleep(0.01)
            assert exchanges() == []
        finally:
            gc.enable()


async def test_relays_answers_and_records_their_usage() -> None:
    async with open_proxy(["One.", "Two.", "Three."]) as on:
        chat = await on.openai.chat.completions.create(model="gpt-4o", messages=HELLO)
        assert chat.choices[0].message.content == "One."
        response = await on.openai.responses.create(model="gpt-5", input="Hello")
        assert response.output_text == "Two."
        message = await on.anthropic.messages.create(
            model="claude-opus-4-8", max_tokens=50, messages=HELLO
        )
        assert first_text(message) == "Three."
        counted = await on.anthropic.messages.count_tokens(
            model="claude-opus-4-8", messages=HELLO
        )
        assert counted.input_tokens > 0
        assert {model.id async for model in await on.openai.models.list()} == set(
            MODELS
        )
    used = [outcome.usage for outcome in on.manager.outcomes]
    assert [usage.prompt_tokens for usage in used if usage] == [
        record.prompt_tokens for record in on.provider.log[:3]
    ]
    said = [
        text_of(outcome.reply.message)
        for outcome in on.manager.outcomes
        if outcome.reply
    ]
    assert said == ["One.", "Two.", "Three."]
    assert on.proxy.metrics.value("tokens", bucket="output") > 0


async def test_relays_streams_and_records_their_usage() -> None:
    async with open_proxy(["One and more.", "Two and more.", "Three and more."]) as on:
        chat = await on.openai.chat.completions.create(
            model="gpt-4o", messages=HELLO, stream=True
        )
        chunks = [chunk async for chunk in chat]
        assert (
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            == "One and more."
        )
        assert all(chunk.choices for chunk in chunks), (
            "the extra chunk is not the client's"
        )
        async with on.openai.responses.stream(model="gpt-5", input="Hello") as stream:
            assert (await stream.get_final_response()).output_text == "Two and more."
        async with on.anthropic.messages.stream(
            model="claude-opus-4-8", max_tokens=50, messages=HELLO
        ) as messages:
            assert await messages.get_final_text() == "Three and more."
    assert [
        outcome.usage.output_tokens > 0
        for outcome in on.manager.outcomes
        if outcome.usage
    ] == [True] * 3
    assert on.provider.log[0].body["stream_options"] == {"include_usage": True}
    assert on.proxy.metrics.value("rewrites", kind="include_usage") == 1


@pytest.mark.parametrize(
    ("asked", "mode", "include", "sent"),
    [
        (
            {"stream_options": {"include_usage": False}},
            "managed",
            True,
            {"include_usage": False},
        ),
        (
            {"stream_options": {"include_usage": True}},
            "managed",
            True,
            {"include_usage": True},
        ),
        (
            {"stream_options": {"x": 1}},
            "managed",
            True,
            {"include_usage": True, "x": 1},
        ),
        ({}, "managed", False, None),
        ({}, "observe", True, None),
        ({}, "off", True, None),
    ],
)
async def test_asks_for_a_stream_s_usage_only_in_managed_mode(
    asked: Any, mode: Any, include: bool, sent: Any
) -> None:
    async with open_proxy(mode=mode, include_usage=include) as on:
        chat = await on.openai.chat.completions.create(
            model="gpt-4o", messages=HELLO, stream=True, **asked
        )
        chunks = [chunk async for chunk in chat]
        assert any(not chunk.choices for chunk in chunks) == (
            asked.get("stream_options") == {"include_usage": True}
        )
        assert on.provider.log[0].body.get("stream_options") == sent


async def test_passes_the_provider_s_errors_on() -> None:
    async with open_proxy([Fault("rate_limit", retry_after=7)]) as on:
        with pytest.raises(openai.RateLimitError) as limited:
            await on.openai.chat.completions.create(model="gpt-4o", messages=HELLO)
        assert limited.value.response.headers["retry-after"] == "7"
        with pytest.raises(anthropic.NotFoundError):
            await on.anthropic.messages.create(
                model="claude-none", max_tokens=50, messages=HELLO
            )
    assert [status for status, _ in on.manager.errors] == [429, 404]
    assert on.proxy.metrics.value("upstream_errors", status="429") == 1


class FailingToPrepare(PassThroughManager):
    """Fails before anything is sent."""

    async def outgoing(self, incoming: Incoming) -> Outgoing:
        raise ValueError(f"no {incoming.api}")


class FailingLater(PassThroughManager):
    """Fails at every later step."""

    async def instead(
        self, _incoming: Incoming, _sent: Outgoing, _body: bytes
    ) -> Outgoing | None:
        raise KeyError("nothing")

    async def record(self, incoming: Incoming, sent: Outgoing, outcome: Any) -> None:
        await super().record(incoming, sent, outcome)
        raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("manager", "failures"), [(FailingToPrepare, [2, 0, 0]), (FailingLater, [0, 1, 2])]
)
async def test_forwards_the_original_request_if_the_manager_fails(
    manager: Any, failures: list[int]
) -> None:
    async with open_proxy(
        ["Fine.", Fault("overloaded")], manager(), include_usage=False
    ) as on:
        message = await on.anthropic.messages.create(
            model="claude-opus-4-8", max_tokens=9, messages=HELLO
        )
        assert first_text(message) == "Fine."
        with pytest.raises(anthropic.APIStatusError):
            await on.anthropic.messages.create(
                model="claude-opus-4-8", max_tokens=9, messages=HELLO
            )
    steps = [
        on.proxy.metrics.value("failed_open", step=step)
        for step in ("prepare", "refused", "answered")
    ]
    assert steps == failures


async def test_chooses_the_upstream_by_the_model() -> None:
    async with Provider(MODELS) as first, Provider(MODELS) as second:
        upstreams = [
            Upstream("a", f"{first.url}/v1", ("gpt-*",), "openai", api_key="sk-ours"),
            Upstream("b", second.url, ("claude-*",), "anthropic"),
        ]
        async with (
            open_raw_gateway(upstreams) as (url, _),
            httpx2.AsyncClient(timeout=60) as client,
        ):
            sent = {"messages": HELLO, "max_tokens": 5}
            headers = {"authorization": "Bearer sk-theirs"}
            for model in ("gpt-4o", "claude-opus-4-8"):
                path = f"{url}/v1/chat/completions"
                await client.post(path, json={"model": model, **sent}, headers=headers)
            await client.post(
                f"{url}/v1/messages/count_tokens",
                json={"model": "claude-opus-4-8", **sent},
            )
            assert (
                await client.get(f"{url}/v1/models", headers={"anthropic-version": "1"})
            ).status_code == 200
        async with (
            raw_upstream() as one,
            raw_upstream() as other,
        ):
            asked = [
                Upstream("a", one.url, ("gpt-*",)),
                Upstream("b", other.url, ("claude-*",)),
            ]
            async with (
                open_raw_gateway(asked) as (url, _),
                httpx2.AsyncClient(timeout=60) as client,
            ):
                await client.get(f"{url}/v1/models/claude-opus-4-8")
            assert (len(one.received), other.received[0].line) == (
                0,
                b"GET /v1/models/claude-opus-4-8 HTTP/1.1",
            )
        assert [record.headers["authorization"] for record in first.log] == [
            "Bearer sk-ours"
        ]
        assert second.log[0].headers["authorization"] == "Bearer sk-theirs"
        assert [record.path for record in second.log] == [
            "/v1/chat/completions",
            "/v1/messages/count_tokens",
        ]
