"""The official clients on a simulated provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import cached_property
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from everthread.core.types import Api
from everthread.lab.provider import Provider

GPT = "gpt-5"
CLAUDE = "claude-sonnet-5"


class Clients:
    """Both clients, each made when it is first used: making one takes longer than most tests."""

    def __init__(self, provider: Provider, timeout: float) -> None:
        self.provider = provider
        self._timeout = timeout
        self._made = AsyncExitStack()

    @cached_property
    def openai(self) -> Any:
        """OpenAI's client; `Any`, because the tests pass plain dicts."""
        url = f"{self.provider.url}/v1"
        client = AsyncOpenAI(api_key="sk-lab", base_url=url, max_retries=0, timeout=self._timeout)
        self._made.push_async_callback(client.close)
        return client

    @cached_property
    def claude(self) -> Any:
        """Anthropic's client."""
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

    async def request(
        self, api: Api, text: str = "Hi", *, model: str | None = None, **options: Any
    ) -> Any:
        """Send a question over this API; return the client's own object."""
        if api == "openai_responses":
            return await self.openai.responses.create(model=model or GPT, input=text, **options)
        messages = [{"role": "user", "content": text}]
        if api == "openai_chat":
            return await self.openai.chat.completions.create(
                model=model or GPT, messages=messages, **options
            )
        return await self.claude.messages.create(
            model=model or CLAUDE, messages=messages, **{"max_tokens": 1000, **options}
        )

    async def ask(
        self,
        api: Api,
        text: str = "Hi",
        *,
        model: str | None = None,
        stream: bool = False,
    ) -> str:
        """Return the text of the answer."""
        if stream:
            pieces: list[str] = []
            await self.read_stream(api, pieces, text, model=model)
            return "".join(pieces)
        reply = await self.request(api, text, model=model)
        if api == "openai_chat":
            return str(reply.choices[0].message.content or "")
        if api == "openai_responses":
            return str(reply.output_text)
        return "".join(block.text for block in reply.content if block.type == "text")

    async def read_stream(
        self,
        api: Api,
        pieces: list[str],
        text: str = "Hi",
        *,
        model: str | None = None,
    ) -> None:
        """Add the pieces of the answer's text to a list, which has them even if the stream fails."""
        async for event in await self.request(api, text, model=model, stream=True):
            if api == "openai_chat":
                pieces += [choice.delta.content or "" for choice in event.choices]
            elif api == "openai_responses":
                if event.type == "response.output_text.delta":
                    pieces.append(event.delta)
            elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                pieces.append(event.delta.text)


@asynccontextmanager
async def open_clients(provider: Provider, *, patience: float = 20.0) -> AsyncIterator[Clients]:
    """Run the provider and yield clients for it, which give up after `patience` seconds."""
    async with provider, aclosing(Clients(provider, patience)) as clients:
        yield clients
