"""A conversation over HTTP through a gateway that compacts it, with a model that recalls a fact."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx2

from everthread.core.caching.claude_cache_marks import without_cache_control
from everthread.core.messages import results_of, text_of
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.lab.provider import Provider, RequestRecord, ServedModel
from everthread.wire.codecs import CODECS
from everthread.wire.sse import SseParser
from tests.apis import PATHS
from tests.chat_messages import calls_reply, function_call
from tests.conversation.http_setup import TOOL
from tests.gateway.gateway_setup import Gateways, open_gateways
from tests.gateway.manager_setup import NAMES, HistoryClient, numbered_text, text_of_tokens

FACT = "The harbour master's boat is called Wilhelmina."


def numbered_call(name: str, number: int, **arguments: Any) -> Any:
    return function_call(f"call_{name}_{number}", name, json.dumps(arguments))


def tool_names(request: ModelRequest) -> list[str]:
    return [tool["function"]["name"] for tool in request.tools or []]


def script(request: ModelRequest) -> Any:
    """Look the boat up if there is a tool for it; note everything else."""
    questions = [text_of(message) for message in request.messages if message["role"] == "user"]
    question = next(filter(None, reversed(questions)), "")
    if "boat called?" not in question:
        return f"Noted: {text_of_tokens(60, 'answer')}"
    number = len(request.messages)
    results = find_last_results(request)
    if any("Wilhelmina" in text for text in results):
        return "It is the Wilhelmina."
    if "recall" in tool_names(request):
        if "without end" in question.lower():
            return calls_reply(numbered_call("recall", number, query="boat"))
        if not results:
            calls = [numbered_call("recall", number, query="harbour master boat")]
            if "and the date" in question:
                calls.insert(0, numbered_call("terminal", number, command="date"))
            return calls_reply(*calls, text="Let me look that up.")
    return "I do not know."


def find_last_results(request: ModelRequest) -> list[str]:
    """Return the results of tools since the last answer of the model."""
    messages = reversed(request.messages)
    later = takewhile(lambda message: message["role"] != "assistant", messages)
    return [result.text for message in later for result in results_of(message)]


@dataclass
class ProxiedConversation:
    """A conversation of one client over HTTP, with complete or streamed answers."""

    gateways: Gateways
    url: str
    client: HistoryClient
    streams: bool
    events: list[Any] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    response_bytes: bytes = b""
    response_headers: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> list[RequestRecord]:
        """The requests that reached the provider."""
        return self.gateways.provider.log

    async def ask(self, text: str = "", **more: Any) -> ModelReply:
        if text:
            self.client.add_user_message(text)
        body = {
            **self.client.body(),
            **more,
            "stream": self.streams,
        }
        codec = CODECS[self.client.api]
        sent = {
            "x-api-key": "k",
            "authorization": "Bearer k",
            "anthropic-version": "2023-06-01",
            **self.headers,
        }
        async with httpx2.AsyncClient(timeout=180) as http:
            answer = await http.post(self.url + PATHS[self.client.api], json=body, headers=sent)
        assert answer.status_code == 200, answer.text
        self.response_bytes = answer.content
        self.response_headers = dict(answer.headers)
        if not self.streams:
            reply = codec.decode_reply(answer.json(), model=self.client.model)
        else:
            decoder = codec.stream_decoder(model=self.client.model)
            self.events = SseParser().feed(answer.content)
            for event in self.events:
                decoder.feed(event)
            reply = decoder.reply()
        self.client.add_reply(reply)
        return reply

    async def wait_until_recorded(self) -> None:
        """Wait until all calls are recorded: that is done after the client has the answer."""
        [row] = await self.gateways.store.list_threads()
        while len(await self.gateways.store.usage.list_usage(row.first.id)) < len(  # noqa: ASYNC110
            self.log
        ):
            await asyncio.sleep(0.02)

    async def send_until_compacted(self) -> None:
        """Send turns until the first compaction."""
        await self.ask(FACT)
        for turn in range(20):
            await self.ask(numbered_text(turn, 3_000, "ledger"))
            if self.log[-1].prompt_tokens < self.log[-2].prompt_tokens:
                return
        raise AssertionError("nothing was compacted")

    def offers_recall(self, back: int = 1) -> bool:
        return "recall" in json.dumps(self.body_sent(back).get("tools"))

    def body_sent(self, back: int = 1) -> dict[str, Any]:
        """Return the body of one of the last requests that went upstream."""
        body: dict[str, Any] = self.log[-back].body
        return body

    def messages_sent(self, back: int = 1) -> list[Any]:
        """Return the messages of that request without the cache marks, which move."""
        body = self.body_sent(back)
        return [_unmarked(message) for message in body.get("messages") or body["input"]]


def _unmarked(message: Any) -> Any:
    content = message.get("content")
    if not isinstance(content, list):
        return (
            {
                **message,
                "content": [{"type": "text", "text": content}],
            }
            if isinstance(content, str)
            else message
        )
    return {**message, "content": [without_cache_control(part) for part in content]}


@asynccontextmanager
async def open_conversation(
    folder: Path, api: Api, *, streams: bool, settings: str = "", **more: Any
) -> AsyncIterator[ProxiedConversation]:
    models = [ServedModel(name, 40_000, shows="max_model_len") for name in NAMES.values()]
    async with open_gateways(folder) as gateways, Provider(models, script) as provider:
        gateways.provider = provider
        settings += "compression: {background: false}\n"
        url = await gateways.start("none", key=None, settings=settings)
        client = HistoryClient(
            api,
            tools=[TOOL],
            extra={"max_tokens": 500} if api == "anthropic" else {},
            **more,
        )
        yield ProxiedConversation(
            gateways,
            url,
            client=client,
            streams=streams,
        )
