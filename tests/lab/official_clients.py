"""The official clients on a simulated provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from functools import cached_property
from typing import Any, TypeVar

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from everthread.core.types import Api
from everthread.lab.provider import Provider

T = TypeVar("T")
GPT = "gpt-5"
CLAUDE = "claude-sonnet-5"
APIS: tuple[Api, ...] = ("openai_chat", "openai_responses", "anthropic")


class Clients:
    """Both clients, each made when it is first used: making one takes longer than most tests."""

    def __init__(self, provider: Provider, timeout: float) -> None:
        self.provider = provider
        self._timeout = timeout
        self._made = AsyncExitStack()

    @cached_property
    def openai(self) -> AsyncOpenAI:
        url = f"{self.provider.url}/v1"
        client = AsyncOpenAI(
            api_key="sk-lab", base_url=url, max_retries=0, timeout=self._timeout
        )
        self._made.push_async_callback(client.close)
        return client

    @cached_property
    def claude(self) -> AsyncAnthropic:
        client = AsyncAnthropic(
            api_key="sk-lab",
            base_url=self.provider.url,
            max_retries=0,
            timeout=self._timeout,
        )
        self._made.push_async_callback(client.close)
        return client

    async def aclose(self) -> None:
        await self._made.aclose()

    async def ask(
        self,
        api: Api,
        text: str = "Hi",
        *,
        model: str | None = None,
        stream: bool = False,
    ) -> str:
        """Return the answer as text, whatever its form."""
        if api == "openai_chat":
            return await self._chat(text, model or GPT, stream=stream)
        if api == "openai_responses":
            return await self._responses(text, model or GPT, stream=stream)
        return await self._messages(text, model or CLAUDE, stream=stream)

    async def _chat(self, text: str, model: str, *, stream: bool) -> str:
        messages: Any = [{"role": "user", "content": text}]
        if not stream:
            whole = await self.openai.chat.completions.create(
                model=model, messages=messages
            )
            return whole.choices[0].message.content or ""
        pieces = await self.openai.chat.completions.create(
            model=model, messages=messages, stream=True
        )
        return "".join(
            [
                chunk.choices[0].delta.content or ""
                async for chunk in pieces
                if chunk.choices
            ]
        )

    async def _responses(self, text: str, model: str, *, stream: bool) -> str:
        if not stream:
            return (
                await self.openai.responses.create(model=model, input=text)
            ).output_text
        events = await self.openai.responses.create(
            model=model, input=text, stream=True
        )
        return "".join(
            [
                event.delta
                async for event in events
                if event.type == "response.output_text.delta"
            ]
        )

    async def _messages(self, text: str, model: str, *, stream: bool) -> str:
        messages: Any = [{"role": "user", "content": text}]
        if not stream:
            whole = await self.claude.messages.create(
                model=model, messages=messages, max_tokens=1000
            )
            return "".join(
                block.text for block in whole.content if block.type == "text"
            )
        async with self.claude.messages.stream(
            model=model, messages=messages, max_tokens=1000
        ) as pieces:
            return "".join([piece async for piece in pieces.text_stream])


async def open_clients(
    provider: Provider,
    play: Callable[[Clients], Awaitable[T]],
    *,
    patience: float = 20.0,
) -> T:
    """What `play` makes of the provider and its clients."""
    async with provider, aclosing(Clients(provider, patience)) as clients:
        return await play(clients)
