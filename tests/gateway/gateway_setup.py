"""A provider, a store and gateways that need keys, all real; clients are the official ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anthropic
import httpx2
import openai

from everthread.config import parse_config
from everthread.core.messages import text_of
from everthread.factory import open_store
from everthread.factory.gateways import open_gateway
from everthread.gateway.access.key_creation import issue_key
from everthread.gateway.contracts import Auth, Mode
from everthread.gateway.router import Upstream
from everthread.lab.provider import Provider, ServedModel
from everthread.store.key_records import KeyLimits
from everthread.store.store import Store

CHAT_MODEL = "gpt-4o"
CLAUDE_MODEL = "claude-sonnet-5"
UPSTREAM_KEY = "sk-upstream-0123456789-upstream"
MIDNIGHT = 86_400 * 20_000.0
LATE_EVENING = MIDNIGHT + 86_000
HELLO: Any = [{"role": "user", "content": "Hello"}]
FILLER = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "


@dataclass
class Gateways:
    """A provider, a store, and any number of gateways on them."""

    provider: Provider
    store: Store
    exit_stack: AsyncExitStack
    file: Path
    urls: list[str] = field(default_factory=list)
    clients: dict[tuple[str, str, str], Any] = field(default_factory=dict)
    """By kind, address and key. Shared, because creating one takes longer than its requests."""

    async def start(
        self, auth: Auth = "keys", *, key: str | None = UPSTREAM_KEY, **more: Any
    ) -> str:
        upstreams = more.pop("upstreams", None) or [Upstream("lab", self.provider.url, api_key=key)]
        seconds = more.pop("manage_seconds", None)
        limits = f"  limits: {{manage_seconds: {seconds}}}\n" if seconds else ""
        config = parse_config(f"gateway:\n  port: 0\n{limits}" + more.pop("settings", ""))
        opened = open_gateway(
            config,
            auth=auth,
            store=self.store,
            upstreams=upstreams,
            **more,
        )
        self.urls.append((await self.exit_stack.enter_async_context(opened)).url)
        return self.urls[-1]

    async def create_key(
        self,
        tenant: str = "acme",
        *,
        scopes: tuple[str, ...] = ("proxy",),
        mode: Mode | None = None,
        **limits: Any,
    ) -> str:
        token, new = issue_key(
            tenant=tenant,
            scopes=scopes,
            mode=mode,
            limits=KeyLimits(**limits),
        )
        await self.store.keys.create_key(new)
        return token

    async def wait_for_texts(self, thread: str, count: int) -> list[str]:
        """Return the texts of a thread once the store has `count` messages of it.

        The gateway stores an answer after its client has it.
        """
        while len(messages := await self.store.load_history(thread)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return [text_of(message.body) for message in messages]

    def openai_client(self, url: str, key: str) -> openai.AsyncOpenAI:
        return cast("openai.AsyncOpenAI", self._client("chat", f"{url}/v1", key))

    def anthropic_client(self, url: str, key: str) -> anthropic.AsyncAnthropic:
        return cast("anthropic.AsyncAnthropic", self._client("claude", url, key))

    def _client(self, kind: str, url: str, key: str) -> Any:
        client = self.clients.get((kind, url, key))
        if client is None:
            create_client = openai.AsyncOpenAI if kind == "chat" else anthropic.AsyncAnthropic
            client = self.clients[kind, url, key] = create_client(
                base_url=url, api_key=key, max_retries=0
            )
            self.exit_stack.push_async_callback(client.close)
        return client


@asynccontextmanager
async def open_gateways(
    folder: Path, window: int = 128_000, script: Any = None
) -> AsyncIterator[Gateways]:
    """Open a gateways whose provider serves one model of OpenAI and one of Anthropic.

    `window`: of the Claude model. `script`: the provider's answers.
    """
    models = [
        ServedModel(CHAT_MODEL, shows="max_model_len"),
        ServedModel(CLAUDE_MODEL, window, shows="max_model_len"),
    ]
    async with open_gateways_with_models(folder, models, script) as gateways:
        yield gateways


@asynccontextmanager
async def open_gateways_with_models(
    folder: Path, models: Sequence[ServedModel], script: Any = None
) -> AsyncIterator[Gateways]:
    """Serve these models; `script` is what the provider answers."""
    async with Provider(models, script) as provider, AsyncExitStack() as stack:
        store = open_store(folder / "gateway.db")
        stack.push_async_callback(store.close)
        yield Gateways(
            provider,
            store,
            exit_stack=stack,
            file=folder / "gateway.db",
        )


def ask_claude(client: anthropic.AsyncAnthropic, messages: Any = HELLO) -> Any:
    return client.messages.create(
        model=CLAUDE_MODEL,
        max_tokens=100,
        messages=messages,
    )


def ask_chat(client: openai.AsyncOpenAI, messages: Any = HELLO, **more: Any) -> Any:
    return client.chat.completions.create(model=CHAT_MODEL, messages=messages, **more)


@dataclass
class ClaudeClient:
    """A client over plain HTTP that sends its whole history, as Claude Code does."""

    http: httpx2.AsyncClient
    url: str
    tools: list[Any]
    headers: dict[str, str]
    messages: list[Any] = field(default_factory=list)

    async def say(self, text: str, **more: Any) -> str:
        """Send one more message of the user and return the thread of the answer."""
        self.messages.append({"role": "user", "content": text})
        return await self.send(**more)

    async def send(self, **more: Any) -> str:
        answer = await self.post(**more)
        self.messages.append({"role": "assistant", "content": answer.json()["content"]})
        return str(answer.headers["x-everthread-thread"])

    async def post(self, **more: Any) -> httpx2.Response:
        body = {
            "model": CLAUDE_MODEL,
            "max_tokens": 500,
            "messages": self.messages,
            "tools": self.tools,
            **more,
        }
        answer = await self.http.post(
            f"{self.url}/v1/messages",
            json=body,
            headers={
                "x-api-key": "k",
                "anthropic-version": "2023-06-01",
                **self.headers,
            },
        )
        assert answer.status_code == 200, answer.text
        return answer


@dataclass
class ChatClient:
    """A chat client over plain HTTP that sends its whole history."""

    http: httpx2.AsyncClient
    url: str
    tools: list[Any] = field(default_factory=list)
    system: str = ""
    token: str = "k"
    messages: list[Any] = field(default_factory=list)
    answer_headers: dict[str, str] = field(default_factory=dict)
    """The headers of the last answer."""

    async def say(self, text: str, **headers: str) -> str:
        """Send one more message of the user and return the thread of the answer."""
        self.messages.append({"role": "user", "content": text})
        self.messages.append(await self.send(self.messages, **headers))
        return self.answer_headers["x-everthread-thread"]

    async def send(self, messages: list[Any], **headers: str) -> Any:
        """Send these messages and return the answer's message."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        body: Any = {"model": CHAT_MODEL, "messages": [*opening, *messages]}
        if self.tools:
            body["tools"] = self.tools
        answer = await self.http.post(
            f"{self.url}/v1/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {self.token}", **headers},
        )
        assert answer.status_code == 200, answer.text
        self.answer_headers = dict(answer.headers)
        return answer.json()["choices"][0]["message"]
