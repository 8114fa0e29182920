"""Conversations for tests: the real store, the real engine, and a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everthread import open_store
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.conversation.conversation import Conversation
from everthread.core.types import Reply, Request
from everthread.errors import ModelError
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.testing import PrefixWatch, ScriptedModel, ScriptStep
from everthread.thread.options import Route, SessionOptions, Setup, SummarizerContext
from tests.chat_messages import calls_reply, function_call, result_message

Script = Iterable[ScriptStep] | Callable[[Request], ScriptStep]
SYSTEM = "You help with the billing service. Answer briefly."


class ConversationSetup:
    """A store, its conversations, and a check of their requests."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.watch = PrefixWatch()

    async def open(
        self,
        model: Any,
        *,
        resume: str | None = None,
        new: NewSession | None = None,
        tools: list[dict[str, Any]] | None = None,
        system: Any = SYSTEM,
        engine: Callable[[Services], ContextEngine] = ContextCompressor,
        summarizer: Summarizer | None = None,
        provider: str = "auto",
        **options: Any,
    ) -> Conversation:
        setup = self.setup(
            model,
            system=system,
            engine=engine,
            summarizer=summarizer,
            provider=provider,
            **options,
        )
        return await Conversation.open(setup, resume=resume, new=new, tools=tools or [])

    def setup(
        self,
        model: Any,
        *,
        system: Any = SYSTEM,
        engine: Callable[[Services], ContextEngine] = ContextCompressor,
        summarizer: Summarizer | None = None,
        provider: str = "auto",
        **options: Any,
    ) -> Setup:
        def writer(context: SummarizerContext) -> Summarizer:
            return summarizer or JournalWriter(context.counter)

        return Setup(
            self.store,
            route_to_model(model, provider),
            engine,
            writer,
            SessionOptions(**options),
            system,
            listener=self.watch,
        )


def route_to_model(model: Any, provider: str = "auto") -> Route:
    return Route(
        model.name,
        model.api,
        model.window,
        base_url=model.base_url,
        provider=provider,
        model=model,
    )


@asynccontextmanager
async def open_setup(folder: Path) -> AsyncIterator[ConversationSetup]:
    """Open a setup with a new SQLite store. At its end, check that no request broke its session's prefix."""
    store = open_store(folder / "store.db")
    made = ConversationSetup(store)
    try:
        yield made
    finally:
        await store.close()
    assert not made.watch.broken, [str(found) for found in made.watch.broken]


def scripted_model(script: Script = (), **settings: Any) -> ScriptedModel:
    return ScriptedModel(script, **settings)


def call_reply(name: str, arguments: str, call_id: str = "call_1") -> Reply:
    """Return a reply that calls a tool."""
    return calls_reply(function_call(call_id, name, arguments))


def tool_result(text: str, call_id: str = "call_1") -> Any:
    return result_message(call_id, text)


def overflow_error(limit: int | None = None, tokens: int = 0) -> ModelError:
    said = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens. "
        "Please reduce the length of the messages."
        if limit
        else "prompt is too long"
    )
    body = {
        "error": {
            "message": said,
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        }
    }
    return ModelError(said, status=400, body=body)


def make_text(count: int, about: str = "invoice") -> str:
    """Return a text of about this many tokens; no two are alike."""
    return " ".join(f"{about} {index} is settled" for index in range(count // 4))


def numbered_text(number: int, count: int, topic: str) -> str:
    """Return the user's message of this turn, in about `count` tokens."""
    return f"Turn {number}: {make_text(count, f'{topic} {number}')}"


async def send_texts(talk: Any, turns: int, count: int, topic: str) -> None:
    """Send a numbered text of about `count` tokens in each of `turns` turns."""
    for turn in range(turns):
        await talk.send(numbered_text(turn, count, topic))
