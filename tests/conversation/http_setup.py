"""Conversations over real HTTP: the official clients and the simulated provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everthread import Conversation, open_conversation, open_store
from everthread.compaction.summary.sections import HANDOFF_SECTIONS
from everthread.config import Config, parse_config
from everthread.core.messages import text_of
from everthread.core.types import Api, ModelRequest
from everthread.lab.provider import Provider, ServedModel
from everthread.store.store import Store
from tests.conversation.conversation_setup import WatchedConversations, make_text

KEY = "EVERTHREAD_LAB_KEY"
NAMES: dict[Api, str] = {
    "openai_chat": "gpt-4o",
    "openai_responses": "gpt-5",
    "anthropic": "claude-sonnet-4-5",
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


class HttpConversations(WatchedConversations):
    """A provider, a store, and conversations between them whose requests are watched."""

    def __init__(self, provider: Provider, store: Store) -> None:
        super().__init__(store)
        self.provider = provider
        self.opened: list[Conversation] = []

    def config(self, model: str, *, provider: str = "custom", extra: str = "") -> Config:
        address = self.provider.url if provider == "anthropic" else f"{self.provider.url}/v1"
        text = f"model: {{default: {model}, provider: {provider}, base_url: '{address}', api_key_env: {KEY}}}\n{extra}"
        return parse_config(text)

    async def open(
        self,
        model: str,
        *,
        api: Api | None = None,
        provider: str = "custom",
        extra: str = "",
        **more: Any,
    ) -> Conversation:
        config = self.config(model, provider=provider, extra=extra)
        conversation = await open_conversation(
            config=config, store=self.store, api=api, listener=self.watch, **more
        )
        self.opened.append(conversation)
        return conversation

    def summary_calls(self) -> list[ModelRequest]:
        return [
            record.request
            for record in self.provider.log
            if record.request and is_summary_call(record.request)
        ]

    def main_calls(self) -> list[Any]:
        return [
            item for item in self.provider.log if item.request and not is_summary_call(item.request)
        ]


OpenHttp = Callable[..., Awaitable[HttpConversations]]
"""Opens a setup: `await open_http(models, script)`."""


@asynccontextmanager
async def open_http_conversations(
    folder: Path, models: Any, script: Any = None, **settings: Any
) -> AsyncIterator[HttpConversations]:
    async with Provider(models, script, **settings) as provider:
        store = open_store(folder / "store.db")
        conversations = HttpConversations(provider, store)
        try:
            yield conversations
        finally:
            for conversation in conversations.opened:
                await conversation.close()
            await store.close()
        conversations.assert_prefixes()


def served_model(
    name: str, window: int, *, shows: Any = "max_model_len", **more: Any
) -> ServedModel:
    """Return a served model that states its window by default."""
    return ServedModel(name, window, shows=shows, **more)


def is_summary_call(request: ModelRequest) -> bool:
    """Return whether a request asks for a summary: it names the sections."""
    instructions = f"{request.system}\n" + "\n".join(
        text_of(message) for message in request.messages[-1:]
    )
    return (
        all(f"## {name}" in instructions for name in HANDOFF_SECTIONS[2:6])
        and "[EVERTHREAD SUMMARY" not in instructions.split("## ")[0]
    )


def make_summary_text(goal: str = "Settle the books.", **sections: str) -> str:
    filled = {"Goal": goal} | {key.replace("_", " "): value for key, value in sections.items()}
    return "\n\n".join(f"## {name}\n{filled.get(name, 'None.')}" for name in HANDOFF_SECTIONS)


def answer_script(
    say: Callable[[ModelRequest], Any], summarise: Callable[[ModelRequest], Any] | None = None
) -> Any:
    """Return a script with one function for the conversation and another for summaries."""

    def answer(request: ModelRequest) -> Any:
        if is_summary_call(request):
            return summarise(request) if summarise else make_summary_text()
        return say(request)

    return answer


def make_answers(tokens: int) -> Any:
    """Return a script whose answers have about this many tokens."""
    return answer_script(lambda _: make_text(tokens))
