"""Conversations for tests: the real store, the real engine, and a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from everthread import open_store
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.conversation.conversation import Conversation
from everthread.conversation.setup import Setup
from everthread.core.types import ModelRequest
from everthread.errors import ModelError
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.testing import PrefixWatch, ScriptedModel, ScriptStep
from everthread.thread.events import CompactionDone, Event
from everthread.thread.options import SessionOptions
from everthread.thread.route import Route
from everthread.thread.thread_setup import SummarizerContext
from tests.chat_messages import result_message

EventT = TypeVar("EventT", bound=Event)
Script = Iterable[ScriptStep] | Callable[[ModelRequest], ScriptStep]
SYSTEM = "You help with the billing service. Answer briefly."


class WatchedConversations:
    """A store and the events of its conversations, whose requests must extend each other."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.watch = PrefixWatch()

    def events(self, kind: type[EventT]) -> list[EventT]:
        """Return the events of one kind so far."""
        return self.watch.of(kind)

    @property
    def compactions(self) -> list[CompactionDone]:
        return self.events(CompactionDone)

    def assert_prefixes(self) -> None:
        """Check that no request changed the beginning of the one before."""
        assert not self.watch.broken, [str(change) for change in self.watch.broken]


class Conversations(WatchedConversations):
    """Open conversations of a scripted model."""

    async def open(
        self,
        model: Any,
        *,
        resume: str | None = None,
        new: NewSession | None = None,
        tools: Sequence[dict[str, Any]] = (),
        **settings: Any,
    ) -> Conversation:
        """Open a conversation. `settings`: arguments of `make_setup`."""
        setup = self.make_setup(model, **settings)
        return await Conversation.open(
            setup,
            resume=resume,
            new=new,
            tools=tools,
        )

    def make_setup(
        self,
        model: Any,
        *,
        system: Any = SYSTEM,
        engine: Callable[[Services], ContextEngine] = ContextCompressor,
        summarizer: Summarizer | None = None,
        provider: str = "auto",
        changes: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Setup:
        """Return a setup. `changes`: other fields of `Setup`. `options`: fields of `SessionOptions`."""

        def make_summarizer(context: SummarizerContext) -> Summarizer:
            return summarizer or JournalWriter(context.counter)

        setup = Setup(
            store=self.store,
            route=route_to_model(model, provider),
            make_engine=engine,
            make_summarizer=make_summarizer,
            options=SessionOptions(**options),
            system=system,
            listener=self.watch,
        )
        return replace(setup, **(changes or {}))


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
async def open_conversations(folder: Path) -> AsyncIterator[Conversations]:
    """Open a conversations with a new SQLite store. At its end, check that no request broke its session's prefix."""
    store = open_store(folder / "store.db")
    conversations = Conversations(store)
    try:
        yield conversations
    finally:
        await store.close()
    conversations.assert_prefixes()


def scripted_model(script: Script = (), **settings: Any) -> ScriptedModel:
    return ScriptedModel(script, **settings)


def tool_result(text: str, call_id: str = "call_1") -> Any:
    return result_message(call_id, text)


def overflow_error(limit: int | None = None, tokens: int = 0) -> ModelError:
    message = (
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens. "
        "Please reduce the length of the messages."
        if limit
        else "prompt is too long"
    )
    body = {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        }
    }
    return ModelError(message, status=400, body=body)


def make_text(count: int, about: str = "invoice") -> str:
    """Return a text of about this many tokens; no two are alike."""
    return " ".join(f"{about} {index} is settled" for index in range(count // 4))


def numbered_text(number: int, count: int, topic: str) -> str:
    """Return the user's message of this turn, in about `count` tokens."""
    return f"Turn {number}: {make_text(count, f'{topic} {number}')}"


async def send_texts(conversation: Any, turns: int, count: int, topic: str) -> None:
    """Send a numbered text of about `count` tokens in each of `turns` turns."""
    for turn in range(turns):
        await conversation.send(numbered_text(turn, count, topic))
